"""Which rows a training held out, as its model file records it: the name of the data, how they were
split over parties, which part was held out, and the seed.

With that record the test rows of a bundled set can be scored later, and no row that was trained on
is among them. Tables of a user are not found by it: nothing in a model file names their paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from homo_dp.config.base import Section
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


def check_same_split(config: Config, held_out: Config, path: str) -> None:
    """Refuse settings that ask for another split than the recorded one.

    Args:
        config: what the user asked for; settings that are left out follow the record.
        held_out: the configuration of the recorded split.
        path: the model file, for errors.

    Raises:
        ConfigError: most rows of the split that was asked for may have been trained on.
    """
    default = config_from({})
    given = [
        f"data.{key}"
        for key in ("embedded", *_KEYS)
        if _differs(*(getattr(each.data, key) for each in (config, default, held_out)))
    ]
    if _differs(config.train.seed, default.train.seed, held_out.train.seed):
        given.append("train.seed")
    if given:
        one = len(given) == 1
        raise ConfigError(
            f"{', '.join(given)}: differ{'s' if one else ''} from the split that {path} records; "
            f"leave {'it' if one else 'them'} out to score the {split_text(held_out)}, or give "
            "the table to score with --data"
        )


def _differs(asked: Any, default: Any, recorded: Any) -> bool:
    """Whether a value was asked for that is not the recorded one. A default was not asked for."""
    if isinstance(asked, Section) and isinstance(recorded, Section):
        names = type(asked).model_fields
        return any(
            _differs(*(getattr(each, name, None) for each in (asked, default, recorded)))
            for name in names
        )
    return asked not in (default, recorded)


def check_continued_split(config: Config, record: Mapping[str, Any], path: str) -> None:
    """Refuse to continue a model whose training held out other rows of the same data: most test
    rows of this run would have been trained on.

    Args:
        config: the run that starts from the model.
        record: the record in the model file; one without a name of the data is not compared.
        path: the model file, for errors.

    Raises:
        ConfigError: the splits differ; each setting is named with its recorded value.
    """
    own = split_record(config)
    separate = config.data.test_file is not None  # test rows of their own in both runs
    if separate or own["data"] != record.get("data"):
        return
    others = {
        ("train.seed" if key == "seed" else f"data.{key}"): record[key]
        for key in ("embedded", *_KEYS, "seed")
        if key in record and record[key] != own[key]
    }
    if others:
        shown = ", ".join(f"{key}={json.dumps(value)}" for key, value in others.items())
        raise ConfigError(
            f"train.init_from={path}: was trained on another split of {own['data']} ({shown}), so "
            "most test rows of this run were trained on; give these settings, or other data under "
            "a data.name of their own"
        )


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
