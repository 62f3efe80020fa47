"""Outputs: what a run replaces, keeps apart, and what its figures are to be held against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.config.output import OutputConfig
from homo_dp.config.schema import Config
from homo_dp.console.screen import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.data.parties import load_federation
from homo_dp.models.baselines import plain_fit
from homo_dp.models.files import read_card
from homo_dp.models.task import task_for
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.runs.dry_run import plan_of
from homo_dp.runs.outputs import FILE_NAMES, numbered, replaced, write_outputs
from homo_dp.runs.party_dry_run import show_party_plan
from homo_dp.runs.party_process import PartyProcess
from homo_dp.runs.processes import check_bounds_source
from homo_dp.runs.serving import PartyServer
from homo_dp.runs.simulation import Simulation
from homo_dp.tracking.report.text import badge, guarantee
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


def test_files_of_another_run_are_named_before_they_are_replaced(tmp_path: Path) -> None:
    output = OutputConfig(
        predictFileName=str(tmp_path / "p"),
        indicatorFileName=str(tmp_path / "i"),
        modelFileName=str(tmp_path / "m"),
    )
    assert replaced(output, "run-2") is None
    (tmp_path / "i").write_text('{"run": "run-1", "finished": "today"}')
    (tmp_path / "p").write_text("")
    text = str(replaced(output, "run-2", FILE_NAMES[1:]))
    assert (
        text
        == f"replaces {tmp_path / 'i'} of run-1, finished today; other paths in output keep them"
    )
    assert f"replaces {tmp_path / 'p'}, " in str(replaced(output, "run-2"))
    assert replaced(output, "run-1") is None, "a process that is started again has its own files"
    assert "--keep" in str(replaced(output))


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
    assert written["bounds"] == {"source": "public", "shipped": "breast_cancer"}
    assert written["setup"]["role"] == "simulation"


def test_a_plain_fit_needs_no_noise_for_a_line() -> None:
    from homo_dp.data.rows import Table

    features = torch.linspace(-1, 1, 50).reshape(-1, 1)
    table = Table(features, 0.5 * features[:, 0] - 0.1)
    fit = plain_fit(task_for(None, None, (0.0, 10.0)), [table], [table])
    assert fit is not None
    assert fit["test_r2"] > 0.99


def test_a_run_on_a_draft_in_one_process_states_what_epsilon_does_not_cover(tmp_path: Path) -> None:
    simulation = run(tmp_path, **private_table(tmp_path, bounds_source="draft"))
    written = write_outputs(simulation.run(), simulation.ledger).indicators
    privacy = written["privacy"]
    assert "Epsilon does not cover bounds, categories and classes" in privacy["statement"]
    assert privacy["not_covered"] == [
        "bounds, categories and classes, which were read from the rows"
    ]
    assert "does not cover" in guarantee(privacy)
    assert badge(privacy, verified=True)[0].startswith("PRIVATE BUT FOR DRAFTED BOUNDS")
    card = read_card(str(tmp_path / "m.safetensors"))
    assert card.privacy["statement"] == privacy["statement"]
    plan = plan_of(load_config(None, {**QUICK, **private_table(tmp_path, bounds_source="draft")}))
    assert any("epsilon does not cover" in text for text in plan.warnings)


@pytest.mark.parametrize(
    "start",
    [
        lambda config: AggregatorProcess(config, Screen(quiet=True)),
        lambda config: PartyProcess(config, Screen(quiet=True)),
        lambda config: show_party_plan(config, Screen(quiet=True)),
        lambda config: PartyServer(config, [], Screen(quiet=True)),
    ],
    ids=["aggregator", "party", "dry run of a party", "serving party"],
)
def test_a_draft_is_refused_between_processes(
    start: Callable[[Config], object], tmp_path: Path
) -> None:
    private = private_table(tmp_path, bounds_source="draft") | {
        "party.name": "all",
        "party.serve.approve": "ask",
    }
    with pytest.raises(ConfigError, match=r"bounds_source=draft.*homo-dp train"):
        start(load_config(None, private))
    check_bounds_source(load_config(None, {**private, "privacy.mechanism": "none"}))


def test_indicators_repeat_where_bounds_come_from(tmp_path: Path) -> None:
    said = private_table(tmp_path, bounds_source="codebook") | {
        "data.columns.x.source": "form 12, field 3"
    }
    simulation = run(tmp_path, **said)
    written = write_outputs(simulation.run(), simulation.ledger).indicators
    assert written["bounds"] == {"source": "codebook", "columns": {"x": "form 12, field 3"}}
    assert "plain_fit" not in written, "the rows are private"


def test_a_party_may_be_called_all(tmp_path: Path) -> None:
    assert list(load_federation(load_config(None, private_table(tmp_path))).parties) == ["all"]
    alone = {"data.files": str(tmp_path / "t.csv"), "data.columns.x.bounds": [0, 300]}
    assert list(load_federation(load_config(None, alone)).parties) == ["all"]
    split = load_config(None, alone | {"data.partition": "iid"})
    assert len(load_federation(split).parties) == 3
