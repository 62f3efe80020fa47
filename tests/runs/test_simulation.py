"""A federation in one process: the sessions, plans, outboxes and ledgers of processes, over
queues in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.data.parties import load_federation
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.simulation import RoundRow, RunOutcome, Simulation, with_curves


def _simulation(folder: Path, **keys: Any) -> tuple[Simulation, list[RoundRow]]:
    told: list[RoundRow] = []

    def on_round(row: RoundRow, parties: Mapping[str, Mapping[str, float]]) -> None:
        told.append(row)

    settings = {
        "train.rounds": 3,
        "train.local_steps": 1,
        "privacy.ledger": str(folder / "ledger.sqlite"),
    }
    return Simulation(load_config(None, settings | keys), on_round), told


def _run(folder: Path, **keys: Any) -> tuple[RunOutcome, list[RoundRow]]:
    simulation, told = _simulation(folder, **keys)
    return simulation.run(), told


def test_every_party_charges_every_round_before_it_counts(tmp_path: Path) -> None:
    outcome, told = _run(tmp_path)
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        found = {(row.party, row.round, row.kind, row.observer) for row in ledger.rows(outcome.run)}
        last = {row.party: row.epsilon for row in ledger.rows(outcome.run)}
    parties = list(outcome.federation.parties)
    assert found == {
        (party, number, "update", "aggregator") for party in parties for number in (1, 2, 3)
    }
    assert [row["round"] for row in told] == [1, 2, 3]
    assert outcome.statement["epsilon"] == pytest.approx(max(last.values()), rel=1e-6)
    assert not outcome.interrupted


def test_the_final_weights_are_those_that_are_scored(tmp_path: Path) -> None:
    outcome, _ = _run(tmp_path)
    assert any(bool(tensor.any()) for tensor in outcome.weights.values())
    outcome.load_weights()
    for name, tensor in outcome.model.module.state_dict().items():
        assert torch.equal(tensor.cpu(), outcome.weights[name])


def test_a_plan_that_would_pass_the_lifetime_budget_touches_nothing(tmp_path: Path) -> None:
    keys = {"data.name": "table", "privacy.lifetime_epsilon": 0.5, "privacy.target_epsilon": 4.0}
    simulation, told = _simulation(tmp_path, **keys)
    with pytest.raises(BudgetExceeded, match="lifetime_epsilon"):
        simulation.run()
    assert told == []
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.rows() == []


def test_an_interrupted_run_keeps_its_rounds_and_counts_the_open_one(tmp_path: Path) -> None:
    simulation, told = _simulation(tmp_path)

    def interrupt(row: RoundRow, parties: object) -> None:
        told.append(row)
        if row["round"] == 2:
            raise KeyboardInterrupt

    simulation.on_round = interrupt
    outcome = simulation.run()
    assert outcome.interrupted
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        spent = max(row.epsilon for row in ledger.rows(outcome.run))
    assert outcome.statement["epsilon"] >= spent - 1e-9


def test_without_privacy_nothing_is_charged_and_everything_says_so(tmp_path: Path) -> None:
    outcome, _ = _run(tmp_path, **{"privacy.mechanism": "none"})
    assert not (tmp_path / "ledger.sqlite").exists()
    assert outcome.statement["private"] is False
    assert "NOT PRIVATE" in outcome.statement["statement"]


def test_curves_are_as_if_tables_had_been_read_with_them() -> None:
    keys = {"data.public_test": True}
    read, plain = (
        load_federation(load_config(None, {**keys, "data.curves": curves}))
        for curves in (True, False)
    )
    found = with_curves(plain)
    assert (found.encoding, found.input_shape) == (read.encoding, read.input_shape)
    assert found.input_shape == (90,)
    assert found.public_test is not None
    assert read.public_test is not None
    assert found.public_test.features.equal(read.public_test.features)
    for name, party in read.parties.items():
        same = found.parties[name]
        assert same.test is not None
        assert party.test is not None
        assert same.train.features.equal(party.train.features)
        assert same.test.features.equal(party.test.features)
        assert same.test.frame is plain.parties[name].test.frame  # type: ignore[union-attr]


def test_a_run_by_rule_goes_on_with_the_curves_it_chose(tmp_path: Path) -> None:
    rows = {f"party_{number}": 5000 for number in (1, 2, 3)}  # declared
    keys = {
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "data.rows": rows,
        "data.public_test": True,
    }
    run = Simulation(load_config(None, keys), lambda row, numbers: None)
    assert run.config.data.curves is True
    assert run.federation.encoding.curves
    assert run.model.architecture.input_shape == run.federation.input_shape == (90,)
    assert {table.features.shape[1] for table in run.test_tables} == {90}
    outcome = run.run()
    outcome.load_weights()
    assert [weight.shape for weight in outcome.weights.values() if weight.ndim == 2] == [(1, 90)]
    named = Simulation(
        load_config(None, {**keys, "model.name": "logistic_regression"}), lambda row, numbers: None
    )
    assert named.federation.input_shape == (30,)
