"""A row is read by itself: no other row changes its numbers, its user, its side or its order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.rows_by_themselves import (
    MARKERS,
    SOURCES,
    Row,
    Source,
    one_row_changes_another,
    settings_of,
    tables,
    typed_frame,
    typed_parquet,
    typed_tables,
)


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_row_changes_another(source: str, data: st.DataObject) -> None:
    rows = data.draw(tables(source))
    config = settings_of(
        data.draw(st.sampled_from(MARKERS)),
        users=data.draw(st.booleans()),
        sides=data.draw(st.booleans()),
        german=data.draw(st.sampled_from([False, False, True])),
    )
    with tempfile.TemporaryDirectory() as folder:
        changed = one_row_changes_another(rows, SOURCES[source][0], Path(folder), config)
    assert not changed, f"{changed}\nof {rows}\nmissing_values={config.data.missing_values}"


@pytest.mark.parametrize("typed", [typed_parquet, typed_frame])
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_row_changes_another_in_columns_of_a_type(
    typed: Callable[[dict[str, str]], Source], data: st.DataObject
) -> None:
    rows, schema = data.draw(typed_tables())
    config = settings_of(
        data.draw(st.sampled_from(MARKERS)),
        users=data.draw(st.booleans()),
        sides=data.draw(st.booleans()),
        german=data.draw(st.sampled_from([False, False, True])),
    )
    with tempfile.TemporaryDirectory() as folder:
        changed = one_row_changes_another(rows, typed(schema), Path(folder), config)
    assert not changed, f"{changed}\nof {rows}\n{schema} {config.data.missing_values}"


PLAIN: dict[str, Any] = {"count": "1", "word": "a", "code": "1", "day": "2020-02-03", "y": "1"}


def rows_of(**cells: list[Any]) -> list[Row]:
    """Plain rows with these cells in some of their columns."""
    columns = zip(*cells.values(), strict=True)
    return [
        {"serial": str(at), "number": "1", **PLAIN, "user": "7.0", "side": "train"}
        | dict(zip(cells, values, strict=True))
        for at, values in enumerate(columns)
    ]


@pytest.mark.parametrize("odd", ["", " 1", "true", "nan", "+3", "1e400", "tall"])
@pytest.mark.parametrize("source", ["csv", "sqlite", "objects"])
def test_an_odd_cell_changes_no_number(source: str, odd: str, tmp_path: Path) -> None:
    typed = source != "csv"
    cells = [-999.0, 3.5, odd] if typed else ["-999", "0.30000000000000004", odd]
    config = settings_of(("", "-999"), users=False, sides=False, german=False)
    rows = rows_of(number=cells)
    assert not one_row_changes_another(rows, SOURCES[source][0], tmp_path, config)


@pytest.mark.parametrize("odd", ["x", "", "9.5"])
def test_an_odd_name_changes_no_user(odd: str, tmp_path: Path) -> None:
    config = settings_of(("",), users=True, sides=False, german=False)
    rows = rows_of(user=["7.0", "8.0", "9.0", odd])
    assert not one_row_changes_another(rows, SOURCES["csv"][0], tmp_path, config)


@pytest.mark.parametrize("kind", ["object", "string[python]"])
def test_half_a_character_refuses_no_row(kind: str, tmp_path: Path) -> None:
    """Arrow takes no such text, and one cell made the whole column an error."""
    config = settings_of(("",), users=True, sides=False, german=False)
    rows = rows_of(user=["7.0", "8.0", "\udc80"], word=["a", "\udc80", "01"])

    def source(some: list[Row], _: Path) -> pd.DataFrame:
        return pd.DataFrame(some, dtype=kind)

    assert not one_row_changes_another(rows, source, tmp_path, config)


@pytest.mark.parametrize("kind", ["lists", "records"])
def test_a_gap_inside_a_cell_changes_no_category(kind: str, tmp_path: Path) -> None:
    """Arrow makes floats of all whole numbers of a nested column where one of them is missing."""
    cells: list[Any] = [[1], [None]] if kind == "lists" else [{"a": 1}, {"a": None}]
    plain = dict.fromkeys((*PLAIN, "number"), 1) | {"day": None, "side": "train"}
    rows = [plain | {"serial": at, "word": cell} for at, cell in enumerate(cells)]
    schema = dict.fromkeys(("day",), "date") | {"word": kind, "side": "texts"}
    config = settings_of(("",), users=False, sides=False, german=False)
    columns = config.data.columns
    word = columns["word"].model_copy(update={"levels": ("[1]", "{'a': 1}")})
    data = config.data.model_copy(update={"columns": {**columns, "word": word}, "drop": ("side",)})
    config = config.model_copy(update={"data": data})
    assert not one_row_changes_another(rows, typed_parquet(schema), tmp_path, config)
