"""Predictions: input columns verbatim and in order, results last, nothing that a spreadsheet
would run.
"""

import csv
import gzip
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.core.errors import DataError, InputError
from homo_dp.models.task import Task, task_for
from homo_dp.tracking import predictions
from homo_dp.tracking.predictions import PredictionWriter, prediction_columns

BINARY = task_for([0, 1])


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def write(
    path: Path, frame: pd.DataFrame, outputs: torch.Tensor, task: Task = BINARY, **options: Any
) -> str:
    with PredictionWriter(path, list(frame.columns), task, **options) as writer:
        writer.write(frame, outputs)
    return path.read_bytes().decode()


def test_columns_come_verbatim_and_in_order(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "id": ["007", "1e5", ""],
            "x": ["1.50", "-2", "NA"],
            "note": ["a, b", 'say "hi"', "two\nlines"],
        }
    )
    text = write(tmp_path / "p.csv", frame, torch.tensor([[0.0], [3.0], [-3.0]]))
    rows = rows_of(text)
    assert rows[0] == ["id", "x", "note", "pred_prob", "pred_y"]
    assert [row[:3] for row in rows[1:]] == frame.to_numpy().tolist()
    assert [float(row[3]) for row in rows[1:]] == pytest.approx([0.5, 0.95257, 0.04743], abs=1e-5)
    assert [row[4] for row in rows[1:]] == ["1", "1", "0"]
    assert text.splitlines()[1] == '007,1.50,"a, b",0.5,1'


def test_typed_columns_are_kept_exactly(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "float": [0.1, -1e-300, 12345678901234567.0],
            "single": np.array([0.1, -2, 3], dtype=np.float32),
            "whole": [-(2**63), 2**63 - 1, 0],
            "maybe": [1.0, np.nan, 3.0],
            "truth": [True, False, True],
            "mixed": [1, "a", None],
            "kind": pd.Categorical(["u", "v", "u"]),
            "when": pd.to_datetime(["2020-01-02", "NaT", "2021-03-04"]),
        }
    )
    rows = rows_of(write(tmp_path / "p.csv", frame, torch.zeros(3, 1)))[1:]
    columns = list(zip(*rows, strict=True))
    assert [float(cell) for cell in columns[0]] == frame["float"].tolist()
    assert [np.float32(cell) for cell in columns[1]] == frame["single"].tolist()
    assert [int(cell) for cell in columns[2]] == frame["whole"].tolist()
    assert columns[3][1] == ""
    assert columns[4] == ("True", "False", "True")
    assert columns[5] == ("1", "a", "")
    assert columns[6] == ("u", "v", "u")
    assert columns[7] == ("2020-01-02 00:00:00", "", "2021-03-04 00:00:00")


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "＝1",
        "-",
        "--1",
        "-1,5",
        "+1 2",
    ],
)
def test_formulas_are_shown_and_not_run(cell: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": [cell, None]})
    rows = rows_of(write(tmp_path / "p.csv", frame, torch.zeros(2, 1)))
    assert rows[1][0] == "'" + cell
    assert rows[2][0] == ""


@pytest.mark.parametrize(
    "cell", ["-1.5", "+3", "-.5e-7", "-1E10", "12", "a=b", "x@y.z", "'=1", "2020-01-01", "", " ="]
)
def test_numbers_and_plain_text_are_untouched(cell: str, tmp_path: Path) -> None:
    assert (
        rows_of(write(tmp_path / "p.csv", pd.DataFrame({"x": [cell]}), torch.zeros(1, 1)))[1][0]
        == cell
    )


def test_headers_classes_and_party_names_are_safe_too(tmp_path: Path) -> None:
    frame = pd.DataFrame({"=HYPERLINK(1)": ["a"]})
    with PredictionWriter(
        tmp_path / "p.csv", list(frame.columns), task_for(["@a", "-1"]), with_party=True
    ) as writer:
        writer.write(frame, torch.tensor([[-9.0]]), party="+x")
        writer.write(frame, torch.tensor([[9.0]]), party="b")
    rows = rows_of((tmp_path / "p.csv").read_text())
    assert rows[0] == ["party", "'=HYPERLINK(1)", "pred_prob", "pred_y"]
    assert [row[0] for row in rows[1:]] == ["'+x", "b"]
    assert [row[-1] for row in rows[1:]] == ["'@a", "-1"]


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@settings(max_examples=150, deadline=None)
@given(table=st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_any_text_comes_back_from_any_reader(
    table: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    frame = pd.DataFrame(table, columns=["a", "b"], dtype=object)
    path = tmp_path_factory.mktemp("p") / "p.csv"
    rows = rows_of(write(path, frame, torch.zeros(len(frame), 1)))[1:]
    assert len(rows) == len(table)
    for row, given_row in zip(rows, table, strict=True):
        for cell, given_cell in zip(row, given_row, strict=False):
            assert cell in (given_cell, "'" + given_cell)
            if cell.startswith(("=", "@", "\t", "\r", "\n")):
                raise AssertionError(cell)
            if cell.startswith(("+", "-")):
                float(cell)


def test_multiclass_gives_every_probability(tmp_path: Path) -> None:
    task = task_for(["red", "green", "blue"])
    frame = pd.DataFrame({"id": [1, 2]})
    rows = rows_of(
        write(tmp_path / "p.csv", frame, torch.tensor([[0.0, 2.0, 0.0], [5.0, 0.0, 0.0]]), task)
    )
    assert rows[0] == ["id", "prob_red", "prob_green", "prob_blue", "pred_prob", "pred_y"]
    assert [row[-1] for row in rows[1:]] == ["green", "red"]
    for row in rows[1:]:
        assert sum(map(float, row[1:4])) == pytest.approx(1)
        assert float(row[4]) == max(map(float, row[1:4]))


def test_regression_is_in_units_and_has_no_probability(tmp_path: Path) -> None:
    task = task_for(None, target_bounds=(0.0, 10.0))
    rows = rows_of(
        write(tmp_path / "p.csv", pd.DataFrame({"id": [1]}), torch.tensor([[0.5]]), task)
    )
    assert rows == [["id", "pred_y"], ["1", "7.5"]]


def test_the_threshold_decides_two_classes(tmp_path: Path) -> None:
    text = write(
        tmp_path / "p.csv", pd.DataFrame({"id": [1]}), torch.tensor([[1.0]]), threshold=0.8
    )
    assert rows_of(text)[1][-1] == "0"


def test_chunks_and_gzip_give_the_same_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [str(number) for number in range(100)], "b": ["x,y"] * 100})
    outputs = torch.linspace(-4, 4, 100).reshape(-1, 1)
    whole = write(tmp_path / "whole.csv", frame, outputs)
    with PredictionWriter(tmp_path / "p.csv.gz", ["a", "b"], BINARY) as writer:
        for start in range(0, 100, 33):
            writer.write(frame.iloc[start : start + 33], outputs[start : start + 33])
        writer.write(frame.iloc[:0], outputs[:0])
        assert writer.rows == 100
    assert gzip.decompress((tmp_path / "p.csv.gz").read_bytes()).decode() == whole


def test_no_rows_give_a_header(tmp_path: Path) -> None:
    assert (
        write(tmp_path / "p.csv", pd.DataFrame({"a": []}), torch.zeros(0, 1))
        == "a,pred_prob,pred_y\n"
    )


def test_names_that_the_file_needs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("pred_prob", "pred_y"):
        with pytest.raises(DataError, match=f"column '{name}'"):
            PredictionWriter(tmp_path / "p.csv", ["id", name], BINARY)
    with pytest.raises(DataError, match="prob_b"):
        prediction_columns(["prob_b"], task_for(["a", "b", "c"]))
    assert prediction_columns(["prob_b"], BINARY) == ["prob_b", "pred_prob", "pred_y"]
    assert list(tmp_path.iterdir()) == []


def test_a_table_with_a_party_column_keeps_it() -> None:
    assert prediction_columns(["id", "party"], BINARY, with_party=True)[:3] == [
        "federation_party",
        "id",
        "party",
    ]


def test_an_error_between_chunks_leaves_nothing(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": ["1"]})

    def fail() -> None:
        with PredictionWriter(tmp_path / "p.csv.gz", ["a"], BINARY) as writer:
            writer.write(frame, torch.zeros(1, 1))
            writer.write(frame.rename(columns={"a": "b"}), torch.zeros(1, 1))

    with pytest.raises(DataError, match="other columns"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="predictFileName="):
        write(tmp_path, frame, torch.zeros(1, 1))


def test_many_rows_become_text_in_the_background_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"a": np.arange(1000) / 7, "b": [f"={n}, {n}" for n in range(1000)]})
    outputs = torch.linspace(-3, 3, 1000).unsqueeze(1)
    whole = write(tmp_path / "whole.csv", frame, outputs)
    monkeypatch.setattr("homo_dp.tracking.predictions._CHUNK", 7)
    monkeypatch.setattr("homo_dp.tracking.predictions._MANY", 7)  # so that the last rows are few
    assert write(tmp_path / "pieces.csv", frame, outputs) == whole


