"""Rows as statistics read them: own units, codes of levels, gaps as NaN, whatever training would
refuse.
"""

import numpy as np
import pandas as pd
import pytest
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Date, Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.raw_rows import raw_encoding

COLUMNS = (
    Numeric("age", 0, 100),
    Categorical("sex", ("f", "m"), "error"),
    Date("visit", "2020-01-01", "2020-12-31"),
)
RAW = raw_encoding(Encoding(COLUMNS, Label("y", (0, 1))))


def test_values_stay_in_their_units_and_gaps_are_nan() -> None:
    frame = pd.DataFrame(
        {
            "age": ["50", "1e9", ""],
            "sex": ["m", "x", None],
            "visit": ["0001-01-02", "2020-06-01", "NA"],
        }
    )
    found = RAW.encode(frame)
    assert (found.dtype, tuple(found.shape)) == (torch.float64, (3, 3))
    np.testing.assert_array_equal(found[:, 0], [50.0, 1e9, np.nan])  # not clipped
    np.testing.assert_array_equal(found[:, 1], [1.0, 2.0, np.nan])  # behind the levels: any other
    # days since the first of the year 1
    np.testing.assert_array_equal(found[:, 2], [2.0, 737577.0, np.nan])


def test_a_row_does_not_depend_on_the_others() -> None:
    frame = pd.DataFrame(
        {"age": ["50", "7"], "sex": ["m", "f"], "visit": ["2020-01-01", "2020-01-02"]}
    )
    assert torch.equal(RAW.encode(frame)[1:], RAW.encode(frame[1:]))


def test_what_is_no_number_or_not_there_is_refused() -> None:
    frame = pd.DataFrame({"age": ["fifty"], "sex": ["m"], "visit": ["2020-01-01"]})
    with pytest.raises(DataError, match=r"north\.csv: .*'age' row 1"):
        RAW.encode(frame, "north.csv")
    with pytest.raises(DataError, match="column 'visit' is missing"):
        RAW.encode(frame[["age", "sex"]], "north.csv")


def test_images_have_no_statistics() -> None:
    images = Encoding((), Label("y", (0, 1)), shape=(1, 2, 2), pixel_bounds=(0.0, 255.0))
    with pytest.raises(DataError, match="not of images"):
        raw_encoding(images)
