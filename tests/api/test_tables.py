"""Parties as Python has them: frames, paths and arrays; what cannot be a table is refused by its
party's name.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from homo_dp.api.tables import frame_of
from homo_dp.core.errors import DataError


def test_arrays_frames_and_paths_become_tables() -> None:
    pair = frame_of((np.arange(6).reshape(3, 2), [0, 1, 0]), "y", "a")
    assert isinstance(pair, pd.DataFrame)
    assert (list(pair.columns), list(pair["y"])) == (["x0", "x1", "y"], [0, 1, 0])
    assert frame_of(Path("a.csv"), "y", "a") == "a.csv"


def test_the_callers_frame_stays_as_it_is() -> None:
    given = pd.DataFrame({1: pd.Categorical(["u", "v"]), "y": [0, 1]}, index=[7, 9])
    made = frame_of(given, "y", "a")
    assert isinstance(made, pd.DataFrame)
    assert (list(made.columns), list(made.index), str(made["1"].dtype)) == (
        ["1", "y"],
        [0, 1],
        "object",
    )
    assert (list(given.columns), list(given.index)) == ([1, "y"], [7, 9])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([1, 2], "is a list"),
        ((np.zeros((2, 2)), [1]), "one label a row"),
        ((np.zeros(3), [1, 2, 3]), "rows times columns"),
        ((pd.DataFrame({"y": [1]}), [1]), "a column 'y' already"),
    ],
)
def test_what_is_not_a_table_is_refused_by_name(table: object, said: str) -> None:
    with pytest.raises(DataError, match=rf"parties\['bank'\]: .*{said}"):
        frame_of(table, "y", "bank")
