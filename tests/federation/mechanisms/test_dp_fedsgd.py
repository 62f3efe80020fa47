"""DP-FedSGD: what a round releases, what it costs, and where the model goes."""

import math
from pathlib import Path

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import Update
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.mechanisms.shared_noise import noise_label
from homo_dp.privacy.noise.grid import on_grid
from homo_dp.runs.simulation import Simulation
from tests.federation.small import (
    small_config,
    small_mechanism,
    small_party,
    small_table,
    weights_message,
    zeros,
)

KEYS = {"privacy__mechanism": "dp_fedsgd", "train__local_steps": None}


def test_a_round_is_one_step_at_one_rate_and_costs_the_sampled_gaussian() -> None:
    config = small_config(**KEYS)
    mechanism = small_mechanism(config, {"a": 20, "b": 60})
    plan = mechanism.plan(mechanism.facts.parties["a"])
    expected = SelfComposedDpEvent(PoissonSampledDpEvent(0.5, GaussianDpEvent(2.0)), 1)
    assert plan.events["aggregator"] == expected
    assert plan.sigma == 2.0
    assert {facts.steps_per_round for facts in mechanism.facts.parties.values()} == {1}


def test_batches_of_a_size_become_one_rate_for_all_rows() -> None:
    config = small_config(**KEYS, train__sample_rate=None, train__batch_size=10)
    mechanism = small_mechanism(config, {"a": 20, "b": 60})
    assert {facts.sample_rate for facts in mechanism.facts.parties.values()} == {20 / 80}


def test_an_update_is_the_clipped_sum_with_noise_on_its_grid(tmp_path: Path) -> None:
    config = small_config(**KEYS, train__sample_rate=1.0, privacy__noise_multiplier=1e-3)
    table = small_table()
    party = small_party(config, tmp_path, table=table)
    answer = party.handle(weights_message())
    assert answer is not None
    assert table.labels is not None
    weight = answer.tensors["linear.weight"].reshape(-1)
    assert table.labels is not None
    residual = 0.5 - table.labels.double()  # of the sigmoid at zero weights
    rows = torch.cat([table.features.double() * residual[:, None], residual[:, None]], 1)
    clipped = rows * (1 / rows.norm(dim=1)).clamp(max=1.0)[:, None]
    assert torch.allclose(weight.double(), clipped.sum(0)[:3], rtol=0.02, atol=0.02)
    assert on_grid(weight, 1e-3)
    assert party.ledger is not None
    assert len(party.ledger.rows("run-1", "a")) == 1


def test_the_aggregator_divides_by_the_expected_sample_and_steps() -> None:
    mechanism = small_mechanism(small_config(**KEYS, train__learning_rate=0.5), {"a": 20, "b": 60})
    ones = {name: torch.ones_like(tensor) for name, tensor in zeros().items()}
    combined = mechanism.on_receive([Update("a", ones, 1.0), Update("b", ones, 1.0)], zeros(), 1)
    for tensor in combined.weights.values():
        assert torch.allclose(tensor, torch.full_like(tensor, -0.5 * 2 / 40))


def test_shared_noise_is_a_share_of_one_tables_noise() -> None:
    rows = dict.fromkeys("abcde", 20)
    alone = small_mechanism(small_config(**KEYS), rows)
    shared = small_mechanism(small_config(**KEYS, privacy__secure_aggregation=True), rows)
    party = shared.facts.parties["a"]
    assert isinstance(shared, DpFedSgd)
    assert shared.masked_sum is not None
    assert alone.masked_sum is None
    assert shared.plan(party).sigma == alone.plan(party).sigma / math.sqrt(4)  # N - 1 colluder
    assert shared.plan(party).events == alone.plan(party).events
    assert "5 parties share" in shared.plan(party).notes[0]
    assert "pooled" in alone.plan(party).notes[0]
    assert "shared by 5 parties, 0 dropouts and 1 colluders" in noise_label(
        shared.noise.label, shared.noise_share
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"train__local_steps": 2},
        {"train__momentum": 0.9},
        {"train__optimizer": "adam"},
        {"train__proximal_mu": 0.1},
        {"privacy__tolerated_dropouts": 1},
        {"privacy__tolerated_colluders": 2},
    ],
)
def test_settings_without_a_meaning_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        small_config(**{**KEYS, **keys})


def test_a_party_without_masks_sends_no_share_of_noise(tmp_path: Path) -> None:
    config = small_config(**KEYS, privacy__secure_aggregation=True)
    mechanism = small_mechanism(config, {"a": 20, "b": 20, "c": 20})
    with pytest.raises(ValueError, match="secure_aggregation"):
        small_party(config, tmp_path, mechanism=mechanism)


@pytest.mark.parametrize("secure", [False, True])
def test_a_simulation_trains_and_its_ledger_says_who_shares_the_noise(
    tmp_path: Path, secure: bool
) -> None:
    keys = {
        "privacy.mechanism": "dp_fedsgd",
        "privacy.secure_aggregation": secure,
        "privacy.noise_multiplier": 1.0,
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "train.auto": False,
        "train.rounds": 3,
        "train.sample_rate": 1.0,
    }
    run = Simulation(load_config(None, keys), lambda row, numbers: None)
    outcome = run.run()
    assert outcome.rounds[-1]["test_loss"] < 0.5
    assert outcome.statement["secure_aggregation"] == ("on" if secure else "off")
    assert outcome.statement["delta_with_neglected"] > outcome.statement["delta"]
    assert run.ledger is not None
    rows = run.ledger.rows(outcome.run, "party_1")
    assert len(rows) == 3
    assert ("shared by 3 parties" in rows[0].noise) is secure
    assert rows[0].sigma == pytest.approx(1 / math.sqrt(2) if secure else 1.0)


def test_masks_are_advised_where_they_would_save_noise() -> None:
    config = small_config(**KEYS)
    two, three = (small_mechanism(config, dict.fromkeys(names, 20)) for names in ("ab", "abc"))
    assert "secure_aggregation" not in two.plan(two.facts.parties["a"]).notes[0]
    assert "with 1.22 times" in three.plan(three.facts.parties["a"]).notes[0]
