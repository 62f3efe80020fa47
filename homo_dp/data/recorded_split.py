"""Which rows a training held out, as its model file records it: the name of the data, how they were
split over parties, which part was held out, and the seed.

With that record the test rows of a bundled set can be scored later, and no row that was trained on
is among them. Tables of a user are not found by it: nothing in a model file names their paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homo_dp.config.load import config_from
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, ModelFileError
from homo_dp.data.embedded import load_embedded

_KEYS = ("partition", "party_column", "user_column", "test_fraction", "split_column")


def split_record(config: Config) -> dict[str, Any]:
    """What the model file of a run records of its split.

    ``embedded`` is the bundled set whose rows were held out; None where the test rows are of a
    table of the user.

    >>> split_record(config_from({"train": {"seed": 7}}))["seed"]
    7
    """
    data = config.data.model_dump(mode="json")
    own = bool(config.data.files) or config.data.test_file is not None
    return {
        "data": config.data.dataset,
        "embedded": None if own else config.data.embedded,
        **{key: data[key] for key in _KEYS},
        "seed": config.train.seed,
    }


def recorded_config(record: Mapping[str, Any], path: str) -> Config:
    """The configuration whose test rows are those that a training held out.

    Args:
        record: the record in the model file.
        path: the model file, for errors.

    Raises:
        ModelFileError: the record is of no bundled set, or damaged.
    """
    if record.get("embedded") is None:
        held = f"was trained on {record['data']}; " if record.get("data") else ""
        raise ModelFileError(
            f"{path}: {held}its file has no test rows of a bundled set; "
            "give the table to score with --data"
        )
    tree = {
        "data": {
            key: record.get(key) for key in ("embedded", *_KEYS) if record.get(key) is not None
        },
        "train": {"seed": record.get("seed")},
    }
    try:
        config = config_from(tree)
    except ConfigError as error:
        raise ModelFileError(
            f"{path}: its record of the split is damaged ({error}); "
            "give the table to score with --data"
        ) from error
    partition = config.data.partition
    if partition is not None and partition.parties > len(load_embedded(record["embedded"]).frame):
        raise ModelFileError(
            f"{path}: its record of the split is damaged (it has more parties than rows); "
            "give the table to score with --data"
        )
    return config


def split_text(config: Config) -> str:
    """A recorded split in words.

    >>> split_text(config_from({}))
    'test rows of breast_cancer (partition iid over 3 parties, test_fraction 0.2, seed 0)'
    """
    data = config.data
    parts = []
    if data.partition is not None:
        parts.append(f"partition {data.partition.kind} over {data.partition.parties} parties")
    named = ("party_column", "test_fraction", "split_column")
    parts += [f"{key} {value}" for key in named if (value := getattr(data, key)) is not None]
    return f"test rows of {data.embedded} ({', '.join(parts)}, seed {config.train.seed})"
