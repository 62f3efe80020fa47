"""Lists in Parquet files: what they take is known before they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from homo_dp.core.errors import DataError
from homo_dp.data.parquet_nested import nested_bytes
from homo_dp.data.readers import read_table
from tests.data.test_readers import read_in_pieces


def test_a_list_of_millions_of_values_in_a_kilobyte_is_refused(tmp_path: Path) -> None:
    """A billion took 8 GB."""
    many = 30_000_000
    values = pa.array(np.zeros(many, dtype=np.int8))
    lists = pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), values)
    pq.write_table(pa.table({"a": [1], "l": lists}), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 1000
    del values, lists
    for read in (read_table, read_in_pieces):
        with pytest.raises(DataError, match="its values take more than"):
            read(tmp_path / "t.parquet")


def test_nested_columns_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [["x", None]]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet")["b"].tolist() == [["x", None]]


def test_the_bytes_of_nested_columns_are_those_of_their_values(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 2], "l": [[1.0] * 1000, [2.0] * 1000]}), path)
    found = nested_bytes(path, ["l"], 1 << 20)
    assert found is not None
    assert 16_000 <= found <= 17_000


def test_a_file_that_is_no_parquet_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        nested_bytes(path, ["l"], 1 << 20)
