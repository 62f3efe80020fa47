"""DP-SGD as a mechanism: what it plans is what it charges, and a private row count is never used
as a divisor.
"""

from pathlib import Path

import pytest
import torch

from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.federation.small import (
    small_config,
    small_mechanism,
    small_party,
    small_table,
    weights_message,
)


def test_the_event_of_a_round_is_the_planned_one(tmp_path: Path) -> None:
    party = small_party(small_config(), tmp_path)
    party.handle(weights_message())
    assert party.ledger is not None
    assert party.ledger.rows()[0].event == to_json(party.plan.events["aggregator"])


def test_a_target_covers_all_rounds_and_not_one() -> None:
    config = small_config(privacy__target_epsilon=2.0, privacy__noise_multiplier=None)
    mechanism = small_mechanism(config, {"a": 20})
    plan = mechanism.plan(mechanism.facts.parties["a"])
    steps = mechanism.facts.parties["a"].steps_per_round
    one_round = epsilon(plan.events["aggregator"], plan.delta).quoted
    all_rounds = epsilon(
        PoissonSampler(20, 0.5).event(plan.noise_multiplier, 2 * steps), plan.delta
    ).quoted
    assert one_round < 1.99
    assert 1.98 < all_rounds <= 2.0


def test_delta_must_be_below_one_over_rows() -> None:
    config = small_config(privacy__delta=0.06)
    mechanism = small_mechanism(config, {"a": 20})
    with pytest.raises(PrivacyError, match="delta"):
        mechanism.plan(mechanism.facts.parties["a"])


def test_sums_are_divided_by_the_declared_rows(tmp_path: Path) -> None:
    """With no signal at all (zero features, learning rate 1) the weights are the noise over the
    declared batch.

    40 rows declared, 20 held: the standard deviation of one step is sigma / (q * 40), not sigma /
    (q * 20). The bound is 6 standard errors of the deviation of 3 * 400 draws: a false alarm in
    less than one run in 1e8.
    """
    config = small_config(
        train__local_steps=1,
        train__rounds=500,
        train__learning_rate=1.0,
        privacy__noise_multiplier=4.0,
    )
    mechanism = small_mechanism(config, {"a": 40})
    table = small_table(20)
    table.features.zero_()
    party = small_party(config, tmp_path, mechanism=mechanism, table=table)
    drawn = []
    for number in range(1, 401):
        release = party.fit.fit(mechanism, dict(weights_message(number).tensors), number, {})
        drawn.append(release.tensors["linear.weight"].flatten())
    found = float(torch.cat(drawn).std())
    expected = 4.0 / (0.5 * 40)
    assert abs(found / expected - 1) < 6 / (2 * 1200) ** 0.5


def test_sigma_reported_is_the_sigma_of_the_training(tmp_path: Path) -> None:
    config = small_config(privacy__max_grad_norm=0.25)
    party = small_party(config, tmp_path)
    party.handle(weights_message())
    assert isinstance(party.mechanism, DpSgd)
    assert party.applied_sigma == 2.0 * 0.25
