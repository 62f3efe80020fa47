"""The split of a training as its model file records it."""

from __future__ import annotations

import json

import pytest

from homo_dp.config.load import config_from, load_config
from homo_dp.core.errors import ConfigError, ModelFileError
from homo_dp.data.parties import load_federation
from homo_dp.data.recorded_split import (
    check_continued_split,
    check_same_split,
    recorded_config,
    split_record,
    split_text,
)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"data.partition.parties": 2, "data.test_fraction": 0.4, "train.seed": 7},
        {"data.embedded": "digits", "data.partition.kind": "dirichlet"},
        {"data.embedded": "users"},
    ],
)
def test_the_recorded_split_holds_out_the_same_rows(keys: dict[str, object]) -> None:
    trained = load_config(None, keys)
    record = json.loads(json.dumps(split_record(trained)))
    for first, second in zip(
        load_federation(trained).parties.values(),
        load_federation(recorded_config(record, "m")).parties.values(),
        strict=True,
    ):
        assert first.test is not None
        assert second.test is not None
        assert first.test.features.equal(second.test.features)


@pytest.mark.parametrize(
    "data", [{"files": {"a": "a.csv"}}, {"embedded": "digits", "test_file": "t.csv"}]
)
def test_tables_of_a_user_are_not_found_by_the_record(data: dict[str, object]) -> None:
    record = split_record(config_from({"data": data}))
    assert record["embedded"] is None
    assert ".csv" not in json.dumps(record)
    with pytest.raises(ModelFileError, match="give the table to score with --data"):
        recorded_config(record, "m")


def test_a_split_is_said_in_words() -> None:
    config = load_config(None, {"data.embedded": "users", "train.seed": 3})
    assert split_text(config) == "test rows of users (test_fraction 0.2, seed 3)"


TRAINED = {"data.partition.parties": 2, "train.seed": 7}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"data.partition.parties": 5}, r"data\.partition: differs"),
        ({"data.partition.kind": "by_label"}, r"data\.partition: differs"),
        (
            {"data.test_fraction": 0.5, "train.seed": 8},
            r"data\.test_fraction, train\.seed: differ",
        ),
        ({"data.embedded": "digits"}, r"data\.embedded: differs"),
    ],
)
def test_another_split_than_the_recorded_one_is_refused(
    asked: dict[str, object], named: str
) -> None:
    held_out = recorded_config(split_record(load_config(None, TRAINED)), "m")
    with pytest.raises(ConfigError, match=f"{named} from the split that m records; leave"):
        check_same_split(load_config(None, asked), held_out, "m")


@pytest.mark.parametrize("asked", [{}, TRAINED, {"train.seed": 7}, {"data.partition.parties": 2}])
def test_a_split_that_is_left_open_or_repeated_is_the_recorded_one(
    asked: dict[str, object],
) -> None:
    held_out = recorded_config(split_record(load_config(None, TRAINED)), "m")
    check_same_split(load_config(None, asked), held_out, "m")


@pytest.mark.parametrize(
    "asked", [{}, {"train.seed": 8, "data.partition.parties": 2}, {"data.test_fraction": 0.5}]
)
def test_a_model_is_not_continued_on_rows_that_its_training_held_out(
    asked: dict[str, object],
) -> None:
    record = json.loads(json.dumps(split_record(load_config(None, TRAINED))))
    with pytest.raises(ConfigError, match=r"another split of breast_cancer \(.*train\.seed=7"):
        check_continued_split(load_config(None, asked), record, "m")


@pytest.mark.parametrize("asked", [TRAINED, {"data.name": "another"}])
def test_a_model_is_continued_on_the_same_split_and_on_other_data(
    asked: dict[str, object],
) -> None:
    record = json.loads(json.dumps(split_record(load_config(None, TRAINED))))
    check_continued_split(load_config(None, asked), record, "m")
    check_continued_split(load_config(None, asked), {}, "m")
