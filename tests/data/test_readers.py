"""Tables: what is read, in whole and in pieces, and the one line that every bad file gets."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from homo_dp.core.errors import DataError
from homo_dp.data import readers
from homo_dp.data.csv_dialect import CsvForm
from homo_dp.data.readers import header, read_chunks, read_table

GOOD = b"a,b\n1,x\n2,\n3,?\n"
ROWS = [["1", "x"], ["2", ""], ["3", "?"]]


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read_in_pieces(path: Path) -> pd.DataFrame:
    return pd.concat(list(read_chunks(path, 2)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", GOOD),
        ("no_extension", GOOD),
        ("odd.weird", GOOD),
        ("bom.csv", b"\xef\xbb\xbf" + GOOD),
        ("windows.csv", GOOD.replace(b"\n", b"\r\n")),
        ("blank_lines.csv", GOOD + b"\n\n"),
        ("no_last_newline.csv", GOOD[:-1]),
        ("quoted.csv", b'"a","b"\n"1","x"\n2,""\n3,"?"\n'),
        ("zipped.csv.gz", gzip.compress(GOOD, mtime=0)),
        ("zipped_without_saying.csv", gzip.compress(GOOD, mtime=0)),
        ("not_zipped.csv.gz", GOOD),
    ],
)
def test_cells_are_the_text_of_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path, name, content)
    assert header(path) == ["a", "b"]
    for frame in (read_table(path), read_in_pieces(path)):
        assert list(frame.columns) == ["a", "b"]
        assert frame.to_numpy().tolist() == ROWS
        assert frame.index.tolist() == [0, 1, 2]


def test_quoted_newlines_and_commas(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", b'a,b\n"x,\ny","2""3"\n')
    assert read_table(path).to_numpy().tolist() == [["x,\ny", '2"3']]


def test_a_row_longer_than_a_block(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", b"a,b\n" + b"x" * 10_000_000 + b",2\n1,2\n")
    assert read_table(path)["b"].tolist() == ["2", "2"]


def test_parquet_keeps_types_and_ignores_a_stored_index(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": [1, 5, 3], "b": ["x", None, "z"]}).set_index("a").to_parquet(path)
    for frame in (read_table(path), read_in_pieces(path)):
        assert sorted(frame.columns) == ["a", "b"]
        assert frame["a"].tolist() == [1, 5, 3]
        assert frame["b"].isna().tolist() == [False, True, False]


def zipped(rows: int) -> bytes:
    return gzip.compress(
        b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * 7919 % 10007) for i in range(rows))
    )


BAD = {
    "empty.csv": (b"", "the file is empty"),
    "newlines.csv": (b"\n\n", "first line is empty"),
    "header_only.csv": (b"a,b\n", "header but no rows"),
    "header_without_newline.csv": (b"a,b", "header but no rows"),
    "twice.csv": (b"a,b,a\n1,2,3\n", "column 'a' stands twice"),
    "no_name.csv": (b"a,,b\n1,2,3\n", "column 2 of the header has no name"),
    "semicolons.csv": (b"a;b\n1,5;2\n", "it looks like data.separator=semicolon,data.decimal=','"),
    "tabs.csv": (b"a\tb\n1\t2\n", "it looks like data.separator=tab"),
    "short_row.csv": (b"a,b\n1,2\n3\n", "row 2 has 1 values where the header has 2"),
    "long_row.csv": (b"a,b\n1,2\n3,4\n5,6,7\n", "row 3 has 3 values"),
    "latin1.csv": ("a,b\n1,é\n".encode("latin1"), "not UTF-8; it looks like data.encoding=cp1252"),
    "utf16.csv": ("a,b\n1,é\n".encode("utf-16"), "it looks like data.encoding=utf-16"),
    "book.xlsx": (b"PK\x03\x04rest", "is a spreadsheet or archive; save the table as CSV"),
    "old.xls": (b"\xd0\xcf\x11\xe0rest", "is a spreadsheet"),
    "clinic.db": (b"SQLite format 3\0rest", "sqlite:///"),
    "t.json": (b'[{"a": 1, "b": 2}]', "is JSON; save the table as CSV or Parquet"),
    "t.arrow": (b"ARROW1\0\0", "save the table as Parquet"),
    "named_wrongly.csv": (b"PAR1rest", "give it the ending .parquet"),
    "latin1_header.csv": (
        "a,é\n1,2\n".encode("latin1"),
        "not UTF-8; it looks like data.encoding=cp1252",
    ),
    "cut.csv.gz": (zipped(5000)[:9000], "gzip data are damaged or cut off"),
    "cut_at_end.csv.gz": (zipped(100)[:-4], "gzip data are damaged or cut off"),
    "altered.csv.gz": (zipped(100)[:-8] + b"12345678", "gzip data are damaged"),
    "junk.parquet": (b"PAR1junkjunkPAR1", "not a readable Parquet file"),
    "short.parquet": (b"PA", "not a readable Parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_line(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    path = write(tmp_path, name, content)
    for read in (read_table, read_in_pieces):
        with pytest.raises(DataError, match=f"{name}: .*{message}") as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_cut_and_altered_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": range(100), "b": ["x"] * 100}).to_parquet(path)
    whole = path.read_bytes()
    for content in (whole[:-30], whole[: len(whole) // 2], whole[:4] + b"\xff" * 60 + whole[64:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="Parquet"):
            read_table(path)


def test_what_pandas_noted_in_a_parquet_file_may_be_damaged(tmp_path: Path) -> None:
    """It ended the command as a bug, although it is not needed."""
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    for number, noted in enumerate((b"\x81{", b"{", b"[]", b'{"columns": 1}')):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table.replace_schema_metadata({b"pandas": noted}), path)
        for read in (read_table, read_in_pieces):
            assert list(read(path).columns) == ["a", "b"]


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(DataError, match="not a regular file"):
        read_table("/dev/null")
    with pytest.raises(DataError):
        read_table("a\0b.csv")
    with pytest.raises(DataError, match="rows=0"):
        next(read_chunks(tmp_path, 0))


def test_pieces_are_small_and_in_order(tmp_path: Path) -> None:
    text = "n,t\n" + "".join(f"{i},{'x' * 50}\n" for i in range(20_000))
    for name, content in (("t.csv", text.encode()), ("t.csv.gz", gzip.compress(text.encode(), 1))):
        pieces = list(read_chunks(write(tmp_path, name, content), 3000))
        assert max(len(piece) for piece in pieces) <= 3000
        assert [int(n) for piece in pieces for n in piece["n"]] == list(range(20_000))
        assert pieces[-1].index[-1] == 19_999


def test_a_gzip_file_that_unpacks_to_far_more_than_a_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.9 MB took 5.4 GB."""
    monkeypatch.setattr(readers, "_SMALL", 1000)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1_000_000))
    for read in (read_table, read_in_pieces):
        with pytest.raises(DataError, match="unpacks to more than"):
            read(path)
    path.write_bytes(gzip.compress(b"a,b\n" + b"\n" * 1_000_000))  # of which no batch is made
    with pytest.raises(DataError, match="unpacks to more than"):
        read_in_pieces(path)


