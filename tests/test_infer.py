"""Scoring as a user does it: any column order, with or without labels, in chunks, with clear
refusals.
"""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import homo_dp.train as train
from homo_dp import infer
from homo_dp.console.screen import Screen
from homo_dp.models.files import load_model, read_card, save_model
from tests.shell import CommandLine, Finished, run_command

COLUMNS = "data.columns={x: {bounds: [0, 10]}, c: {levels: [red, blue]}}"


def rows(count: int = 60) -> list[dict[str, str]]:
    colours = ("red", "blue")
    return [
        {"id": str(n), "x": str(n % 10), "c": colours[n % 2], "y": str(n % 2)} for n in range(count)
    ]


def write(path: str, table: list[dict[str, str]], columns: list[str]) -> None:
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)


def read(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


class Shell(CommandLine):
    def infer(self, *arguments: str) -> Finished:
        command = [
            "--params",
            "modelFileName=m,predictFileName=p.csv,indicatorFileName=i.json",
            *arguments,
        ]
        return self.run(infer.main, command)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """A folder with a table and a model that was trained on it."""
    monkeypatch.chdir(tmp_path)
    write("a.csv", rows(), ["id", "x", "c", "y"])
    params = [
        "--params",
        "data.files.a=a.csv",
        COLUMNS,
        "train.rounds=2",
        "modelFileName=m",
        "tracking.enabled=false",
    ]
    assert run_command(train.main, params, monkeypatch, capsys).code == 0
    return Shell(monkeypatch, capsys)


def test_row_order_and_columns_are_kept(shell: Shell) -> None:
    assert shell.infer("--data", "a.csv").code == 0
    scored = read("p.csv")
    assert [row["id"] for row in scored] == [row["id"] for row in rows()]
    assert list(scored[0]) == ["id", "x", "c", "y", "pred_prob", "pred_y"]


def test_columns_are_matched_by_name(shell: Shell) -> None:
    shell.infer("--data", "a.csv")
    expected = [row["pred_prob"] for row in read("p.csv")]
    write("b.csv", rows(), ["c", "y", "x", "id"])
    assert shell.infer("--data", "b.csv").code == 0
    assert [row["pred_prob"] for row in read("p.csv")] == expected
    files = "data.files.a=t1.csv,data.files.b=t2.csv,data.test_file.a=a.csv,data.test_file.b=b.csv"
    assert shell.infer("--params", files).code == 0
    assert [(row["id"], row["pred_prob"]) for row in read("p.csv")] == [
        (row["id"], found) for row, found in zip(rows() * 2, expected * 2, strict=True)
    ]


def test_chunks_give_the_same_as_one_piece(shell: Shell) -> None:
    shell.infer("--data", "a.csv")
    whole = read("p.csv")
    assert shell.infer("--data", "a.csv", "--params", "predict.chunk_rows=7").code == 0
    pieces = read("p.csv")
    # The last digit of a probability may differ: torch multiplies few rows in another order than
    # many.
    found, expected = ([float(row.pop("pred_prob")) for row in rows] for rows in (pieces, whole))
    assert found == pytest.approx(expected, abs=1e-6)
    assert pieces == whole


def test_without_labels_there_are_no_indicators(shell: Shell) -> None:
    write("b.csv", rows(), ["id", "x", "c"])
    done = shell.infer("--data", "b.csv")
    assert done.code == 0
    assert "no indicators" in done.out
    assert not Path("i.json").exists()


def test_indicators_of_an_earlier_table_are_named_as_such(shell: Shell) -> None:
    write("b.csv", rows(), ["id", "x", "c"])
    assert "earlier" not in shell.infer("--data", "b.csv").out
    shell.infer("--data", "a.csv")
    assert "i.json is of an earlier run" in shell.infer("--data", "b.csv").out


def test_without_a_table_the_embedded_rows_must_fit(shell: Shell) -> None:
    done = shell.infer()
    assert done.code == 2
    assert done.error_lines[-1].endswith("give the table to score with --data")


@pytest.mark.parametrize(
    "params",
    [
        ["data.partition.parties=2"],
        ["data.embedded=digits", "data.partition.kind=by_label", "train.seed=3"],
        ["data.partition.parties=2", "data.test_fraction=0.4"],
    ],
)
def test_without_a_table_the_rows_that_the_training_held_out_are_scored(
    params: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With another split than the training's, most of them were trained on."""
    monkeypatch.chdir(tmp_path)
    outputs = ["modelFileName=m", "predictFileName=t.csv", "indicatorFileName=t.json"]
    line = ["--params", *outputs, *params, "train.rounds=3", "tracking.enabled=false"]
    assert run_command(train.main, line, monkeypatch, capsys).code == 0
    done = Shell(monkeypatch, capsys).infer()
    assert done.code == 0
    assert "data: test rows of" in done.out.splitlines()[0]
    assert [row["id"] for row in read("p.csv")] == [row["id"] for row in read("t.csv")]
    indicators = [json.loads(Path(name).read_text()) for name in ("t.json", "i.json")]
    assert indicators[0]["test_acc"] == indicators[1]["test_acc"]
    assert "names data.files" in Shell(monkeypatch, capsys).infer("--params", "data.files=a").err
    another = Shell(monkeypatch, capsys).infer("--params", "data.partition.parties=9")
    assert another.code == 2
    assert "data.partition: differs from the split that m records" in another.err


def test_the_model_file_records_the_split_and_no_path(shell: Shell) -> None:
    split = read_card("m").split
    assert split["embedded"] is None
    assert split["test_fraction"] == 0.2
    assert split["seed"] == 0
    assert "a.csv" not in json.dumps(split)


@pytest.mark.parametrize(
    "split",
    [
        {},
        {"embedded": "iris"},
        {"embedded": "breast_cancer", "seed": "x"},
        {"embedded": "breast_cancer", "seed": 0, "partition": {"parties": 10**9}},
        {"embedded": "breast_cancer", "seed": 0, "test_fraction": [1]},
        {"embedded": ["breast_cancer"], "seed": 0},
    ],
)
def test_a_model_file_without_a_good_record_of_its_split_asks_for_a_table(
    split: dict[str, object], shell: Shell
) -> None:
    model = load_model("m")
    save_model("m", model.module.state_dict(), replace(model.card, split=split))
    done = shell.infer()
    assert done.code == 2
    assert len(done.error_lines) == 1
    assert done.error_lines[0].endswith("give the table to score with --data")
    assert shell.infer("--data", "a.csv").code == 0


def test_with_labels_indicators_are_written(shell: Shell) -> None:
    assert shell.infer("--data", "a.csv").code == 0
    indicators = json.loads(Path("i.json").read_text())
    assert 0 <= indicators["test_acc"] <= 1
    assert indicators["privacy"]["private"] is True
    summary = json.loads(shell.infer("--data", "a.csv", "--json").out)
    assert summary["test_acc"] == indicators["test_acc"]
    # a curve has as many points as rows
    assert not [key for key, value in summary.items() if isinstance(value, list)]


def test_the_threshold_decides_pred_y(shell: Shell) -> None:
    shell.infer("--data", "a.csv", "--params", "predict.threshold=0")
    assert {row["pred_y"] for row in read("p.csv")} == {"1"}


def test_extra_columns_are_kept_and_not_used(shell: Shell) -> None:
    shell.infer("--data", "a.csv")
    expected = [row["pred_prob"] for row in read("p.csv")]
    write("b.csv", [row | {"note": "=cmd()"} for row in rows()], ["id", "x", "note", "c", "y"])
    assert shell.infer("--data", "b.csv").code == 0
    scored = read("p.csv")
    assert [row["pred_prob"] for row in scored] == expected
    assert scored[0]["note"] == "'=cmd()"


@pytest.mark.parametrize(
    ("columns", "change", "words"),
    [
        (["id", "c", "y"], {}, "'x'"),
        (["id", "x", "c", "y"], {"x": "tall"}, "tall"),
        (["id", "x", "c", "y"], {"pred_y": "1"}, ""),
    ],
)
def test_unfit_tables(shell: Shell, columns: list[str], change: dict[str, str], words: str) -> None:
    extra = [name for name in change if name not in columns]
    write("b.csv", [row | change for row in rows()], [*columns, *extra])
    done = shell.infer("--data", "b.csv")
    assert (done.code, len(done.error_lines)) == (2, 1), done.err
    assert words in done.err
    assert not Path("p.csv").exists()


def test_parquet_gz_and_missing_tables(shell: Shell) -> None:
    import pandas

    frame = pandas.read_csv("a.csv")
    frame.to_parquet("b.parquet")
    frame.to_csv("b.csv.gz", index=False)
    for name in ("b.parquet", "b.csv.gz"):
        assert shell.infer("--data", name).code == 0
        assert len(read("p.csv")) == len(frame)
    assert shell.infer("--data", "absent.csv").code == 2


def test_files_of_training_and_the_scored_table_are_never_overwritten(shell: Shell) -> None:
    before = {
        path: Path(path).read_bytes() for path in ("out/indicator.json", "out/predict.csv", "a.csv")
    }
    Path("r.yaml").write_text("output: {indicatorFileName: out/indicator.json}\n")
    for more in ([], ["--config", "r.yaml"]):
        command = ["--params", "modelFileName=m", "--data", "a.csv", *more]
        assert run_command(infer.main, command, shell.monkeypatch, shell.capsys).code == 0
    assert len(read("out/test_predict.csv")) == 60
    assert "test_acc" in json.loads(Path("out/test_indicator.json").read_text())
    for name in ("predictFileName", "indicatorFileName"):
        done = shell.infer("--params", f"{name}=./a.csv", "--data", "a.csv")
        assert done.code == 2
        assert "is the table to score" in done.err
    assert {path: Path(path).read_bytes() for path in before} == before


def test_columns_that_the_model_does_not_use_are_named(shell: Shell) -> None:
    write("b.csv", [row | {"extra": "7"} for row in rows()], ["extra", "id", "x", "c", "y"])
    assert (
        "not used by the model, copied to the predictions: extra"
        in shell.infer("--data", "b.csv").out
    )
    assert read("p.csv")[0]["extra"] == "7"
    assert "not used" not in shell.infer("--data", "a.csv").out


def test_values_that_training_clipped_too_are_no_warning(shell: Shell) -> None:
    table = [row | {"x": "99"} for row in rows()]
    write("a.csv", table, ["id", "x", "c", "y"])
    params = ["--params", "data.files.a=a.csv", COLUMNS, "train.rounds=2", "tracking.enabled=false"]
    done = run_command(train.main, params, shell.monkeypatch, shell.capsys)
    assert "column 'x'" in done.err, "training itself says that all values are clipped"
    score = ["--params", "predictFileName=p.csv", "--data", "a.csv"]
    done = run_command(infer.main, score, shell.monkeypatch, shell.capsys)
    assert "warning" not in done.err
    Path("out/indicator.json").rename("out/of_another_name.json")
    done = run_command(infer.main, score, shell.monkeypatch, shell.capsys)
    assert "warning" not in done.err
    Path("out/of_another_name.json").unlink()
    done = run_command(infer.main, score, shell.monkeypatch, shell.capsys)
    assert "clipped" in done.err, "without the figures of training the share alone counts"


def test_many_columns_that_stray_are_three_lines_and_a_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    infer._say_what_strayed([f"column {name}: clipped" for name in "abcde"], Screen())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("warning: column a: clipped; ")
    assert "2 more columns" in lines[3]
