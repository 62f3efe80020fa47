"""Tables from CSV (also .gz) and Parquet files, and from databases.

CSV cells stay the text that the file holds: predictions can repeat them unchanged, a missing-value
marker is not guessed, and `columns.py` converts only the columns that it was told about.
"""

from __future__ import annotations

import collections
import csv
import ctypes
import gzip
import io
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from homo_dp.config.addresses import masked
from homo_dp.core.errors import DataError, printable
from homo_dp.core.memory import too_large
from homo_dp.data.csv_dialect import (
    COMMAS,
    SAMPLE,
    CsvForm,
    form_keys,
    guess_form,
    likely_separator,
)
from homo_dp.data.databases import (
    database_columns,
    is_database,
    read_database,
    read_database_chunks,
)
from homo_dp.data.in_memory import table_in_memory
from homo_dp.data.parquet_nested import nested_bytes
from homo_dp.data.values import NumberForm

if TYPE_CHECKING:
    from os import PathLike

    from homo_dp.config.data import DataConfig

log = logging.getLogger(__name__)
_PARQUET = (".parquet", ".pq")
# the first column of a CSV or Parquet file that pandas wrote with its row numbers
_INDEX = ("", "__index_level_0__")
_BLOCK = 1 << 20  # bytes that Arrow parses at a time, several of them at once; a row must fit
_LARGEST_BLOCK = 1 << 28
_GZIP = b"\x1f\x8b"
# A table compresses 3 to 50 times; 1,000 times is a file that was made to fill the memory.
_MOST_RATIO, _SMALL = 200, 1 << 26
# Parquet writes a value that is repeated once, and a column of one value in a few bytes.
_MOST_PARQUET_RATIO = 1000
# of a nested column each value becomes an object of Python, for at least a byte that Arrow takes
_PYTHON_VALUE = 8
_OF_TEXT = (
    pyarrow.types.is_string,
    pyarrow.types.is_large_string,
    pyarrow.types.is_binary,
    pyarrow.types.is_large_binary,
)
_LONGEST_HEADER = 1 << 24  # characters of the first line
MANY_COLUMNS = 5_000  # a table with more gets a warning
MOST_COLUMNS = 100_000
_TEXT = {pa.string(): pd.StringDtype("pyarrow"), pa.large_string(): pd.StringDtype("pyarrow")}
# wider than what a float64 holds
_WHOLE = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}
_NO_ROWS = "the table has a header but no rows; put at least one row below it"
# How files begin that are no CSV, and what to do with them.
_OTHER_FILES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "is a spreadsheet or archive; save the table as CSV, or unpack it"),
    (b"\xd0\xcf\x11\xe0", "is a spreadsheet; save the table as CSV"),
    (b"SQLite format 3\0", "is an SQLite database; name a table in it as sqlite:///{file}#TABLE"),
    (b"PAR1", "is Parquet; give it the ending .parquet"),
    (b"ARROW1", "is an Arrow file; save the table as Parquet"),
    (b"%PDF", "is a PDF; save the table as CSV"),
)
_JSON = (".json", ".jsonl", ".ndjson")


def csv_form(data: DataConfig) -> CsvForm:
    """How the config says that CSV files are written."""
    return CsvForm(data.separator, data.encoding)


def number_form(data: DataConfig) -> NumberForm:
    """How the config says that numbers are written."""
    return NumberForm(data.decimal, data.thousands)


def sniff(path: str | PathLike[str]) -> tuple[CsvForm, NumberForm]:
    """The form of a CSV file and of its numbers, guessed; the plain forms for Parquet and
    databases.
    """
    if is_database(path) or is_parquet(checked(path)):
        return COMMAS, NumberForm()
    return guess_form(_start(Path(path)))


