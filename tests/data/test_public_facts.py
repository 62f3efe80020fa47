"""What a dry run knows: declared row counts win, files are counted only where none are, shapes
need no rows.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.public_facts import declared_encoding, planned_rows, public_shape
from tests.data.parts import COLUMNS, config, save


def test_declared_rows_need_no_file() -> None:
    found = planned_rows(
        config(files={"a": "gone.csv", "b": "gone.csv"}, columns=COLUMNS, rows={"a": 10, "b": 20})
    )
    assert found == ({"a": 10, "b": 20}, False)


def test_a_file_is_counted_where_its_rows_are_not_declared_and_that_is_said(tmp_path: Path) -> None:
    path = save(
        tmp_path, "a.csv", pd.DataFrame({"age": [1, 2, 3], "sex": ["f", "m", "f"], "y": [0, 1, 0]})
    )
    asked = config(files={"a": path}, columns=COLUMNS, classes=[0, 1], test_fraction=0.0)
    assert planned_rows(asked) == ({"a": 3}, True)


def test_nothing_to_count_in_names_the_party() -> None:
    with pytest.raises(
        ConfigError, match=r"data\.rows\.b: is not declared, and gone\.csv is not there"
    ):
        planned_rows(
            config(files={"a": "gone.csv", "b": "gone.csv"}, columns=COLUMNS, rows={"a": 10})
        )


def test_the_shape_follows_from_declarations() -> None:
    asked = config(files={"a": "gone.csv"}, columns=COLUMNS, classes=["ill", "well"])
    # a number, and two levels with two slots behind them
    assert public_shape(asked) == ((1 + 4,), ("ill", "well"))
    assert declared_encoding(asked).input_shape == (5,)


def test_an_image_is_flat_unless_the_model_wants_its_shape() -> None:
    image = {"shape": [1, 4, 5], "scale": [0, 255]}
    flat = config(files={"a": "gone.npz"}, image=image, classes=[0, 1])
    layers = config({"name": "cnn"}, files={"a": "gone.npz"}, image=image, classes=[0, 1])
    assert (public_shape(flat)[0], public_shape(layers)[0]) == ((20,), (1, 4, 5))


def test_no_column_is_said() -> None:
    with pytest.raises(DataError, match=r"data\.columns: is empty"):
        public_shape(config(files={"a": "gone.csv"}, classes=[0, 1]))


def test_the_shape_of_images_is_read_from_their_file_where_it_is_not_declared(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 6, 5), dtype=np.uint8), y=[0, 1, 0, 1])
    asked = config({"name": "cnn"}, files={"a": str(tmp_path / "a.npz")}, classes=[0, 1])
    assert public_shape(asked) == ((1, 6, 5), (0, 1))
    assert declared_encoding(asked).input_shape == (1, 6, 5)
