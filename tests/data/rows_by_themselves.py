"""What each row of a table becomes, and the tables in which this must be the same.

A privacy guarantee compares two tables that differ in one row. It holds only if every other row has
the same encoding, label, user, side of the split and place in the order of batches in both.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import sqlite3
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st

from homo_dp.config.schema import Config
from homo_dp.data.declared import table_encoding
from homo_dp.data.raw_rows import raw_encoding
from homo_dp.data.readers import csv_form, read_table
from homo_dp.data.rows import encode_rows
from homo_dp.data.splitting import split_rows
from homo_dp.federation.users.user_rows import hashed_names
from tests.data.parts import config

Row = dict[str, Any]

COLUMNS: dict[str, Any] = {
    "serial": {"bounds": [0, 100]},  # no two rows are equal, so places tell rows apart
    "number": {"bounds": [-1000, 5000], "missing": "middle", "indicator": True},
    "count": {"bounds": [0, 10]},
    "word": {"levels": ["a", "1", "01", "true", "-999", "yes", "no", "9007199254740993"]},
    "code": {"levels": [1, 2, 0.5, -999], "missing": "error"},
    "day": {"date": ["2020-01-01", "2024-12-31"], "parts": ["days", "month"], "missing": "middle"},
}
MARKERS: tuple[tuple[str, ...], ...] = (
    ("", "NA", "NaN", "nan", "null"),
    ("-999",),
    ("", "-999.0", "?"),
    ("1", "true"),
    ("nan", "inf", " 7 "),
    ("0.5", "2020-02-03", "a"),
    ("1,5", "2"),
)
TEXTS = (
    *("1", "-999", "-999.0", "+3", " 1", "1 ", "7", "0.1", "-0.0", "1.", ".5", "1e400", "1e-400"),
    *("nan", "NaN", "-nan", "nan(x)", "inf", "Infinity", "true", "TRUE", "", "  ", "NA", "?"),
    *("\u0661\u0662", "1_000", "0x10", "1,5", "1.234,5", "1,234.5", "1 234", "\u00a01", "a"),
    *("yes", "no", "Yes", "01", "0.30000000000000004", "123456789.123456789", "9007199254740993"),
    *("2020-02-03", "2024-05-01T10:00", "03.02.2020", "free text " * 6, 'quote " here', "a\nb"),
)
NUMBERS = (0, 1, 2, 7, -999, 0.1, 0.5, -999.0, 1.0, -0.0, 1e300, float("nan"), float("inf"))
WIDE = (2**53 + 1, -(2**60))
PYTHON = (
    *(True, False, Decimal("1.50"), Decimal("-999.00"), Decimal("NaN"), Decimal("1E+900")),
    *(10**400, datetime.date(2020, 2, 3), datetime.datetime(2020, 2, 3, 4), b"1", b"\xff"),
    *(np.float32(0.1), np.int8(1), np.bool_(True), np.datetime64("2020-02-03"), pd.NaT, pd.NA),
)
USERS = ("7.0", "8.0", "7", "8", "9.00", "x", " x ", "7.5", "007", "-1.0", "", " ", "1e3", "true")
SIDES = ("train", "test", "Train ", "TEST", "valid", "")

Source = Callable[[list[Row], Path], pd.DataFrame]


def from_csv(rows: list[Row], folder: Path) -> pd.DataFrame:
    """Every cell as text, as a CSV file holds it."""
    with (folder / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_MINIMAL)
        writer.writeheader()
        writer.writerows(rows)
    return read_table(folder / "t.csv")


def from_sqlite(rows: list[Row], folder: Path) -> pd.DataFrame:
    """Columns without a type: each cell has its own."""
    file = folder / "t.db"
    file.unlink(missing_ok=True)
    names = list(rows[0])
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute(f"create table t ({', '.join(names)})")
        holes = ", ".join("?" for _ in names)
        connection.executemany(
            f"insert into t values ({holes})", [tuple(row.values()) for row in rows]
        )
        connection.commit()
    return read_table(f"sqlite:///{file}#t")


def from_parquet(rows: list[Row], folder: Path) -> pd.DataFrame:
    """Text columns, some of them dictionaries."""
    kinds = {"word": pa.dictionary(pa.int32(), pa.string()), "user": pa.large_string()}
    table = pa.table(
        {
            name: pa.array([row[name] for row in rows], pa.string()).cast(
                kinds.get(name, pa.string())
            )
            for name in rows[0]
        }
    )
    pyarrow.parquet.write_table(table, folder / "t.parquet")
    return read_table(folder / "t.parquet")


def from_objects(rows: list[Row], _: Path) -> pd.DataFrame:
    """A frame whose columns hold Python objects."""
    return pd.DataFrame(rows, dtype=object)


def from_inferred(rows: list[Row], _: Path) -> pd.DataFrame:
    """A frame whose types pandas guesses from all cells."""
    return pd.DataFrame({name: [row[name] for row in rows] for name in rows[0]})


def from_json(rows: list[Row], _: Path) -> pd.DataFrame:
    """A frame of JSON records."""
    return pd.DataFrame(json.loads(json.dumps(rows)))


# Columns with a declared type, and the cells that they may hold.
_WHOLES = (0, 1, 2, 7, -999, 2**53 + 1, -(2**60), None)
_REALS = (0.0, -0.0, 1.0, 2.0, 0.5, 0.1, -999.0, 1e300, float("inf"), float("nan"), None)
_DAYS = (datetime.date(2020, 2, 3), datetime.date(1990, 1, 1), None)
_TIMES = (datetime.datetime(2020, 2, 3, 4, 5), datetime.datetime(2024, 5, 1), None)
_DECIMALS = (Decimal("1.50"), Decimal("-999.00"), Decimal("2.00"), None)
_TYPES: dict[str, tuple[pa.DataType, Any, Sequence[Any]]] = {
    "int64": (pa.int64(), "Int64", _WHOLES),
    "int8": (pa.int8(), "Int8", (1, 2, 7, -9, None)),
    "float64": (pa.float64(), "Float64", _REALS),
    "float32": (pa.float32(), "Float32", (0.1, 0.5, 1.0, -999.0, float("nan"), None)),
    "bool": (pa.bool_(), "boolean", (True, False, None)),
    "date": (pa.date32(), None, _DAYS),
    "time": (pa.timestamp("us"), None, _TIMES),
    "decimal": (pa.decimal128(20, 2), None, _DECIMALS),
    "wholes": (pa.dictionary(pa.int8(), pa.int64()), "category", _WHOLES),
    "words": (pa.dictionary(pa.int8(), pa.string()), "category", (*TEXTS[:20], None)),
    "texts": (pa.string(), "string", (*TEXTS, None)),
    "bytes": (pa.binary(), None, (b"1", b"\xff", b"a", None)),
    "lists": (pa.list_(pa.int64()), None, ([1], [1, None], [], None)),
    "records": (pa.struct([("a", pa.int64())]), None, ({"a": 1}, {"a": None}, None)),
}


def _typed(name: str, schema: dict[str, str]) -> str:
    return schema.get(name, "int64")


def typed_parquet(schema: dict[str, str]) -> Source:
    """A Parquet file of this schema."""

    def read(rows: list[Row], folder: Path) -> pd.DataFrame:
        arrays = {
            name: pa.array([row[name] for row in rows], _TYPES[_typed(name, schema)][0])
            for name in rows[0]
        }
        pyarrow.parquet.write_table(pa.table(arrays), folder / "t.parquet")
        return read_table(folder / "t.parquet")

    return read


def typed_frame(schema: dict[str, str]) -> Source:
    """A frame of nullable and categorical types, and of types of Arrow."""

    def read(rows: list[Row], _: Path) -> pd.DataFrame:
        columns = {}
        for name in rows[0]:
            arrow, nullable, _pool = _TYPES[_typed(name, schema)]
            kind = pd.ArrowDtype(arrow) if nullable is None else nullable
            cells = [row[name] for row in rows]
            columns[name] = pd.Series(pd.array(cells, dtype=object)).astype(kind)
        return pd.DataFrame(columns)

    return read


@st.composite
def typed_tables(draw: st.DrawFn) -> tuple[list[Row], dict[str, str]]:
    """A schema, and two to five rows of it."""
    kinds = st.sampled_from(sorted(_TYPES))
    schema = {name: draw(kinds) for name in ("number", "count", "word", "code", "day", "user")}
    schema |= {"y": draw(st.sampled_from(["int64", "bool", "float64"])), "side": "texts"}
    rows = []
    for serial in range(draw(st.integers(2, 5))):
        row: Row = {"serial": serial}
        row |= {name: draw(st.sampled_from(_TYPES[kind][2])) for name, kind in schema.items()}
        rows.append(row | {"side": draw(st.sampled_from(SIDES))})
    return rows, schema


TEXT, MIXED = st.sampled_from(TEXTS), st.sampled_from((*TEXTS, *NUMBERS, None))
SOURCES: dict[str, tuple[Source, st.SearchStrategy[Any]]] = {
    "csv": (from_csv, TEXT),
    "parquet": (from_parquet, TEXT | st.none()),
    "sqlite": (from_sqlite, st.sampled_from((*TEXTS, *NUMBERS, *WIDE, None, b"1", b"\xff"))),
    "objects": (from_objects, st.sampled_from((*TEXTS, *NUMBERS, *WIDE, *PYTHON, None))),
    "inferred": (from_inferred, MIXED | st.sampled_from((True, False))),
    "json": (from_json, MIXED | st.sampled_from((True, False))),
}


@st.composite
def tables(draw: st.DrawFn, source: str) -> list[Row]:
    """Two to five rows: some columns hold plain values in most rows, as a real table does."""
    odd = SOURCES[source][1]
    typed = source not in ("csv", "parquet")
    plain: dict[str, Sequence[Any]] = {
        "number": (-999, 3.5, 1) if typed else ("-999", "3.5", "1"),
        "count": (1, 2) if typed else ("1", "2"),
        "word": ("a", "1"),
        "code": (1, 2, 0.5) if typed else ("1", "2.0", "0.5"),
        "day": ("2020-02-03", "2024-12-31"),
        "y": (0, 1) if typed else ("0", "1"),
        "user": (7.0, 8.0) if typed else ("7.0", "8.0"),
        "side": ("train", "test"),
    }
    special = {"user": st.sampled_from(USERS) | odd, "side": st.sampled_from(SIDES)}
    rows = []
    for serial in range(draw(st.integers(2, 5))):
        row: Row = {"serial": serial if typed else str(serial)}
        for name, usual in plain.items():
            common = st.sampled_from(usual)
            cell = draw(st.one_of(common, common, special.get(name, odd)))
            row[name] = cell
        rows.append(row)
    return rows


def settings_of(markers: Sequence[str], *, users: bool, sides: bool, german: bool) -> Config:
    """A config that reads these tables."""
    form: dict[str, Any] = {"decimal": ",", "thousands": "."} if german else {}
    given: dict[str, Any] = {"split_column": "side"} if sides else {"test_fraction": 0.5}
    given |= {"user_column": "user"} if users else {}
    left = [name for name, used in (("user", users), ("side", sides)) if not used]
    return config(
        files={"a": "t.csv"},
        columns=COLUMNS,
        missing_values=list(markers),
        drop=left,
        **given,
        **form,
    )


def each_row(frame: pd.DataFrame, config: Config) -> list[tuple[Any, ...]]:
    """All that training sees of each row: whether it fits, numbers, label, user, side and order."""
    data = config.data
    encoding = table_encoding(config, list(frame.columns), "t")
    data = data.model_copy(update={"partition": None})
    # the number of a row stands for its place in the table, which rows that are left out do not move
    frame = frame.set_axis(pd.RangeIndex(len(frame)))
    rows = encode_rows(frame, None, encoding, data, "t", leave_out=True)
    raw = encode_rows(frame, None, raw_encoding(encoding), data, "t", leave_out=True)
    (share,) = split_rows(data, rows, None, 1)
    numbers = dict(zip(raw.frame.index, raw.features.numpy(), strict=True))
    found: list[tuple[Any, ...]] = [("left out", at in numbers) for at in frame.index]
    for at, place in enumerate(rows.frame.index):
        name = None if rows.users is None else rows.users[at]
        key = None if name is None else int(hashed_names([name])[0])
        read = rows.features[at].numpy().tobytes(), numbers[place].tobytes()
        found[place] = (read, int(rows.labels[at]), name, key, at in share.test)
    return found


def one_row_changes_another(rows: list[Row], source: Source, folder: Path, config: Config) -> str:
    """What differs if one row alone is read, or any one other row is not there; empty if nothing."""
    csv_form(config.data)
    together = each_row(source(rows, folder), config)
    for at, row in enumerate(rows):
        if each_row(source([row], folder), config) != [together[at]]:
            return f"row {at} alone: {row}"
        fewer = each_row(source(rows[:at] + rows[at + 1 :], folder), config) if rows[1:] else []
        if fewer != together[:at] + together[at + 1 :]:
            return f"without row {at}: {row}"
    return ""