def read_table(
    path: str | PathLike[str], form: CsvForm = COMMAS, *, may_be_empty: bool = False
) -> pd.DataFrame:
    """The whole table, rows in the order of the file; CSV cells as text, Parquet columns with
    their types.

    Args:
        path: a file, the address of a table in a database, or the name of a table in memory.
        form: how a CSV file is written.
        may_be_empty: take a table without rows; a party must not tell others that its table has
            none.

    Raises:
        DataError: the table cannot be read, or has no rows.
    """
    held = table_in_memory(path)
    if held is not None:
        if len(held) == 0 and not may_be_empty:
            raise DataError(f"{path}: {_NO_ROWS}")
        return held
    if is_database(path):
        found = read_database(path)
        _checked_names([str(name) for name in found.columns], masked(str(path)))
        if len(found) == 0 and not may_be_empty:
            raise DataError(f"{masked(str(path))}: the table has no rows")
        return found
    file = checked(path)
    names = header(file, form)
    with _explained(file, names, form):
        if is_parquet(file):
            if (problem := too_large(_check_values(file))) is not None:
                raise DataError(f"{file}: {problem}; split the file")
            table = _parquet().read_table(file).select(names)
        else:
            _check_unpacked(file, form)
            table = _with_block_that_fits(lambda size: _read_csv(file, names, size, form))
        frame = _to_pandas(table)  # Python has no date after the year 9999
    if len(frame) == 0 and not may_be_empty:
        raise DataError(f"{file}: {_NO_ROWS}")
    return frame


def read_chunks(
    path: str | PathLike[str], rows: int = 50_000, form: CsvForm = COMMAS
) -> Iterator[pd.DataFrame]:
    """The table in pieces of at most `rows` rows, in order, in memory that does not grow with
    the file.
    """
    if rows < 1:
        raise DataError(f"rows={rows} must be at least 1")
    if is_database(path):
        yield from read_database_chunks(path, rows)
        return
    file = checked(path)
    names = header(file, form)
    seen = 0
    with _explained(file, names, form):
        for batch in _batches(file, names, rows, form):
            for start in range(0, batch.num_rows, rows):
                piece = _to_pandas(pa.Table.from_batches([batch.slice(start, rows)]))
                piece.index = pd.RangeIndex(seen, seen + len(piece))
                seen += len(piece)
                yield piece
    if seen == 0:
        raise DataError(f"{file}: {_NO_ROWS}")


def give_back_memory() -> None:
    """Let the system have what Arrow and malloc hold for tables to come: after one that is not
    needed any more.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def header(path: str | PathLike[str], form: CsvForm = COMMAS) -> list[str]:
    """Column names of a table, checked: none twice, none empty, and not one column that should be
    many.

    Row numbers that pandas wrote as a first column without a name are left out, here and where rows
    are read.
    """
    return _checked_names(_names(path, form), masked(str(path)))


def has_row_numbers(path: str | PathLike[str], form: CsvForm = COMMAS) -> bool:
    """Whether a column without a name, where pandas writes row numbers, is left out."""
    return _row_numbers(_names(path, form)) is not None


def _names(path: str | PathLike[str], form: CsvForm) -> list[str]:
    held = table_in_memory(path)
    if held is not None:
        return [str(name) for name in held.columns]
    if is_database(path):
        return database_columns(path)
    file = checked(path)
    with _explained(file, (), form):
        if is_parquet(file):
            return [str(name) for name in _parquet().read_schema(file).names]
        return _csv_header(file, form)


def _row_numbers(names: Sequence[str]) -> str | None:
    """The name under which a column of row numbers stands: none in CSV, and last in Parquet."""
    if len(names) > 1:
        return next(
            (name for name, at in ((_INDEX[0], 0), (_INDEX[1], -1)) if names[at] == name), None
        )
    return None


def _checked_names(names: list[str], file: str) -> list[str]:
    if len(names) > MOST_COLUMNS:
        raise DataError(
            f"{file}: has {len(names)} columns, at most {MOST_COLUMNS} can be read; keep the "
            "columns that you use, or store wide records as arrays in an .npz file"
        )
    if len(names) > MANY_COLUMNS:
        log.warning(
            "%s: has %d columns; reading and encoding them takes a while",
            printable(file),
            len(names),
        )
    twice = sorted(name for name, times in collections.Counter(names).items() if times > 1)
    if twice:
        raise DataError(
            f"{file}: column {twice[0]!r} stands twice in the header; rename or remove one of them"
        )
    numbers = _row_numbers(names)
    if numbers is not None:
        names.remove(numbers)
    if "" in names:
        raise DataError(
            f"{file}: column {names.index('') + 1} of the header has no name; name it or remove it"
        )
    return names


def column_types(path: str | PathLike[str]) -> dict[str, str]:
    """`text` or `number` for the columns of a file that states types of them (Parquet); no row is
    read.

    A number in a column of text, or a code in one of numbers, is not known here: a person checks.
    """
    if (
        table_in_memory(path) is not None
        or is_database(path)
        or not is_parquet(file := checked(path))
    ):
        return {}
    with _explained(file, (), COMMAS):
        schema = _parquet().read_schema(file)
    found = {}
    for field in schema:
        kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
        words = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
        plain = (
            pyarrow.types.is_integer(kind)
            or pyarrow.types.is_floating(kind)
            or pyarrow.types.is_decimal(kind)
        )
        if words or plain:
            found[str(field.name)] = "text" if words else "number"
    return found


def _parquet() -> Any:
    """Arrow's module for Parquet, which a run on CSV files does not need."""
    import pyarrow.parquet

    return pyarrow.parquet


