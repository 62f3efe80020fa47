"""Tables in memory under names that no file has."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from homo_dp.data.in_memory import MARK, held_in_memory, table_in_memory
from homo_dp.data.readers import header, read_table

FRAME = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})


def test_the_readers_find_them_while_the_block_lasts() -> None:
    with held_in_memory({"a": FRAME, "b": FRAME}) as names:
        assert names["a"] != names["b"]
        assert header(names["a"]) == ["x", "y"]
        assert read_table(names["b"]).shape == (2, 2)
    assert table_in_memory(names["a"]) is None


def test_they_go_even_where_the_block_fails() -> None:
    seen: list[str] = []

    def fail() -> None:
        with held_in_memory({"a": FRAME}) as names:
            seen.append(names["a"])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert table_in_memory(seen[0]) is None


def test_no_path_is_spelled_like_one() -> None:
    assert not str(Path(f"{MARK}1/a")).startswith(MARK)
    assert table_in_memory(Path("a.csv")) is None
