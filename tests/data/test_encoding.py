"""A row becomes one tensor by itself alone, and the description of it survives JSON, damaged or
not.
"""

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
from homo_dp.data.columns import Categorical, Date, Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.unexpected_values import Strays
from tests.data.parts import BINARY, encoding


def fitted_to_the_table(frame: pd.DataFrame) -> torch.Tensor:
    """Broken on purpose: bounds read from the rows, as a scaler that is fitted silently would."""
    values = frame["n"].astype(float)
    return encoding(Numeric("n", float(values.min()) - 1e-9, float(values.max()) + 1e-9)).encode(
        frame
    )


def declared(frame: pd.DataFrame) -> torch.Tensor:
    return encoding(Numeric("n", 0, 10)).encode(frame)


def depends_on_other_rows(encode: Callable[[pd.DataFrame], torch.Tensor]) -> bool:
    frame = pd.DataFrame({"n": ["1", "5", "9"]})
    whole = encode(frame)
    return any(
        not torch.allclose(whole[[row]], encode(frame.iloc[[row]]), atol=1e-6) for row in range(3)
    )


@pytest.mark.parametrize("rows", [1, 16_384, 16_385, 100_000])
def test_a_long_table_is_encoded_as_its_rows_are(rows: int) -> None:
    """In blocks; one with a value beyond its bounds goes another way than the others, with the
    same bits.
    """
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
    found = encoding(
        Numeric("a", 0, 1, "middle", indicator=True), Categorical("c", ("x", "y"))
    ).levels_of_columns
    # a mark; two levels; any other value; a missing one
    assert found == {1: 0.0, 2: 0.5, 3: 0.5, 4: 0.0, 5: 0.0}


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
        DataError,
        match=r"images of shape \(4, 1\) hold 4 values, the model takes 4, shape \(1, 2, 2\)",
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
        (
            Numeric("n", 0, 1, 0.5, True),
            Numeric("m", 0, 1, "low"),
            Categorical("c", ("a", 1, 2.5), "a"),
        ),
        Label("t", bounds=(0.0, 2.0)),
        id="key",
        missing_values=("", "-"),
    )
    image = Encoding((), Label("y", ("cat", "dog")), shape=(3, 2, 2), pixel_bounds=(0.0, 1.0))
    for each in (one, image):
        assert Encoding.from_json(json.dumps(each.to_json())) == each
        assert Encoding.from_json(each.to_json()) == each


MIXED = (
    Numeric("age", 0, 100, "middle", indicator=True),
    Numeric("smokes", 0, 1),  # bounds of a flag, whose curves say nothing
    Categorical("sex", ("f", "m")),
    Date("visit", "2020-01-01", "2020-12-31"),
    Numeric("income", -50, 50),
)


def one_square(x: np.float32) -> np.float32:
    return np.float32(np.float32(x * x) * np.float32(1.5)) - np.float32(0.5)


def one_root(x: np.float32) -> np.float32:
    u = np.float32(x + np.float32(1)) * np.float32(0.5)
    return np.float32(
        np.float32(u * np.float32(3)) - np.float32(np.sqrt(u) * np.float32(3.75))
    ) + np.float32(1)


def people(rows: int) -> pd.DataFrame:
    draw = np.random.default_rng(rows)
    found = {
        "age": draw.uniform(-10, 110, rows),
        "smokes": draw.integers(0, 2, rows),
        "sex": draw.choice(["f"], rows),
    }
    return pd.DataFrame({**found, "visit": "2020-07-01", "income": draw.normal(0, 30, rows)})