def is_parquet(file: Path) -> bool:
    return file.suffix.lower() in _PARQUET


def checked(path: str | PathLike[str]) -> Path:
    """The path of an existing, readable file that is not empty."""
    file = Path(path)
    try:
        if file.is_dir():
            raise DataError(f"{file}: is a directory, not a table; name the file inside it")
        if not file.exists():
            raise DataError(
                f"{file}: no such file; check the path (relative paths start at the working "
                "directory)"
            )
        if not file.is_file():
            raise DataError(f"{file}: is not a regular file; write the table to a file first")
        if file.stat().st_size == 0:
            raise DataError(f"{file}: the file is empty; a table needs a header and rows")
        with file.open("rb"):
            return file
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file}: cannot be read ({reason(error)}); give the permission, or name another"
        ) from None


def reason(error: BaseException) -> str:
    """What an exception of the system or of Arrow says, on one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


def _csv_header(file: Path, form: CsvForm) -> list[str]:
    _check_is_text(file)
    with _stream(file) as raw, io.TextIOWrapper(raw, encoding=form.codec, newline="") as text:
        names = next(csv.reader(_header_lines(text, file), delimiter=form.separator), [])
    if not any(name.strip() for name in names):
        raise DataError(f"{file}: the first line is empty; a table needs a header")
    if len(names) == 1 and likely_separator(names[0]) not in (form.separator, None):
        raise DataError(
            f"{file}: the columns are not separated by {form.separator!r}; {_form_advice(file)}"
        )
    return names


def _header_lines(text: io.TextIOWrapper, file: Path) -> Iterator[str]:
    """The lines of a file, without taking one that is as long as the memory."""
    while line := text.readline(_LONGEST_HEADER):
        if len(line) == _LONGEST_HEADER:
            raise DataError(
                f"{file}: the first line has {_LONGEST_HEADER} characters or more; a table has a "
                "header and one line for each row"
            )
        yield line


def _start(file: Path) -> bytes:
    """The first bytes of a file, unpacked; none where the gzip data are damaged, as the reader
    says then.
    """
    try:
        with file.open("rb") as raw:
            return gzip.GzipFile(fileobj=raw).read(SAMPLE) if _is_gzip(file) else raw.read(SAMPLE)
    except (OSError, EOFError):
        return b""


def _form_advice(file: Path) -> str:
    """The keys that fit how a file is written, as --params takes them."""
    keys = form_keys(*guess_form(_start(file)))
    said = ",".join(f"data.{key}={_param(value)}" for key, value in keys.items())
    return (
        f"it looks like {said}"
        if said
        else "say data.separator and data.encoding, or save the table as UTF-8 CSV"
    )


def _param(value: str) -> str:
    return f"'{value}'" if value in ",.|" else value


def _check_is_text(file: Path) -> None:
    """Refuse what is another kind of file by how it begins, or by its ending where that is not
    certain.
    """
    if file.suffix.lower() in _JSON:
        raise DataError(
            f"{file}: is JSON; save the table as CSV or Parquet (pandas: read_json, then "
            "to_parquet)"
        )
    with file.open("rb") as raw:
        begins = raw.read(16)
    for magic, what in _OTHER_FILES:
        if begins.startswith(magic):
            raise DataError(f"{file}: {what.format(file=file)}")


def _read_csv(file: Path, names: Sequence[str], block: int, form: CsvForm) -> pa.Table:
    with _stream(file) as stream:
        return pyarrow.csv.read_csv(
            stream, **_csv_options(names, block, form, newlines=_has_quotes(file))
        )


def _batches(
    file: Path, names: Sequence[str], rows: int, form: CsvForm
) -> Iterator[pa.RecordBatch]:
    if is_parquet(file):
        _check_values(file)
        with _parquet().ParquetFile(file) as parquet:
            yield from (
                batch.select(list(names)) for batch in parquet.iter_batches(batch_size=rows)
            )
        return
    with (
        _stream(file) as unpacked,
        _bounded(unpacked, file) as stream,
        # Closed on every way out: threads of a reader that is still reading can abort the process
        # at its end.
        pyarrow.csv.open_csv(stream, **_csv_options(names, _BLOCK, form, newlines=True)) as reader,
    ):
        yield from reader


def _csv_options(
    names: Sequence[str], block: int, form: CsvForm, *, newlines: bool
) -> dict[str, Any]:
    encoding = "utf8" if form.is_utf8 else form.encoding
    return {
        "read_options": pyarrow.csv.ReadOptions(block_size=block, encoding=encoding),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=form.separator, newlines_in_values=newlines
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()),
            strings_can_be_null=False,
            include_columns=list(names),
        ),
    }


def _most_unpacked(file: Path) -> int:
    return max(_SMALL, _MOST_RATIO * file.stat().st_size)


def _unpacks_to_more(file: Path, most: int) -> DataError:
    return DataError(
        f"{file}: unpacks to more than {most} bytes, {_MOST_RATIO} times its size; if it is meant, "
        "unpack it first"
    )


def _check_unpacked(file: Path, form: CsvForm) -> None:
    """Refuse a gzip file that unpacks to far more than a table does, before it fills the memory."""
    if not _is_gzip(file):
        return
    most = _most_unpacked(file)
    separator = form.separator.encode()
    with gzip.GzipFile(file) as stream:
        size = cells = 0
        while piece := stream.read(_BLOCK):
            size += len(piece)
            cells += piece.count(separator) + piece.count(b"\n")
            if size > most:
                raise _unpacks_to_more(file, most)
    # Arrow keeps the text and, of each cell, where it ends
    if (problem := too_large(size + 8 * cells)) is not None:
        raise DataError(f"{file}: {problem}; split the file")


def _check_values(file: Path) -> int:
    """About how many bytes the values of a Parquet file take; DataError for one that declares far
    more than a table of its size, before it fills the memory.
    """
    most = max(_SMALL, _MOST_PARQUET_RATIO * file.stat().st_size)
    # not by the row groups: on a damaged file pyarrow ends the process where it is asked for them
    facts = _parquet().read_metadata(file)
    size: int = 8 * facts.num_rows * facts.num_columns
    if size <= most:
        size += _length_of_texts(file, most)
    if size <= most and (names := _nested_columns(file)):
        found = nested_bytes(file, names, most)
        size += most if found is None else _PYTHON_VALUE * found
    if size > most:
        raise DataError(
            f"{file}: its values take more than {most} bytes, {_MOST_PARQUET_RATIO} times its "
            "size; write it as several files"
        )
    return size


def _nested_columns(file: Path) -> list[str]:
    """Columns of lists and the like, whose length does not follow from the count of rows."""
    types = pyarrow.types
    plain = (types.is_primitive, types.is_null, types.is_decimal, *_OF_TEXT)
    return [
        field.name
        for field in _parquet().ParquetFile(file).schema_arrow
        if not any(is_one(field.type) for is_one in plain)
    ]


def _length_of_texts(file: Path, most: int) -> int:
    """Bytes of all texts of a Parquet file: repeated ones are not copied to count them. It stops
    above ``most``.
    """
    arrow = _parquet().ParquetFile(file).schema_arrow
    names = [field.name for field in arrow if any(is_one(field.type) for is_one in _OF_TEXT)]
    size = 0
    with _parquet().ParquetFile(file, read_dictionary=names) as parquet:
        for batch in parquet.iter_batches(columns=names) if names else ():
            for column in batch.columns:
                lengths = pyarrow.compute.binary_length(column.dictionary)
                size += pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0
            if size > most:
                break
    return size


def _has_quotes(file: Path) -> bool:
    """Only a quoted value can hold a newline; allowing for one costs a fifth of the time, the
    search nothing.
    """
    if _is_gzip(file):
        return True
    with file.open("rb") as raw:
        return any(b'"' in piece for piece in iter(lambda: raw.read(_BLOCK), b""))


def _with_block_that_fits(read: Callable[[int], pa.Table]) -> pa.Table:
    """Arrow parses block by block and refuses a row that is longer than two blocks; only the
    error's text says so.
    """
    block = _BLOCK
    while True:
        try:
            return read(block)
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error) or block >= _LARGEST_BLOCK:
                raise
            block *= 16


class _Unpacked:
    """A stream that is refused once it has given more bytes than a table of its size unpacks to."""

    closed = False

    def __init__(self, stream: pa.NativeFile, file: Path) -> None:
        self._stream, self._file, self._most = stream, file, _most_unpacked(file)
        self._size = 0

    def read(self, count: int) -> bytes:
        piece: bytes = self._stream.read(count)
        self._size += len(piece)
        if self._size > self._most:
            raise _unpacks_to_more(self._file, self._most)
        return piece

    def close(self) -> None:
        """The stream is closed by whoever opened it."""


@contextmanager
def _bounded(stream: pa.NativeFile, file: Path) -> Iterator[pa.NativeFile]:
    if not _is_gzip(file):
        yield stream
        return
    with pa.PythonFile(_Unpacked(stream, file), mode="r") as found:
        yield found


@contextmanager
def _stream(file: Path) -> Iterator[pa.NativeFile]:
    with pa.input_stream(str(file), compression="gzip" if _is_gzip(file) else None) as stream:
        yield stream


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    """Whole numbers stay whole beside a missing one: as floats, one row would change how all
    others are read.
    """
    # what pandas noted in the file is not needed, and pyarrow reads it even where it ignores it
    table = table.replace_schema_metadata(None)
    frame: pd.DataFrame = table.to_pandas(types_mapper=_TEXT.get, split_blocks=True)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.type in _WHOLE and column.null_count:
            frame[name] = column.to_pandas(types_mapper=_WHOLE.get)
        elif pyarrow.types.is_nested(column.type):  # one gap makes floats of all whole numbers
            frame[name] = pd.Series(column.to_pylist(), dtype=object)
    return frame


@contextmanager
def _explained(file: Path, names: Sequence[str], form: CsvForm) -> Iterator[None]:
    """Whatever Arrow or the system says becomes one line that names the file and what to do."""
    try:
        yield
    except DataError:
        raise
    except MemoryError:  # Arrow's, too
        raise DataError(f"{file}: does not fit into memory; split the file") from None
    except (pa.ArrowException, OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        text = reason(error)
        if is_parquet(file):
            raise DataError(
                f"{file}: not a readable Parquet file ({text}); write it again"
            ) from None
        if isinstance(error, UnicodeDecodeError):
            raise DataError(
                f"{file}: the text is not {form.encoding.upper()}; {_form_advice(file)}"
            ) from None
        if "Empty CSV" in text:
            raise DataError(f"{file}: {_NO_ROWS}") from None
        if "UTF8" in text:
            raise DataError(
                f"{file}: the text is not {form.encoding.upper()}; {_form_advice(file)}"
            ) from None
        if "Expected" in text and "columns" in text:
            raise DataError(f"{file}: {_uneven_row(file, form)}") from None
        if _is_gzip(file):
            raise DataError(
                f"{file}: the gzip data are damaged or cut off ({text}); copy the file again"
            ) from None
        raise DataError(f"{file}: not a readable CSV table ({text})") from None


def _uneven_row(file: Path, form: CsvForm) -> str:
    """Find the row that Arrow stumbled over; its own message does not always number it."""
    with file.open("rb") as raw:
        opened = gzip.GzipFile(fileobj=raw) if _is_gzip(file) else raw
        text = io.TextIOWrapper(
            cast(IO[bytes], opened), encoding=form.codec, newline="", errors="replace"
        )
        rows = csv.reader(text, delimiter=form.separator)
        filled = (row for row in rows if row)
        columns = len(next(filled, ()))
        for number, row in enumerate(filled, start=1):
            if len(row) != columns:
                return (
                    f"row {number} has {len(row)} values where the header has {columns}; fix or "
                    "quote its values"
                )
    return f"a row does not have the {columns} values of the header; fix or quote its values"


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as raw:
        return raw.read(2) == _GZIP