def test_a_first_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    """3 MB took all memory, and ended in a traceback."""
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a" * (1 << 25)))
    for read in (header, read_table, read_in_pieces):
        with pytest.raises(DataError, match="the first line has"):
            read(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.repeat(pa.scalar(1, pa.int64()), 1 << 20),
        pa.repeat(pa.scalar("a" * 1000), 1 << 14),
        pa.repeat(pa.scalar("a" * 1000, pa.large_string()), 1 << 14),
        pa.repeat(pa.scalar(b"a" * 1000), 1 << 14),
        pa.array([[1] * 100_000]),
        pa.array([{"b": [[1] * 100_000]}]),
        pa.array([[("a", [1] * 100_000)]], pa.map_(pa.string(), pa.list_(pa.int64()))),
        pa.repeat(pa.scalar(b"a" * 1000, pa.binary(1000)), 4000),
    ],
)
def test_a_parquet_file_whose_values_take_far_more_than_a_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pa.Array
) -> None:
    """1.7 KB took 4 GB: a value that is repeated is written once."""
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"a": column}), path, compression="zstd")
    read_table(path)  # which is small
    monkeypatch.setattr(readers, "_SMALL", 1000)
    for read in (read_table, lambda path: next(read_chunks(path))):
        with pytest.raises(DataError, match="its values take more than"):
            read(path)


def test_a_table_for_which_memory_is_short_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "too_large", lambda size: f"it needs {size} bytes")
    pq.write_table(pa.table({"a": ["xyz", None], "b": [1, 2]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="it needs 35 bytes; split"):
        read_table(tmp_path / "t.parquet")
    write(tmp_path, "t.csv.gz", gzip.compress(b"a;b\n1;2\n"))
    with pytest.raises(DataError, match="it needs 40 bytes; split"):
        read_table(tmp_path / "t.csv.gz", CsvForm(";"))


def test_a_date_that_python_does_not_have_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    days = pa.array([1, 2**30], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"day": days, "y": [0, 1]}), path)
    with pytest.raises(DataError, match=r"t\.parquet: not a readable Parquet file \(year"):
        read_table(path)
