"""From the config to column descriptions: defaults, shipped descriptions and their order."""

from __future__ import annotations

import pytest

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Numeric
from homo_dp.data.declared import feature_columns, label_of, wants_images
from homo_dp.data.embedded import shipped_columns
from homo_dp.data.public_encoding import public_encoding
from tests.data.parts import COLUMNS, config


def test_a_missing_level_has_its_own_slot_unless_the_config_says_otherwise() -> None:
    names = ["y", "age", "sex"]
    found = feature_columns(config(files="t.csv", columns=COLUMNS).data, names, "t.csv")
    assert found == (Numeric("age", 0, 100), Categorical("sex", ("f", "m"), "level"))
    strict = {
        "sex": {"levels": ["f", "m"], "missing": "error"},
        "age": {"bounds": [0, 100], "missing": 18},
    }
    found = feature_columns(config(files="t.csv", columns=strict).data, names, "t.csv")
    assert found == (Categorical("sex", ("f", "m"), "error"), Numeric("age", 0, 100, 18.0))


def test_shipped_descriptions_fill_what_is_not_listed() -> None:
    names = ["y", *reversed([column.name for column in shipped_columns("breast_cancer")])]
    data = config(
        files={"a": "t.csv"},
        columns_from="breast_cancer",
        columns={"mean radius": {"bounds": [0, 50]}},
        drop=["mean area"],
    ).data
    found = feature_columns(data, names, "t.csv")
    assert len(found) == 29
    assert found[0] == Numeric("mean radius", 0, 50)
    assert [column.name for column in found[1:3]] == ["mean texture", "mean perimeter"], (
        "declared order, not the file's"
    )


def test_classes_are_declared_shipped_or_zero_and_one() -> None:
    assert label_of(config(files="t.csv")).classes == (0, 1)
    assert label_of(config(files="t.csv", classes=["a", "b", "c"])).classes == ("a", "b", "c")
    assert label_of(config(embedded="digits")).classes == tuple(range(10))


def test_who_gets_images() -> None:
    assert wants_images(config({"name": "cnn"}, embedded="digits"))
    assert not wants_images(config({"name": "mlp"}, embedded="digits", image={"shape": [1, 8, 8]}))
    assert wants_images(
        config({"factory": "mine:net"}, embedded="digits", image={"shape": [1, 8, 8]})
    )
    assert not wants_images(config({"factory": "mine:net"}, embedded="digits"))


def test_yaml_booleans_are_the_words_of_the_files() -> None:
    columns = {"rain": {"levels": [True, False]}}
    (rain,) = feature_columns(config(columns=columns).data, ["rain", "y"], "t.csv")
    assert rain == Categorical("rain", ("true", "false"))


def test_a_pattern_describes_all_columns_that_it_matches() -> None:
    columns = {
        "drug_2": {"bounds": [0, 9]},
        "drug_*": {"levels": [0, 1]},
        "age": {"bounds": [0, 100]},
    }
    names = ["age", "drug_10", "drug_9", "drug_2", "y"]
    found = feature_columns(config(columns=columns).data, names, "t.csv")
    assert [column.name for column in found] == ["drug_2", "drug_9", "drug_10", "age"], (
        "by number, not by file"
    )
    assert isinstance(found[0], Numeric), "its own description wins"
    with pytest.raises(DataError, match="is a pattern, and there is no table here"):
        public_encoding(config(columns=columns))
    used = config(columns=columns, use=["age", "drug_1", "drug_2"])
    assert public_encoding(used).names == ["age", "drug_1", "drug_2"]


def test_curves_are_of_tables_and_by_the_config() -> None:
    assert not public_encoding(config(columns=COLUMNS)).curves
    assert not public_encoding(config(columns=COLUMNS, curves=False)).curves
    assert public_encoding(config(columns=COLUMNS, curves=True)).width == 1 + 4 + 2
    image = {"shape": [1, 20, 20]}
    for model in ({}, {"name": "cnn"}):
        assert public_encoding(config(model, image=image)).pixel_bounds is not None
        with pytest.raises(
            DataError,
            match=r"data\.curves=true: curves are of the columns of a table, not of images",
        ):
            public_encoding(config(model, image=image, curves=True))
