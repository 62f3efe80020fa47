"""A row becomes one tensor by itself alone, and the description of it survives JSON, damaged or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.unexpected_values import Strays
from tests.data.parts import BINARY, encoding


def fitted_to_the_table(frame: pd.DataFrame) -> torch.Tensor:
    """Broken on purpose: bounds read from the rows, as a scaler that is fitted silently would."""
    values = frame["n"].astype(float)
    return encoding(Numeric("n", float(values.min()) - 1e-9, float(values.max()) + 1e-9)).encode(frame)


def declared(frame: pd.DataFrame) -> torch.Tensor:
    return encoding(Numeric("n", 0, 10)).encode(frame)


def depends_on_other_rows(encode: Callable[[pd.DataFrame], torch.Tensor]) -> bool:
    frame = pd.DataFrame({"n": ["1", "5", "9"]})
    whole = encode(frame)
    return any(not torch.allclose(whole[[row]], encode(frame.iloc[[row]]), atol=1e-6) for row in range(3))


@pytest.mark.parametrize("rows", [1, 16_384, 16_385, 100_000])
def test_a_long_table_is_encoded_as_its_rows_are(rows: int) -> None:
    """In blocks; one with a value beyond its bounds goes another way than the others, with the same bits."""
    values = np.random.default_rng(rows).uniform(-3, 7, (rows, 3))
    names = ["a", "b", "c"]
    one = encoding(*(Numeric(name, -3.0, 7.0) for name in names))
    strays = Strays()
    inside = one.encode(pd.DataFrame(values, columns=names), strays=strays)
    assert strays.counts() == {}
    assert torch.equal(inside, torch.from_numpy((values + 3.0) * 0.2 - 1.0).float())
    values[rows // 2, 1] = 9.0
    found = one.encode(pd.DataFrame(values, columns=names), strays=strays)
    assert strays.counts() == {"b": {"clipped": 1, "other": 0, "missing": 0}}
    inside[rows // 2, 1] = 1.0
    assert torch.equal(found, inside)


def test_a_row_is_encoded_from_itself_alone() -> None:
    assert not depends_on_other_rows(declared)
    assert depends_on_other_rows(fitted_to_the_table), "the check must notice a fitted scaler"


def test_places_of_levels_come_with_the_share_of_even_levels() -> None:
    found = encoding(Numeric("a", 0, 1, "middle", indicator=True), Categorical("c", ("x", "y"))).levels_of_columns
    assert found == {1: 0.0, 2: 0.5, 3: 0.5, 4: 0.0, 5: 0.0}  # a mark; two levels; any other value; a missing one


def test_columns_are_matched_by_name_and_extra_ones_ignored() -> None:
    both = encoding(Numeric("a", 0, 1), Numeric("b", 0, 1))
    frame = pd.DataFrame({"z": ["x"], "b": ["1"], "a": ["0"]})
    assert both.encode(frame).tolist() == [[-1, 1]]
    with pytest.raises(DataError, match=r"t.csv: 2 columns are missing: a, b; its columns are q"):
        both.encode(pd.DataFrame({"q": ["1"]}), "t.csv")


def test_images_are_scaled_by_the_declared_range() -> None:
    images = Encoding((), BINARY, shape=(1, 2, 2), pixel_bounds=(0.0, 255.0))
    pixels = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    assert torch.allclose(images.encode_images(pixels).flatten(), torch.tensor([-1, 1, -0.6, -0.2]))
    with pytest.raises(DataError, match=r"hold 9 values, the model takes 4, shape \(1, 2, 2\)"):
        images.encode_images(np.zeros((1, 3, 3)))
    with pytest.raises(
        DataError, match=r"images of shape \(4, 1\) hold 4 values, the model takes 4, shape \(1, 2, 2\)"
    ):
        images.encode_images(np.zeros((1, 4, 1)))
    with pytest.raises(DataError, match="image 2: a pixel is not finite"):
        images.encode_images(np.array([[0.0] * 4, [0, 0, np.nan, 0]]))
    with pytest.raises(DataError, match="takes images"):
        images.encode(pd.DataFrame({"a": ["1"]}))
    with pytest.raises(DataError, match="takes a table"):
        encoding(Numeric("n", 0, 1)).encode_images(pixels)


def test_encoding_survives_json() -> None:
    one = Encoding(
        (Numeric("n", 0, 1, 0.5, True), Numeric("m", 0, 1, "low"), Categorical("c", ("a", 1, 2.5), "a")),
        Label("t", bounds=(0.0, 2.0)),
        id="key",
        missing_values=("", "-"),
    )
    image = Encoding((), Label("y", ("cat", "dog")), shape=(3, 2, 2), pixel_bounds=(0.0, 1.0))
    for each in (one, image):
        assert Encoding.from_json(json.dumps(each.to_json())) == each
        assert Encoding.from_json(each.to_json()) == each


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(key=st.sampled_from(["columns", "label", "id", "missing_values", "shape", "pixel_bounds"]), value=json_values)
def test_damaged_json_is_a_data_error_or_an_encoding(key: str, value: Any) -> None:
    raw = encoding(Numeric("n", 0, 1)).to_json() | {key: value}
    with suppress(DataError):
        assert isinstance(Encoding.from_json(raw), Encoding)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{", '{"columns": 3}', "[" * 5000])
def test_json_that_is_no_encoding_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        Encoding.from_json(text)
