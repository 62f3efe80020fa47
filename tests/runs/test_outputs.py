"""Outputs: what a run replaces, keeps apart, and what its figures are to be held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.data.parties import load_federation
from homo_dp.models.baselines import plain_fit
from homo_dp.models.task import task_for
from homo_dp.runs.outputs import numbered, replaced, write_outputs
from homo_dp.runs.simulation import Simulation
from tests.runs.parts import private_table

QUICK = {"train.rounds": 2, "train.local_steps": 1, "tracking.enabled": False}


def outputs_in(folder: Path) -> dict[str, str]:
    names = {
        "predictFileName": "p.csv",
        "indicatorFileName": "i.json",
        "modelFileName": "m.safetensors",
    }
    return {f"output.{key}": str(folder / name) for key, name in names.items()}


def run(folder: Path, **more: Any) -> Simulation:
    ledger = {"privacy.ledger": str(folder / "ledger.sqlite")}
    return Simulation(
        load_config(None, {**QUICK, **outputs_in(folder), **ledger, **more}), lambda *_: None
    )


def test_an_interrupted_run_leaves_the_finished_one_alone(tmp_path: Path) -> None:
    first = run(tmp_path)
    write_outputs(first.run(), first.ledger)
    before = (tmp_path / "m.safetensors").read_bytes()
    second = run(tmp_path)
    outcome = second.run()
    outcome.interrupted = True
    files = write_outputs(outcome, second.ledger).files
    assert files["model"] == tmp_path / "m_interrupted.safetensors"
    assert files["predictions"].name == "p_interrupted.csv"
    assert (tmp_path / "m.safetensors").read_bytes() == before
    said = replaced(load_config(None, outputs_in(tmp_path)).output)
    assert said is not None
    assert first.run_id in said
    assert "--keep" in said


def test_kept_runs_are_numbered(tmp_path: Path) -> None:
    output = load_config(None, outputs_in(tmp_path)).output
    assert replaced(output) is None
    assert [Path(numbered(output).modelFileName).parent.name for _ in range(2)] == [
        "run-001",
        "run-002",
    ]


def test_a_result_says_what_it_is_worth(tmp_path: Path) -> None:
    simulation = run(tmp_path, **{"train.evaluate_every": 0})
    written = write_outputs(simulation.run(), simulation.ledger).indicators
    assert [row["test_acc"] is None for row in written["rounds"]] == [True, False], (
        "after the last round only"
    )
    assert written["test_majority"] == pytest.approx(0.64, abs=0.02)
    assert "test_majority" in written["local_only"]
    assert written["plain_fit"]["test_acc"] > 0.95
    assert sum(map(sum, written["test_confusion_matrix"])) == 114
    assert written["bounds"] == {"source": "public"}


def test_a_plain_fit_needs_no_noise_for_a_line() -> None:
    from homo_dp.data.rows import Table

    features = torch.linspace(-1, 1, 50).reshape(-1, 1)
    table = Table(features, 0.5 * features[:, 0] - 0.1)
    fit = plain_fit(task_for(None, None, (0.0, 10.0)), [table], [table])
    assert fit is not None
    assert fit["test_r2"] > 0.99


def test_no_private_run_starts_on_a_draft(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bounds_source=draft"):
        run(tmp_path, **private_table(tmp_path, bounds_source="draft"))
    assert (
        run(
            tmp_path,
            **private_table(tmp_path, bounds_source="draft"),
            **{"privacy.mechanism": "none"},
        ).private
        is False
    )
    said = private_table(tmp_path, bounds_source="codebook") | {
        "data.columns.x.source": "form 12, field 3"
    }
    simulation = run(tmp_path, **said)
    written = write_outputs(simulation.run(), simulation.ledger).indicators
    assert written["bounds"] == {"source": "codebook", "columns": {"x": "form 12, field 3"}}
    assert "plain_fit" not in written, "the rows are private"


def test_a_party_may_be_called_all(tmp_path: Path) -> None:
    assert list(load_federation(load_config(None, private_table(tmp_path))).parties) == ["all"]
    split = load_config(
        None, {"data.files": str(tmp_path / "t.csv"), "data.columns.x.bounds": [0, 300]}
    )
    assert len(load_federation(split).parties) == 3, "one path alone is still one table to split"
