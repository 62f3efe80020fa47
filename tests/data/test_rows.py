"""Encoded rows of one source: marked misfits, names as text, split columns, and views in the
order of the parts.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Numeric
from homo_dp.data.rows import encode_rows, gather, held_out_mask, texts
from tests.data.parts import config, encoding

AGE = encoding(Numeric("age", 0, 100))
FRAME = pd.DataFrame({"age": ["0", "abc", "100"], "y": [0, 1, 1], "user": ["u", "v", "u"]})


def test_a_row_that_does_not_fit_is_refused_or_left_out() -> None:
    data = config(user_column="user").data
    with pytest.raises(DataError, match=r"t\.csv: .*row 2"):
        encode_rows(FRAME, None, AGE, data, "t.csv")
    rows = encode_rows(FRAME, None, AGE, data, "t.csv", leave_out=True)
    assert "row 2" in str(rows.misfit)
    assert rows.features.flatten().tolist() == [-1.0, 1.0]
    assert (len(rows), rows.left_out, rows.classes) == (2, 1, 2)
    assert rows.users is not None
    assert rows.users.tolist() == ["u", "u"]


def test_a_missing_column_is_never_left_out_row_by_row() -> None:
    with pytest.raises(DataError, match="column 'age' is missing"):
        encode_rows(FRAME[["y"]], None, AGE, config().data, "t.csv", leave_out=True)


def test_some_rows_have_memory_of_their_own_and_cells_only_if_asked() -> None:
    rows = encode_rows(FRAME, None, AGE, config().data, "t.csv", leave_out=True)
    some = rows.at(np.array([1, 0]), cells=False)
    assert (some.features.flatten().tolist(), some.labels.tolist(), len(some.frame)) == (
        [1.0, -1.0],
        [1, 0],
        0,
    )
    some.features.zero_()
    assert rows.features[1, 0] == 1.0


def test_whole_numbers_as_floats_are_the_names_they_were() -> None:
    assert texts(pd.DataFrame({"u": [7.0, 8.0]}), "u", "t").tolist() == ["7", "8"]
    assert texts(pd.DataFrame({"u": ["7.0", "8.5"]}), "u", "t").tolist() == ["7", "8.5"]
    with pytest.raises(DataError, match="column 'u' row 2: empty"):
        texts(pd.DataFrame({"u": ["a", " "]}), "u", "t")


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        ("user_column", ["u", " ", "v"], "column 'c' row 2: empty"),
        ("split_column", ["train", "valid", "test"], "row 2: 'valid' is neither"),
        ("party_column", ["a", None, "a"], "column 'c' row 2: empty"),
    ],
)
def test_a_row_without_a_name_is_left_out(column: str, cells: list[str], said: str) -> None:
    """It was refused for the whole table, which told the aggregator that there is such a row."""
    frame = pd.DataFrame({"age": ["0", "50", "100"], "y": [0, 1, 1], "c": cells})
    named: dict[str, Any] = {column: "c"}
    data = config(**named).data
    rows = encode_rows(frame, None, AGE, data, "t.csv", leave_out=True)
    assert (len(rows), rows.left_out) == (2, 1)
    assert said in str(rows.misfit)


def test_a_split_column_says_train_or_test() -> None:
    assert held_out_mask(pd.DataFrame({"s": ["train", "TEST"]}), "s", "t").tolist() == [False, True]
    with pytest.raises(DataError, match="row 2: 'valid' is neither"):
        held_out_mask(pd.DataFrame({"s": ["train", "valid"]}), "s", "t")


def test_parts_are_views_of_one_tensor_in_their_order() -> None:
    rows = encode_rows(FRAME[::2].reset_index(drop=True), None, AGE, config().data, "t.csv")
    (first, labels), (second, _) = gather(rows, [np.array([1]), np.array([0])])
    assert (first.tolist(), labels.tolist(), second.tolist()) == ([[1.0]], [1], [[-1.0]])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    (same, _), (none, _) = gather(rows, [np.array([0, 1]), np.empty(0, dtype=np.int64)])
    # nothing was copied
    assert same.untyped_storage().data_ptr() == rows.features.untyped_storage().data_ptr()
    assert len(none) == 0
    assert torch.equal(same, rows.features)
