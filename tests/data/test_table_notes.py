"""Findings about a table, for its owner: which mistakes are found, and that good tables have none."""

from __future__ import annotations

import pandas as pd

from homo_dp.config.schema import DataConfig
from homo_dp.data.columns import Categorical, Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.rows import encode_rows
from homo_dp.data.table_notes import MOST_NOTES, shown_notes

CODED = Encoding(
    (Numeric("chol", 0, 10), Categorical("sex", ("m", "f"))), Label("y", (0, 1)), id="id"
)
GOOD = {"id": [1, 2, 3, 4], "chol": [4, 5, 6, 7], "sex": ["m", "f", "m", "f"], "y": [0, 1, 0, 1]}


def notes(drop: tuple[str, ...] = (), **changes: object) -> tuple[str, ...]:
    """The findings about four good rows with some columns or settings changed."""
    data = DataConfig(drop=drop)
    frame = pd.DataFrame(GOOD | changes)
    return encode_rows(frame, None, CODED, data, "a.csv").notes


def test_a_good_table_has_none() -> None:
    assert notes() == ()
    assert notes(chol=[4, 5, 6, 70]) == (), "a quarter outside the bounds is what bounds are for"


def test_a_column_outside_its_bounds_is_found() -> None:
    (note,) = notes(chol=[180, 190, 200, 210])
    assert note.startswith("a.csv: column 'chol': 4 of 4 values (100 %) are outside the declared")


def test_a_column_without_any_declared_category_is_found() -> None:
    (note,) = notes(sex=["male", "female", "male", "female"])
    assert "column 'sex': 4 of 4 values (100 %) are none of the declared categories" in note


def test_labels_of_one_class_are_found() -> None:
    assert notes(y=[1, 1, 1, 1]) == (
        "a.csv: label 'y': all 4 rows are of one class; check data.label and the file",
    )


def test_ids_that_occur_twice_are_found_and_their_values_not_repeated() -> None:
    (note,) = notes(id=[17, 18, 17, 17])
    assert "2 rows have the id of an earlier row, the first is row 3" in note
    assert "17" not in note


def test_a_dropped_name_that_is_almost_a_column_is_found() -> None:
    assert notes(drop=("Chol",)) == (
        "a.csv: data.drop: there is no column 'Chol' (did you mean 'chol'?)",
    )
    assert notes(drop=("comment",)) == (), "another party's table may have it"


def test_only_the_first_findings_are_shown_one_by_one() -> None:
    found = tuple(f"finding {number}" for number in range(MOST_NOTES + 3))
    shown = shown_notes(found)
    assert shown[:MOST_NOTES] == list(found[:MOST_NOTES])
    assert "3 more" in shown[-1]
    assert shown_notes(()) == []