@pytest.mark.parametrize("different", [3, 5_000, 20_000])
def test_numbers_that_repeat_have_the_text_that_each_has_alone(different: int) -> None:
    """Zero with and without a sign, gaps and infinities among them."""
    numbers = np.random.default_rng(0).normal(size=different).round(6)
    values = pa.array([0.0, -0.0, None, np.inf, -np.inf, 1e-300, *np.resize(numbers, 20_000)])
    assert predictions._number_texts(values).equals(values.cast(predictions.TEXT))


def test_an_error_in_the_background_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("homo_dp.tracking.predictions._MANY", 1)

    def fail(*_: object) -> memoryview:
        raise MemoryError("no room for text")

    monkeypatch.setattr("homo_dp.tracking.predictions._text_of", fail)
    with pytest.raises(MemoryError):
        write(tmp_path / "p.csv", pd.DataFrame({"a": [1, 2]}), torch.zeros(2, 1))
    assert list(tmp_path.iterdir()) == []
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("homo_dp predictions")
    ]


def test_rows_and_outputs_must_belong_together(tmp_path: Path) -> None:
    writer = PredictionWriter(tmp_path / "p.csv", ["a"], BINARY)
    with pytest.raises(ValueError, match="closed"):
        writer.write(pd.DataFrame({"a": [1]}), torch.zeros(1, 1))
    with writer:
        with pytest.raises(ValueError, match="do not belong together"):
            writer.write(pd.DataFrame({"a": [1]}), torch.zeros(2, 1))
        with pytest.raises(ValueError, match="do not belong together"):
            writer.write(pd.DataFrame({"a": [1]}), torch.zeros(1, 1), party="x")
