"""A sweep in MLflow: metrics of private rows stay here, and a sweep of another recipe is another
run.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.runs import sweep_log
from homo_dp.runs.sweep_log import STATE, SweepLog


class Lines:
    """Stands for the way to the store."""

    def __init__(self, uri: str, experiment: str, folder: Path) -> None:
        self.added: list[dict[str, Any]] = []
        self.runs = {sweep_log.PARENT: "run-1"}

    def add(self, op: str, **fields: Any) -> None:
        self.added.append({"op": op, **fields})

    def keep(self, path: Path) -> str:
        return path.name

    def close(self) -> None:
        pass


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> tuple[SweepLog, Lines]:
    monkeypatch.setattr(sweep_log, "RunLog", Lines)
    config = load_config(None, keys)
    cell: Any = SimpleNamespace(
        values={"train.rounds": 2}, id="1", label="x", repeat=1, config=config
    )
    log = SweepLog(config, folder, [cell])
    result = {
        "status": "finished",
        "test_acc": 0.9,
        "train_loss": 0.1,
        "epsilon": 1.0,
        "private": True,
    }
    log.cell(cell, result)
    lines: Any = log._log
    return log, lines


@pytest.mark.parametrize(
    ("uri", "shown"), [("sqlite:///m.db", True), ("https://store.example", False)]
)
def test_metrics_of_private_rows_reach_a_store_of_this_machine_only(
    uri: str, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lines = made(tmp_path, monkeypatch, **{"tracking.uri": uri})
    (metrics,) = (line["runs"]["cell/1"] for line in lines.added if line["op"] == "metrics")
    assert any("acc" in name for name in metrics) is shown
    assert any("epsilon" in name for name in metrics)


def test_a_sweep_goes_on_with_its_run_unless_the_recipe_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = made(tmp_path, monkeypatch)
    assert log.close("FINISHED", {}) == "run-1"
    assert json.loads((tmp_path / STATE).read_text())["run"] == "run-1"
    assert made(tmp_path, monkeypatch)[1].added[0]["existing"] == "run-1"
    assert (
        made(tmp_path, monkeypatch, **{"train.learning_rate": 0.7})[1].added[0]["existing"] is None
    )
