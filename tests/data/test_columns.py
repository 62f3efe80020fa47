"""Columns: clipping, scaling, levels, missing rules, labels, and that nothing is fitted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Label, Numeric
from tests.data.parts import BINARY, encoding


def test_numbers_are_clipped_to_public_bounds_and_scaled() -> None:
    frame = pd.DataFrame({"age": ["0", "50", "100", "1e308", "-7"]})
    assert encoding(Numeric("age", 0, 100)).encode(frame).flatten().tolist() == [-1, 0, 1, 1, -1]


def test_levels_have_slots_for_unknown_and_for_missing() -> None:
    frame = pd.DataFrame({"c": ["red", "blue", "green", "", " red"]})
    features = encoding(Categorical("c", ("red", "blue"))).encode(frame)
    assert features.tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("rule", "last"),
    [("unknown", [0, 0, 1]), ("blue", [0, 1, 0]), ("level", [0, 0, 0, 1])],
    ids=str,
)
def test_missing_level_rules(rule: str, last: list[int]) -> None:
    frame = pd.DataFrame({"c": ["red", "NA"]})
    assert encoding(Categorical("c", ("red", "blue"), rule)).encode(frame)[1].tolist() == last


def test_question_mark_is_a_level_where_declared_and_text_elsewhere() -> None:
    frame = pd.DataFrame({"c": ["?", "a"], "n": ["1", "?"]})
    assert encoding(Categorical("c", ("?", "a"))).encode(frame)[0].tolist() == [1, 0, 0, 0]
    with pytest.raises(DataError, match=r"t.csv: column 'n' row 2: '\?' is not a number"):
        encoding(Numeric("n", 0, 2)).encode(frame, "t.csv")
    listed = encoding(Numeric("n", 0, 2, "middle"), missing_values=("?",))
    assert listed.encode(frame).flatten().tolist() == [0, 0]


def test_numeric_levels_match_by_value() -> None:
    for values in (["1.0", "2", " 3"], [1, 2, 3], [1.0, 2.0, 3.0]):
        frame = pd.DataFrame({"cp": values})
        assert encoding(Categorical("cp", (3, 1), "unknown")).encode(frame).argmax(1).tolist() == [
            1,
            2,
            0,
        ]


@pytest.mark.parametrize(
    ("rule", "value"), [("middle", 0.0), ("low", -1.0), ("high", 1.0), (2.5, -0.5)], ids=str
)
def test_missing_number_rules_and_indicator(rule: str | float, value: float) -> None:
    frame = pd.DataFrame({"n": ["10", ""]})
    assert encoding(Numeric("n", 0, 10, rule, indicator=True)).encode(frame).tolist() == [
        [1, 0],
        [value, 1],
    ]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "row 2: missing value; fill it in, or train with data.columns.n.missing=middle"),
        ("NaN", "row 2: missing value"),
        ("nan", "row 2: missing value"),
        ("inf", "row 2: infinite value"),
        ("-Infinity", "row 2: infinite value"),
        ("1e999", "row 2: infinite value"),
        ("abc", "row 2: 'abc' is not a number"),
        ("1,5", "row 2: '1,5' is not a number"),
        ("0x10", "row 2: '0x10' is not a number"),
    ],
)
def test_bad_numbers_are_refused_with_file_column_and_row(cell: str, message: str) -> None:
    frame = pd.DataFrame({"n": ["1", cell, "2"]})
    with pytest.raises(DataError, match=f"t.csv: column 'n' {message}") as caught:
        encoding(Numeric("n", 0, 10)).encode(frame, "t.csv")
    assert "\n" not in str(caught.value)


def test_spaces_and_signs_around_numbers_are_accepted() -> None:
    frame = pd.DataFrame({"n": [" 5", "+5", "5 ", "5e0", "5."]})
    assert encoding(Numeric("n", 0, 10)).encode(frame).flatten().tolist() == [0] * 5


def test_typed_columns_give_the_same_tensor_as_text() -> None:
    columns = encoding(
        Numeric("n", 0, 10, "middle"), Categorical("c", ("a", "b")), Numeric("b", 0, 1)
    )
    text = pd.DataFrame({"n": ["1", "", "3"], "c": ["a", "", "z"], "b": ["1", "0", "1"]})
    typed = pd.DataFrame({"n": [1.0, np.nan, 3.0], "c": ["a", None, "z"], "b": [True, False, True]})
    nullable = typed.astype({"n": "Float64", "c": "string", "b": "boolean"})
    for other in (typed, nullable, typed.astype({"c": "category"})):
        assert torch.equal(columns.encode(text), columns.encode(other))


def test_labels_become_class_numbers() -> None:
    assert Label("y", ("No", "Yes")).encode(pd.Series(["Yes", "No"], name="y"), "t").tolist() == [
        1,
        0,
    ]
    assert Label("y", (2, 4)).encode(pd.Series(["4.0", "2"], name="y"), "t").tolist() == [1, 0]
    assert Label("y", (0, 1)).encode(pd.Series([1, 0], name="y"), "t").dtype == torch.int64


@pytest.mark.parametrize(("cell", "shown"), [("2", "'2'"), ("", "missing"), ("yes", "'yes'")])
def test_undeclared_label_is_refused_with_its_row(cell: str, shown: str) -> None:
    with pytest.raises(
        DataError, match=rf"t.csv: label 'y' row 3: {shown} is not one of classes=\[0, 1\]; fix"
    ):
        BINARY.encode(pd.Series(["0", "1", cell], name="y"), "t.csv")


def test_typed_undeclared_labels_are_shown_plainly() -> None:
    with pytest.raises(DataError, match="row 1: 2 is not"):
        BINARY.encode(pd.Series([2, 1], name="y"), "t.csv")
    with pytest.raises(DataError, match="row 2: missing is not"):
        BINARY.encode(pd.Series([1.0, np.nan], name="y"), "t.csv")


def test_regression_target_is_scaled_and_back() -> None:
    label = Label("y", bounds=(0.0, 50.0))
    series = pd.Series(["0", "25", "80"], name="y")
    assert label.encode(series, "t").tolist() == [-1, 0, 1]
    unclipped = label.encode(series, "t", clip=False)
    assert torch.allclose(label.decode(unclipped), torch.tensor([0.0, 25.0, 80.0]))
    with pytest.raises(DataError, match="row 1: missing value"):
        label.encode(pd.Series([""], name="y"), "t")
    with pytest.raises(DataError, match="has classes"):
        BINARY.decode(unclipped)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # whose values would become NaN
        (lambda: Numeric("n", 0.0, 1e-310), "not closer together than 1e-300"),
        (
            lambda: Numeric("n", 5, 1),
            r"data.columns.n.bounds=\[5, 1\] must be two finite numbers with low < high",
        ),
        (lambda: Numeric("n", 1, 1), "low < high"),
        (lambda: Numeric("n", 0, float("inf")), "finite"),
        (lambda: Numeric("n", -1e308, 1e308), "finite"),
        (lambda: Numeric("n", 0, 1, "mean"), "not one of error, middle, low, high"),
        (lambda: Numeric("n", 0, 1, 2.0), "outside bounds"),
        (lambda: Numeric("n", 0, 1, float("nan")), "outside bounds"),
        (lambda: Categorical("c", ()), "empty"),
        (lambda: Categorical("c", ("a", "a")), "twice"),
        (lambda: Categorical("c", (1, 1.0)), "twice"),
        (lambda: Categorical("c", (True, False)), "quote it"),
        (lambda: Categorical("c", ("a",), "middle"), "not one of level, unknown, error"),
        (lambda: Label("y"), "either"),
        (lambda: Label("y", (0,)), "at least 2"),
        (lambda: Label("y", bounds=(1.0, 0.0)), "data.target_bounds"),
        (lambda: encoding(), "no feature column"),
        (lambda: encoding(Numeric("n", 0, 1), Numeric("n", 0, 1)), "twice"),
        (lambda: encoding(Numeric("n", 0, 1), shape=(1, 2, 2)), "does not hold the 1 encoded"),
    ],
)
def test_wrong_declarations_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