def test_curves_of_numbers_stand_behind_the_columns() -> None:
    plain, curved = (Encoding(MIXED, BINARY, curves=curves) for curves in (False, True))
    frame = pd.DataFrame(
        {"age": [75, None], "smokes": 1, "sex": "f", "visit": "2020-07-01", "income": [50, -20]}
    )
    rows = curved.encode(frame)
    assert (curved.width, curved.input_shape, rows.shape) == (
        plain.width + 4,
        (plain.width + 4,),
        (2, 13),
    )
    assert rows[:, :-4].equal(plain.encode(frame))
    assert rows[:, -4:-2].tolist() == [[-0.125, 1.0], [-0.5, pytest.approx((3 * 0.4**2 - 1) / 2)]]
    roots = [[1 + 3 * u - 3.75 * u**0.5 for u in row] for row in ((0.75, 1.0), (0.5, 0.3))]
    assert rows[:, -2:].tolist() == [pytest.approx(row, abs=1e-6) for row in roots]
    assert curved.levels_of_columns == plain.levels_of_columns
    even = np.linspace(0, 100, 10_001)
    ages = (
        encoding(Numeric("age", 0, 100), curves=True).encode(pd.DataFrame({"age": even})).double()
    )
    for curve in (1, 2):
        assert ages[:, curve].mean() == pytest.approx(0, abs=1e-3)
        assert (ages[:, 0] * ages[:, curve]).mean() == pytest.approx(0, abs=1e-3)
    assert (float(ages[:, 1].min()), float(ages[:, 1].max())) == (-0.5, 1.0)
    assert [float(ages[:, 2].min()), float(ages[:, 2].max())] == pytest.approx([-0.171875, 1.0])


@pytest.mark.parametrize("rows", [1, 7, 33, 16_385])
def test_a_curve_has_the_same_bits_wherever_its_row_stands(rows: int) -> None:
    """Of any number of rows, from any of them on, and if curves are appended to rows that have
    none.
    """
    plain, curved = (Encoding(MIXED, BINARY, curves=curves) for curves in (False, True))
    frame = people(rows)
    whole = curved.encode(frame)
    appended = curved.append_curves(plain.encode(frame))
    assert appended.dtype == torch.float32
    assert appended.is_contiguous()
    assert appended.equal(whole)
    assert curved.curved == (0, 8)
    exact = whole[:, [0, 8]].numpy()
    by_one = np.array([[*map(one_square, row), *map(one_root, row)] for row in exact])
    assert whole[:, -4:].equal(torch.from_numpy(by_one))
    for start in range(min(rows, 20)):
        assert curved.encode(frame[start:]).equal(whole[start:])
        assert curved.append_curves(plain.encode(frame)[start:]).equal(whole[start:])
    for row in range(min(rows, 20)):
        assert curved.encode(frame[row : row + 1]).equal(whole[row : row + 1])


def test_images_have_no_curves() -> None:
    with pytest.raises(
        DataError, match=r"data\.curves=true: curves are of the columns of a table, not of images"
    ):
        Encoding((), BINARY, shape=(1, 2, 2), pixel_bounds=(0.0, 255.0), curves=True)
    with pytest.raises(DataError, match=r"data\.curves"):
        encoding(*(Numeric(name, 0, 16) for name in "abcd"), shape=(1, 2, 2), curves=True)


def test_an_encoding_without_curves_is_written_as_before_there_were_any() -> None:
    plain, curved = (Encoding(MIXED, BINARY, curves=curves) for curves in (False, True))
    assert curved.to_json() == plain.to_json() | {"curves": True}
    assert "curves" not in plain.to_json()
    assert Encoding.from_json(json.dumps(curved.to_json())) == curved
    assert Encoding.from_json(plain.to_json()) == plain


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    key=st.sampled_from(
        ["columns", "label", "id", "missing_values", "shape", "pixel_bounds", "curves"]
    ),
    value=json_values,
)
def test_damaged_json_is_a_data_error_or_an_encoding(key: str, value: Any) -> None:
    raw = encoding(Numeric("n", 0, 1)).to_json() | {key: value}
    with suppress(DataError):
        assert isinstance(Encoding.from_json(raw), Encoding)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{", '{"columns": 3}', "[" * 5000])
def test_json_that_is_no_encoding_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        Encoding.from_json(text)
