"""One notion of a value: what CSV, Parquet, frames and JSON hold for the same thing is the same
input.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Date, Label, Numeric
from homo_dp.data.csv_dialect import CsvForm
from homo_dp.data.encoding import Encoding
from homo_dp.data.parties import Scored, iter_tables
from homo_dp.data.readers import header, read_table
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import NumberForm, as_numbers, level_codes

TABLE = Encoding(
    (
        Categorical("member", ("false", "true")),
        Categorical("code", (1, 2, 3)),
        Numeric("amount", 0, 100),
        Date("since", "2020-01-01", "2021-12-31", ("days", "year", "month", "weekday")),
    ),
    Label("y", (0, 1)),
)
FRAME = pd.DataFrame(
    {
        "member": [True, False, True],
        "code": [1, 3, 2],
        "amount": [1.5, 2.0, 99.0],
        "since": pd.to_datetime(["2020-01-01", "2020-07-01", "2021-12-31"]),
    }
)


def as_csv(folder: Path) -> pd.DataFrame:
    FRAME.assign(member=["true", "FALSE", "True"]).to_csv(folder / "t.csv", index=False)
    return read_table(folder / "t.csv")


def as_parquet(folder: Path) -> pd.DataFrame:
    FRAME.to_parquet(folder / "t.parquet")
    return read_table(folder / "t.parquet")


def as_json(_: Path) -> pd.DataFrame:
    return pd.DataFrame(
        json.loads(
            FRAME.assign(since=FRAME["since"].dt.strftime("%Y-%m-%d")).to_json(orient="records")
        )
    )


def as_objects(_: Path) -> pd.DataFrame:
    frame = FRAME.astype(object)
    frame["amount"] = pd.Series([Decimal("1.50"), 2, "99"], dtype=object)
    frame["code"] = pd.Series([1.0, Decimal(3), " 2 "], dtype=object)
    frame["since"] = pd.Series(
        [datetime.date(2020, 1, 1), "2020-07-01T23:30", np.datetime64("2021-12-31")], dtype=object
    )
    return frame


def as_nullable(_: Path) -> pd.DataFrame:
    return FRAME.astype({"member": "boolean", "code": "Int64", "amount": "Float32"})


def as_numbers_for_booleans(_: Path) -> pd.DataFrame:
    return FRAME.assign(member=[1, 0, 1], code=np.array([1, 3, 2], dtype=np.float32))


@pytest.mark.parametrize(
    "read", [as_csv, as_parquet, as_json, as_objects, as_nullable, as_numbers_for_booleans]
)
def test_the_same_rows_are_the_same_inputs(read: Any, tmp_path: Path) -> None:
    strays = Strays()
    features = TABLE.encode(read(tmp_path), strays=strays)
    assert torch.equal(features, TABLE.encode(FRAME))
    assert features[:, 1].tolist() == [1, 0, 1], "true"
    assert strays.counts() == {}


def test_booleans_are_numbers_and_classes_too() -> None:
    for cells in ([True, False], ["TRUE", "false"], ["1", "0"]):
        series = pd.Series(cells, name="y")
        assert Label("y", ("false", "true")).encode(series, "t").tolist() == [1, 0]
        assert Label("y", (0, 1)).encode(series, "t").tolist() == [1, 0]
        assert as_numbers(series, (), "t").tolist() == [1, 0]


@pytest.mark.parametrize(
    "levels", [("No", "Yes"), ("f", "t"), ("N", "Y"), ("off", "on"), ("FALSE", "TRUE")]
)
def test_pairs_of_words_are_booleans(levels: tuple[str, str]) -> None:
    for cells in (
        [True, False],
        ["TRUE", "false"],
        ["1", "0"],
        [1.0, 0.0],
        ["yes", "no"],
        ["T", "F"],
        list(levels[::-1]),
    ):
        series = pd.Series(cells, name="y")
        assert Label("y", levels).encode(series, "t").tolist() == [1, 0]
        assert Label("y", (*levels, "unknown")).encode(series, "t").tolist() == [1, 0]


def test_a_word_alone_is_no_boolean() -> None:
    gender = pd.Series([False, 0, "F", "f"], dtype=object)
    assert level_codes(gender, ("M", "F"), ())[0].tolist() == [-1, -1, 1, -1]
    with pytest.raises(DataError, match="is not a number"):
        as_numbers(pd.Series(["no"], name="n"), (), "t.csv")


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"member": ["true", "maybe", ""], "code": [1, 2, 3], "amount": [1, 200, 300]}
    )
    frame["since"] = "2030-01-01"
    frame.to_csv(tmp_path / "t.csv", index=False)
    strays = Strays()
    pieces = list(iter_tables(tmp_path / "t.csv", TABLE, 2, Scored(strays=strays)))
    assert sum(map(len, pieces)) == 3
    assert strays.counts() == {
        "member": {"other": 1, "clipped": 0, "missing": 1},
        "amount": {"other": 0, "clipped": 2, "missing": 0},
        "since": {"other": 0, "clipped": 3, "missing": 0},
    }
    assert [line.split(":")[0] for line in strays.warnings(0.5)] == [
        "column 'amount'",
        "column 'since'",
    ]


def test_a_date_is_a_day_within_its_bounds() -> None:
    day = Encoding(
        (Date("d", "2020-01-01", "2020-01-03", format="%d.%m.%Y", missing="low", indicator=True),),
        TABLE.label,
    )
    cells = pd.DataFrame({"d": ["02.01.2020", "2020-01-03", "", "01.01.1990"]})
    assert day.encode(cells).tolist() == [[0, 0], [1, 0], [-1, 1], [-1, 0]]
    assert Encoding.from_json(json.loads(json.dumps(TABLE.to_json()))) == TABLE
    with pytest.raises(DataError, match=r"row 1: '5/6/20' is not a date"):
        TABLE.encode(FRAME.assign(since="5/6/20"), "t.csv")
    month = Encoding((Date("d", "2020-01-01", "2021-12-31", ("month", "weekday")),), TABLE.label)
    found = month.encode(pd.DataFrame({"d": ["2020-04-06"]}))  # a Monday
    np.testing.assert_allclose(found[0], [1, 0, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("cells", "form", "values"),
    [
        (["1,5", "1.234,5", "-7"], NumberForm(",", "."), [1.5, 1234.5, -7]),
        (["1 234 567", "12"], NumberForm(".", " "), [1234567, 12]),
        (["1,234.5"], NumberForm(".", ","), [1234.5]),
    ],
)
def test_numbers_as_banks_write_them(
    cells: list[str], form: NumberForm, values: list[float]
) -> None:
    assert as_numbers(pd.Series(cells), ("",), "t", form).tolist() == values


@pytest.mark.parametrize("cell", ["1.5", "1.23,4", "12.3456"])
def test_a_number_of_another_form_is_refused_not_guessed(cell: str) -> None:
    with pytest.raises(DataError, match="is not a number"):
        as_numbers(pd.Series([cell], name="n"), (), "t.csv", NumberForm(",", "."))


def test_advice_fits_what_stands_there() -> None:
    for cell, said in [
        ("the patient came in late at night", "free text"),
        ("2024-05-01", "it is a date"),
        ("1.234,50", "data.decimal"),
        ("tall", "data.missing_values"),
    ]:
        with pytest.raises(DataError, match=said):
            as_numbers(pd.Series([cell], name="n"), (), "t.csv")


def test_separator_encoding_and_the_row_numbers_of_pandas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(";größe;y\n0;zwölf;1\n".encode("latin1"))
    form = CsvForm(";", "latin1")
    assert header(path, form) == ["größe", "y"]
    assert read_table(path, form).iloc[0].tolist() == ["zwölf", "1"]
    with pytest.raises(DataError, match=r"data\.encoding"):
        header(path, CsvForm(";"))
    path.write_text("a\tb\n1\t2\n")
    with pytest.raises(DataError, match=r"it looks like data\.separator=tab"):
        header(path)
    pd.DataFrame({"a": [1, 2]}, index=[7, 9]).to_parquet(tmp_path / "t.parquet")
    assert header(tmp_path / "t.parquet") == ["a"]
    assert list(read_table(tmp_path / "t.parquet").columns) == ["a"]


@pytest.mark.parametrize("kind", ["parquet", "sqlite"])
def test_a_row_with_a_gap_does_not_change_how_other_rows_are_read(
    kind: str, tmp_path: Path
) -> None:
    """A column of whole numbers with a gap was read as floats, which have no room for long
    codes.
    """
    codes = [2**53 + 1, 2**53 + 3, 7]
    column = Categorical("code", tuple(map(str, codes)))
    read = []
    both: tuple[list[Any], list[Any]] = (codes, [*codes, None])
    for number, values in enumerate(both):
        frame = pd.DataFrame({"code": pd.array(values, dtype="Int64"), "y": [0] * len(values)})
        if kind == "parquet":
            frame.to_parquet(file := tmp_path / f"{number}.parquet")
            read.append(read_table(file))
        else:
            file = tmp_path / f"{number}.db"
            with contextlib.closing(sqlite3.connect(file)) as connection:
                connection.execute("create table t (code integer, y integer)")
                connection.executemany(
                    "insert into t values (?, ?)", [(value, 0) for value in values]
                )
                connection.commit()
            read.append(read_table(f"sqlite:///{file}#t"))
    inputs = [Encoding((column,), TABLE.label).encode(table) for table in read]
    assert torch.equal(inputs[0], inputs[1][:3])
    assert inputs[0][:, :3].equal(torch.eye(3))


@pytest.mark.parametrize("odd", ["n/a", 1.5, 7, None, 2**60])
@pytest.mark.parametrize("kept", [[1.0, 2.0, 0.1, 3.0], [1, 2, 2**53 + 1, 3]])
def test_one_odd_value_in_a_database_does_not_change_how_other_rows_are_read(
    odd: Any, kept: list[Any], tmp_path: Path
) -> None:
    """SQLite takes any value in any column; pandas would make text or floats of all for one."""
    texts = Encoding((Categorical("x", ("1", "2", "3", "0.1", str(2**53 + 1))),), TABLE.label)
    numbers = Encoding((Categorical("x", (1, 2, 3, 0.1, 2**53 + 1)),), TABLE.label)
    inputs = []
    for number, values in enumerate((kept, [*kept, odd])):
        file = tmp_path / f"{number}.db"
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("create table t (x, y)")
            connection.executemany("insert into t values (?, 0)", [(value,) for value in values])
            connection.commit()
        table = read_table(f"sqlite:///{file}#t")
        inputs.append([encoding.encode(table)[:4] for encoding in (texts, numbers)])
    assert all(torch.equal(one, other) for one, other in zip(*inputs, strict=True))
    assert inputs[0][0][:, :5].sum() == 4  # each is one of the levels
