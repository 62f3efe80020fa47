"""The compare command as a user runs it: cells on both cores, resumable, tracked, and honest
about its price.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from homo_dp import compare
from homo_dp.privacy.ledger import Ledger
from tests.shell import CommandLine, Finished

COMMON = ("train.rounds=2", "privacy.noise_multiplier=2", "tracking.uri=sqlite:///mlflow.db")


class Shell(CommandLine):
    def compare(
        self, *arguments: str, params: tuple[str, ...] = ("tracking.enabled=false",)
    ) -> Finished:
        items = ["--params", *COMMON, *params]
        return self.run(compare.main, [*arguments, *items])


@pytest.fixture
def shell(
    tmp_path: Path,
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path)
    return Shell(monkeypatch, capsys)


def table() -> list[dict[str, str]]:
    with Path("out/compare/compare.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_sweep_runs_goes_on_and_is_paid_for(shell: Shell) -> None:
    vary = ("--vary", "privacy.max_grad_norm=0.5,1", "--repeats", "2")
    done = shell.compare(*vary, params=("tracking.run_name=sweep",))
    assert done.code == 0, done.err
    assert "all 4 runs together: epsilon" in done.out
    assert "choosing a cell by its result on private rows costs" in done.out
    rows = table()
    assert [(row["privacy.max_grad_norm"], row["repeat"]) for row in rows] == [
        ("0.5", "0"),
        ("0.5", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert all(0 < float(row["epsilon"]) < 20 and 0 <= float(row["test_acc"]) <= 1 for row in rows)
    assert Path("out/compare/compare_privacy.max_grad_norm.png").read_bytes().startswith(b"\x89PNG")
    with Ledger("ledger.sqlite") as ledger:
        assert ledger.verify().count == 4 * 2 * 3  # cells, rounds, parties: as real as any run
        charged = {row.run for row in ledger.rows()}
    assert charged == {row["run"] for row in rows}

    again = shell.compare(
        "--vary",
        "privacy.max_grad_norm=0.5,1,2",
        "--repeats",
        "2",
        "--json",
        params=("tracking.run_name=sweep",),
    )
    assert again.code == 0
    assert "4 of 6 runs are done already" in again.err
    assert [row["run"] for row in table()[:4]] == [row["run"] for row in rows]
    summary = json.loads(again.out)
    assert len(summary["cells"]) == 6
    assert summary["epsilon_of_all"] > max(float(row["epsilon"]) for row in rows)
    check_history(summary["mlflow_run"])

    other = shell.compare(
        "--vary", "privacy.max_grad_norm=1", "--json", params=("train.learning_rate=1",)
    )
    # the same key of another recipe
    assert json.loads(other.out)["mlflow_run"] != summary["mlflow_run"]


def check_history(run_id: str) -> None:
    """One parent run for the sweep and its continuation, one child for every cell."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient("sqlite:///mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("homo_dp").experiment_id])
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == run_id]
    assert len(runs) == 7
    assert len(children) == 6
    assert {run.data.params["privacy.max_grad_norm"] for run in children} == {"0.5", "1", "2"}
    assert all({"epsilon", "accuracy"} <= set(run.data.metrics) for run in children)
    assert {run.data.params["train.rounds"] for run in children} == {"2"}
    assert {run.data.tags["unit"] + run.data.tags["data.name"] for run in children} == {
        "recordbreast_cancer"
    }
    parent = client.get_run(run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["cells"] == "6"
    assert "compare.csv" in {item.path for item in client.list_artifacts(run_id)}
    assert not Path("out/compare/unsent").exists()


@pytest.mark.parametrize(
    ("longest", "extra", "runs"),
    [(10.0, (), 6), (0.0, (), 2), (10.0, ("privacy.lifetime_epsilon=50",), 2)],
    ids=["short runs", "long runs", "a lifetime budget"],
)
def test_short_runs_are_repeated_unless_a_lifetime_budget_pays(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, longest: float, extra: tuple[str, ...], runs: int
) -> None:
    monkeypatch.setattr(compare, "SHORT_RUN", longest)
    done = shell.compare(
        "--vary", "privacy.max_grad_norm=0.5,1", params=("tracking.enabled=false", *extra)
    )
    assert done.code == 0, done.err
    assert len(table()) == runs
    assert ("test_acc ±" in done.out) == (runs == 6)
    assert ("each is run 3 times and charged" in done.out) == (runs == 6)
    assert ("each cell is run once" in done.out) == (runs == 2)


def test_cells_over_budget_are_refused_and_the_others_kept(shell: Shell) -> None:
    done = shell.compare(
        "--vary",
        "privacy.noise_multiplier=20,0.7",
        "--jobs",
        "1",
        params=("tracking.enabled=false", "privacy.lifetime_epsilon=3"),
    )
    assert done.code == 3
    assert "lifetime_epsilon" in done.err
    assert [row["privacy.noise_multiplier"] for row in table()] == ["20"]


def test_bad_options_are_one_line(shell: Shell) -> None:
    for arguments in (
        (),
        ("--vary", "train.rounds=x"),
        ("--vary", "train.rounds=1", "--repeats", "0"),
    ):
        done = shell.compare(*arguments)
        assert done.code == 2
        assert len(done.error_lines) == 1
    assert [path.name for path in Path().iterdir()] == ["mlflow.db"]
