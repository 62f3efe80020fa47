"""NbAFL's download noise under masks: parties share it, and nobody has to trust the aggregator."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts
from homo_dp.federation.mechanisms.nbafl import Nbafl
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent, NoOpDpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger.rows import FREE, NOISE_ALONE, Charge
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.runs.dry_run import plan_of
from homo_dp.runs.simulation import Simulation
from tests.federation.nbafl_parts import closed_form

C, ROUNDS, EXPOSURES, NAMES = 2.0, 8, 2, ("a", "b", "c", "d")
KEYS: dict[str, Any] = {
    "privacy.mechanism": "nbafl",
    "privacy.secure_aggregation": True,
    "nbafl.noise_at_upload": False,
    "nbafl.exposures": EXPOSURES,
    "nbafl.clip_norm": C,
    "nbafl.epsilon": 10.0,
    "train.rounds": ROUNDS,
}


def masked(
    rows: dict[str, int] | None = None, parameters: int = 6, keys: dict[str, Any] | None = None
) -> Nbafl:
    config = load_config(None, KEYS | (keys or {}))
    counts = rows or dict.fromkeys(NAMES, 50)
    parties = {name: PartyFacts(name, count, ROUNDS, 1, 1.0) for name, count in counts.items()}
    return Nbafl(config, FederationFacts(parties, ROUNDS, parameters), secure_noise())


def test_no_trust_is_needed_and_both_observers_pay_for_the_exposures() -> None:
    mechanism = masked()
    plan = mechanism.plan(mechanism.facts.parties["a"])
    assert not mechanism.capabilities.leaves_noise_to_aggregator(mechanism.config)
    assert mechanism.ledger_keeper == "party"
    assert (
        plan.events["aggregator"]
        == plan.events["model_reader"]
        == GaussianDpEvent(mechanism.reader_multiplier)
    )
    assert plan.trained_by(ROUNDS) == EXPOSURES
    assert plan.sigma == pytest.approx(mechanism.download_sigma / math.sqrt(len(NAMES) - 1))


@pytest.mark.parametrize("rows", [None, {"a": 300, "b": 50, "c": 50, "d": 100}])
def test_noise_over_what_a_record_moves_is_that_of_the_event(rows: dict[str, int] | None) -> None:
    """Replacing a record moves a party's upload by 2 C at most, and the mean by 2 C times its
    part in it.
    """
    mechanism = masked(rows, keys={"train.weighting": "rows"} if rows else None)
    found = mechanism.masked_sum
    assert found is not None
    most = max(
        share for number in range(1, ROUNDS + 1) for share in mechanism._shares(number).values()
    )
    assert found.sigma / (2 * C * most) == pytest.approx(mechanism.reader_multiplier)
    assert found.clip_norm == pytest.approx(C * most)


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (1 / math.sqrt(len(NAMES) - 1), False)])
def test_honest_noise_is_the_download_noise(wrong: float, passes: bool) -> None:
    """4 standard errors over 2,000 numbers; the other case shares sigma / (N - t), a classic
    mistake.
    """
    mechanism = masked(parameters=2000)
    found = mechanism.masked_sum
    assert found is not None
    total = (
        torch.stack([mechanism.noise_alone().tensors["sum"] for _ in NAMES[1:]]).sum(0)
        * found.grid.step
        * wrong
    )
    assert bool(total.std() > mechanism.download_sigma * (1 - 4 / math.sqrt(4000))) is passes


def test_the_mean_is_of_those_whose_turn_it_was() -> None:
    """Parts of a round add up to one; who is missing leaves the others' mean."""
    mechanism = masked()
    cohort = mechanism._cohorts[1]
    current = {"w": torch.zeros(6)}
    part = mechanism._shares(1)[cohort[0]]
    total = torch.full((6,), part, dtype=torch.float64)  # one of the cohort, with weights of 1
    moved = mechanism.on_total(total, [cohort[0]], current, 1)
    assert torch.allclose(moved.weights["w"], torch.ones(6))
    others = [name for name in NAMES if name not in cohort]
    assert mechanism.on_total(total, others, current, 1).discarded


def test_uploads_with_noise_or_a_model_with_buffers_are_refused() -> None:
    with pytest.raises(ConfigError, match="noise_at_upload"):
        masked(keys={"nbafl.noise_at_upload": True})
    with pytest.raises(PrivacyError, match="buffers"):
        masked(parameters=4).check_model(nn.BatchNorm1d(2))


def test_noise_alone_costs_nothing_and_nothing_else_may_say_so() -> None:
    base: dict[str, Any] = {
        "run": "r",
        "dataset": "d",
        "unit": "record",
        "relation": "replace_one",
        "party": "p",
    }
    base |= {"round": 1, "delta": 1e-5, "sigma": 1.0, "observer": "aggregator"}
    assert Charge(**base, kind=NOISE_ALONE, event=NoOpDpEvent())
    with pytest.raises(PrivacyError, match="no release"):
        Charge(**base, kind="update", event=NoOpDpEvent())
    for kind in FREE:
        with pytest.raises(PrivacyError, match="no release of rows"):
            Charge(**base, kind=kind, event=GaussianDpEvent(1.0))


def test_a_simulation_pays_for_the_exposures_and_moves_the_model(tmp_path: Path) -> None:
    keys = {
        "data.partition": {"kind": "iid", "parties": 4},
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
    }
    config = load_config(None, KEYS | keys)
    simulation = Simulation(config, lambda row, numbers: None)
    outcome = simulation.run()
    mechanism = simulation.mechanism
    assert isinstance(mechanism, Nbafl)
    assert simulation.ledger is not None
    rows = [row for row in simulation.ledger.rows() if row.party == "party_1"]
    own = mechanism._rounds["party_1"]
    assert [row.round for row in rows] == list(range(1, ROUNDS + 1))
    assert {row.round for row in rows if row.kind == "update"} == set(own)
    assert {row.round for row in rows if row.kind == NOISE_ALONE} == set(
        range(1, ROUNDS + 1)
    ) - set(own)
    assert all("shared by 4 parties" in row.noise for row in rows)
    accounted = closed_form(mechanism.reader_multiplier, EXPOSURES, 1e-5)
    assert max(row.epsilon_pld or 0.0 for row in rows) == pytest.approx(accounted, rel=1e-6)
    assert outcome.statement["observers"]["aggregator"]["epsilon"] == pytest.approx(
        accounted, rel=1e-6
    )
    assert outcome.statement["noise_shared_by"] == 4
    assert all(tensor.any() for tensor in outcome.weights.values())
    assert any("4 parties share the noise" in note for note in plan_of(config).notes)


def test_hardly_any_noise_gives_the_mean_of_the_cohort(tmp_path: Path) -> None:
    """The masked mean against the one that a trusted aggregator takes."""
    keys = {
        "data.partition": {"kind": "iid", "parties": 4},
        "nbafl.epsilon": 1e6,
        "train.weighting": "rows",
    }
    found = []
    for secure in (True, False):
        trust = {"privacy.secure_aggregation": secure, "privacy.trust_aggregator": not secure}
        ledger = {"privacy.ledger": str(tmp_path / f"{secure}.sqlite")}
        simulation = Simulation(
            load_config(None, KEYS | keys | trust | ledger), lambda row, numbers: None
        )
        found.append(simulation.run().weights)
    for name, tensor in found[0].items():
        assert torch.allclose(tensor, found[1][name], atol=1e-4)
