"""DP-FedAvg under masks: what one user can move, whose noise counts, who is trained, and whole
rounds.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts
from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.build import build_fit, federation_facts, run_budget
from homo_dp.federation.sessions.party import PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.federation.sessions.secure_rounds import simulated_sums
from homo_dp.federation.users.cohorts import Together
from homo_dp.models.registry import build_model
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import SeededNoise, secure_noise
from homo_dp.runs.dry_run import plan_of
from homo_dp.runs.simulation import RunOutcome
from homo_dp.runs.user_simulation import HolderSimulation, UserSimulation, build_simulation
from tests.federation.small import FEATURES, RUN, small_table
from tests.federation.user_parts import (
    ADAPTIVE,
    EVERYONE,
    FIXED,
    POISSON,
    SERVER,
    Keys,
    user_config,
)

MASKED: Keys = {
    "privacy.noise_at": "parties",
    "privacy.trust_aggregator": False,
    "privacy.secure_aggregation": True,
}
Z, C, WEIGHTS, HOLDERS = 2.0, 3.0, 7, 5


def masked(*parts: Keys, holders: int = HOLDERS, seed: int = 0) -> DpFedAvg:
    config = user_config(MASKED, *parts)
    parties = {
        f"p{number}": PartyFacts(f"p{number}", 40, config.train.rounds, 3, 0.1)
        for number in range(holders)
    }
    return DpFedAvg(
        config, FederationFacts(parties, config.train.rounds, WEIGHTS), SeededNoise(seed)
    )


def sum_of(mechanism: DpFedAvg, rows: Tensor) -> CohortSum:
    total = mechanism.open_sum({"weight": torch.zeros(WEIGHTS)})
    total.add(
        mechanism.contributions(rows, mechanism.clip_norm, torch.ones(len(rows), dtype=torch.bool))
    )
    return total


@pytest.mark.parametrize("sampling", [POISSON, EVERYONE])
@pytest.mark.parametrize("clipping", [{}, ADAPTIVE])
def test_the_aggregator_pays_what_a_reader_pays(sampling: Keys, clipping: Keys) -> None:
    mechanism = masked(sampling, clipping)
    plan = mechanism.plan(mechanism.facts.parties["p0"])
    assert (
        plan.events["aggregator"]
        == plan.events["model_reader"]
        == mechanism.numbers.sampler.event(Z)
    )
    assert not plan.trusts_aggregator
    assert mechanism.ledger_keeper == "party"
    assert plan.extra["noise_shared_by"] == HOLDERS
    assert plan.sigma == pytest.approx(
        mechanism.numbers.update_multiplier * C / math.sqrt(HOLDERS - 1)
    )


def test_a_target_buys_the_noise_of_a_trusted_aggregator() -> None:
    target: Keys = {
        "privacy.noise_multiplier": None,
        "privacy.target_epsilon": 2.0,
        "privacy.delta": 1e-4,
    }
    trusted = DpFedAvg(
        user_config(target, POISSON), masked(POISSON).facts, secure_noise()
    ).numbers.noise_multiplier
    assert masked(target, POISSON).numbers.noise_multiplier == trusted


@pytest.mark.parametrize("clipping", [{}, ADAPTIVE])
@pytest.mark.parametrize("length", [0.0, 2.9, 3.0, 1e6, math.nan])
def test_one_user_moves_the_vector_by_at_most_its_clip_norm(clipping: Keys, length: float) -> None:
    """Update and bit together; the bit of a user who is not there is 0, so that it moves by a
    half.
    """
    mechanism = masked(clipping)
    assert mechanism.cohorts is not None
    row = (
        torch.nn.functional.normalize(torch.randn(1, WEIGHTS, dtype=torch.float64), dim=1) * length
    )
    vector = mechanism.cohorts._vector(sum_of(mechanism, row))
    most = mechanism.cohorts.private_sum.clip_norm
    assert float(vector.norm()) <= most * (1 + 1e-12)
    if length == 3.0:
        # and not less: the noise is for all of it
        assert float(vector.norm()) == pytest.approx(most, rel=1e-5)


@pytest.mark.parametrize(("clipping", "unit"), [({}, 1.0), (ADAPTIVE, 1.0), (ADAPTIVE, 1.1)])
def test_noise_over_what_one_user_moves_is_z(clipping: Keys, unit: float) -> None:
    """The last case is a broken one: bits that weigh more than their noise was made for."""
    mechanism = masked(clipping)
    assert mechanism.cohorts is not None
    sigma = mechanism.cohorts.private_sum.sigma
    row = torch.zeros(1, WEIGHTS, dtype=torch.float64)
    row[0, 0] = C
    vector = mechanism.cohorts._vector(sum_of(mechanism, row))
    if clipping:
        vector[-1] *= unit
    holds = sigma / float(vector.norm()) >= Z * (1 - 1e-9)
    assert holds is (unit == 1.0)


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (1 / math.sqrt(HOLDERS - 1), False)])
def test_the_noise_of_the_honest_holders_is_all_of_it(wrong: float, passes: bool) -> None:
    """Noise of N - 1 holders against z C; 4 standard errors over 400 releases of 8 numbers:
    false alarms below 1e-4.
    """
    mechanism = masked(ADAPTIVE, POISSON)
    assert mechanism.cohorts is not None
    empty = mechanism.open_sum({"weight": torch.zeros(WEIGHTS)})
    found = mechanism.cohorts.private_sum
    totals = []
    for _ in range(400):
        steps = sum(mechanism.cohorts.released(empty, mechanism.noise) for _ in range(HOLDERS - 1))
        assert isinstance(steps, Tensor)
        opened = mechanism.cohorts.opened(steps * found.grid.step * wrong, C, HOLDERS)
        totals.append(torch.cat([opened.updates / C, torch.tensor([opened.bits])]))
    stds = torch.stack(totals).std(0)
    wanted = torch.tensor(
        [mechanism.numbers.update_multiplier] * WEIGHTS + [mechanism.numbers.bit_noise or 0.0]
    )
    assert bool((stds / wanted > 1 - 4 / math.sqrt(800)).all()) is passes


def test_a_total_comes_back_as_the_sum_of_updates_and_bits() -> None:
    mechanism = masked(ADAPTIVE)
    assert mechanism.cohorts is not None
    total = sum_of(mechanism, torch.randn(4, WEIGHTS, dtype=torch.float64))
    opened = mechanism.cohorts.opened(mechanism.cohorts._vector(total), total.clip_norm, HOLDERS)
    assert torch.allclose(opened.updates, total.updates)
    assert opened.bits == pytest.approx(total.bits)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (SERVER, "noise_at"),
        (FIXED, "privacy.sampling"),
        ({"privacy.tolerated_dropouts": 4}, "nobody is left"),
        (
            {"privacy.secure_aggregation": False, "privacy.tolerated_colluders": 2, **FIXED},
            "tolerated_colluders",
        ),
    ],
)
def test_what_cannot_hold_is_refused(keys: Keys, named: str) -> None:
    with pytest.raises((ConfigError, PrivacyError), match=named):
        masked(keys)


def test_a_model_with_frozen_weights_is_refused_before_a_row_is_touched() -> None:
    mechanism = masked({"privacy.public_tensors": ["bias"]})
    module = torch.nn.Linear(WEIGHTS - 1, 1)
    module.bias.requires_grad = False
    with pytest.raises(PrivacyError, match="6 of 7 weights"):
        mechanism.check_model(module)


def test_a_party_alone_or_without_its_users_releases_nothing(tmp_path: Path) -> None:
    """One party cannot mask, and a fit of one user is a row of a sum that has its noise to come."""
    with pytest.raises(PrivacyError, match="two parties"):
        masked(holders=1).check_model(torch.nn.Linear(WEIGHTS - 1, 1))
    config = user_config(MASKED, POISSON)
    table, parties = small_table(), ["a", "b", "c"]
    facts = federation_facts(config, dict.fromkeys(parties, len(table)), FEATURES + 1)
    fit = build_fit(
        config, build_model(config.model, (FEATURES,), (0, 1)), table, facts.parties["a"]
    )
    mechanism = DpFedAvg(config, facts, secure_noise())
    release = fit.fit(mechanism, fit.weights(), 1, {"clip_norm": C})
    assert release.event is None
    sums = simulated_sums(RUN, parties, mechanism)
    assert sums is not None
    settings = PartySettings("a", RUN, "small", run_budget(config))
    party = Party(settings, fit, mechanism, Ledger(tmp_path / "ledger.sqlite"), sums=sums[1]["a"])
    with pytest.raises(PrivacyError, match="one vector"):
        party._answer(Message(RUN, 1, "aggregator", "a", "weights", fit.weights()), release)


# --- whole runs in one process ---

SMALL: Keys = {
    "data.embedded": "users",
    "privacy.mechanism": "dp_fedavg",
    "privacy.unit": "user",
    "privacy.delta": 1e-4,
    "privacy.noise_multiplier": 1.5,
    "privacy.cohort_size": 100,
    "train.rounds": 3,
    "train.batch_size": 10,
    "train.learning_rate": 0.5,
    **MASKED,
}
THREE: Keys = {"data.partition": {"kind": "iid", "parties": 3}}


def run(folder: Path, *parts: Keys) -> tuple[RunOutcome, HolderSimulation | UserSimulation]:
    keys: Keys = dict(SMALL)
    for part in parts:
        keys |= part
    simulation = build_simulation(
        load_config(None, {**keys, "privacy.ledger": str(folder / "ledger.sqlite")}),
        lambda row, numbers: None,
    )
    assert isinstance(simulation, HolderSimulation | UserSimulation)
    return simulation.run(), simulation


@pytest.mark.parametrize(
    "clipping", [{}, {"privacy.clipping": "adaptive", "privacy.adaptive.bit_noise": 1.0}]
)
def test_hardly_any_noise_gives_the_sum_of_all_users(clipping: Keys, tmp_path: Path) -> None:
    """Three holders under masks and one process with all users end with the same weights."""
    quiet: Keys = {
        "privacy.noise_multiplier": 1e-5,
        "privacy.sampling": "everyone",
        "privacy.cohort_size": None,
    }
    apart, simulation = run(tmp_path / "a", quiet, THREE, clipping)
    together, _ = run(
        tmp_path / "b", quiet, THREE, SERVER, {"privacy.secure_aggregation": False}, clipping
    )
    assert isinstance(simulation, HolderSimulation)
    for name, tensor in together.weights.items():
        assert torch.allclose(tensor, apart.weights[name], atol=2e-2 if clipping else 1e-5)
    if clipping:
        assert apart.rounds[-1]["clip_norm"] == pytest.approx(
            together.rounds[-1]["clip_norm"], rel=0.02
        )


@pytest.mark.parametrize("holders", [THREE, {}])
def test_ledger_statement_and_dry_run_say_who_shares_the_noise(
    holders: Keys, tmp_path: Path
) -> None:
    outcome, simulation = run(tmp_path, holders)
    count = 3 if holders else 400
    planned = plan_of(simulation.config)
    assert any(f"{count} parties share the noise" in note for note in planned.notes)
    statement = outcome.statement
    assert statement["observers"]["aggregator"] == statement["observers"]["model_reader"]
    assert statement["noise_shared_by"] == count
    assert simulation.ledger is not None
    rows = simulation.ledger.rows()
    assert len(rows) == 3 * (3 if holders else 1)
    assert all(
        f"shared by {count} parties" in row.noise and row.observer == "aggregator" for row in rows
    )
    assert "replied" not in outcome.rounds[0]


class Counted(Together):
    """Writes down how many users were trained in each call."""

    def run(self, mechanism: Any, chosen: Tensor, weights: Any, round_number: int) -> CohortSum:
        self._widths.setdefault("trained", 0)
        self._widths["trained"] += len(chosen)
        return super().run(mechanism, chosen, weights, round_number)


def test_the_time_of_a_round_does_not_tell_whether_its_one_user_was_drawn(tmp_path: Path) -> None:
    keys: Keys = {"data.embedded": "breast_cancer", "privacy.delta": 0.01, "privacy.cohort_size": 2}
    _, simulation = run(tmp_path, THREE, keys)
    fit: Any = simulation._fit("party_1")
    training = fit.training
    fit.training = Counted(training.model, training.loss, training.users, training.train)
    mechanism = simulation._mechanism()
    weights = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    for number in range(1, 13):
        fit.fit(mechanism, weights, number, {"clip_norm": 1.0})
        assert fit.training._widths["trained"] == number


def test_the_order_of_names_in_a_message_changes_nothing(tmp_path: Path) -> None:
    _, simulation = run(
        tmp_path, THREE, {"privacy.sampling": "everyone", "privacy.cohort_size": None}
    )
    fit: Any = simulation._fit("party_1")
    weights = {name: torch.randn_like(tensor) for name, tensor in fit.model.state_dict().items()}
    released = []
    for names in (sorted(weights), sorted(weights, reverse=True)):
        mechanism = simulation._mechanism()
        mechanism.noise = SeededNoise(5)
        ordered = {name: weights[name] for name in names}
        released.append(fit.fit(mechanism, ordered, 1, {"clip_norm": 1.0}).tensors["sum"])
    assert torch.equal(*released)
