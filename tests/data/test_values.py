"""Raw columns to numbers and codes, against a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.data.values import as_numbers, first_row, level_codes

cells = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**12), 10**12).map(str),
    st.sampled_from(["", "NA", " 7 ", "+3", "1e-5"]),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(cells, min_size=1, max_size=20))
def test_numbers_agree_with_python(texts: list[str]) -> None:
    found = as_numbers(pd.Series(texts, name="n"), ("", "NA"), "t")
    expected = [math.nan if text in ("", "NA") else float(text) for text in texts]
    np.testing.assert_array_equal(found, np.array(expected))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(["a", "b", " a", "", "1", "1.0", "01", "?", "zz"]), min_size=1, max_size=20
    )
)
def test_codes_agree_with_a_loop(texts: list[str]) -> None:
    codes, gaps = level_codes(pd.Series(texts), ("a", 1, "?"), ("", "?"))
    lookup = {"a": 0, " a": 0, "1": 1, "1.0": 1, "01": 1, "?": 2}
    assert codes.tolist() == [lookup.get(text, -1) for text in texts]
    assert gaps.tolist() == [text == "" for text in texts], "a declared level is never missing"


def test_text_levels_do_not_match_as_numbers() -> None:
    codes, _ = level_codes(pd.Series(["01234", "1234"]), ("1234",), ())
    assert codes.tolist() == [-1, 0]


def test_rows_count_from_one() -> None:
    assert first_row(np.array([False, True, True])) == 2
