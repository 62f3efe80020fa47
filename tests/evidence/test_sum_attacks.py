"""Attacks on sums: broken noise, shared seeds, secret divisors and float lattices are caught, a
sound sum is not.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from homo_dp.compat.load import load
from homo_dp.evidence.record_attacks import Recipe
from homo_dp.evidence.sum_attacks import CanaryCount, CanaryDifference, CanarySum
from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.sessions.build import federation_facts, noise_source
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import PrivateSum
from tests.evidence.low_bits_attack import LowBits
from tests.evidence.parts import broken_training, judged, one_step_recipe
from tests.privacy.broken_noise import SharedSeed, four_fold_float32


def sum_recipe(parties: int, features: int = 3, **keys: Any) -> Recipe:
    base = {
        "privacy.mechanism": "dp_fedsgd",
        "train.rounds": 1,
        "train.sample_rate": 1.0,
        "train.batch_size": None,
        "train.local_epochs": None,
        "privacy.target_epsilon": 4.0,
    }
    config = load(None, list((base | keys).items())).config
    return Recipe(config, (features,), (0, 1), dict.fromkeys("abcdef"[:parties], 50), "a")


MASKED = {"privacy.secure_aggregation": True}


@pytest.mark.parametrize("keys", [{}, MASKED])
def test_a_sound_sum_is_not_refuted_and_is_nearly_read(keys: dict[str, Any]) -> None:
    outcome = judged(CanarySum(sum_recipe(4, **keys)))
    assert not outcome.refuted
    assert 0.5 * outcome.ceiling < outcome.lower_bound <= outcome.claimed_epsilon


def test_a_noise_share_that_is_too_small_is_caught() -> None:
    """z C / N at each of N parties, where z C / sqrt(N - t) is due."""
    attacked = sum_recipe(5, **MASKED)

    class TooSmall(DpFedSgd):
        def _sum(self, party: PartyFacts) -> PrivateSum:
            sound = super()._sum(party)
            share = sound.noise_multiplier / math.sqrt(4) * 4 / 5
            return replace(sound, noise_multiplier=share)

    outcome = judged(broken_sum(attacked, TooSmall))
    assert outcome.refuted


def broken_sum(attacked: Recipe, broken: type[DpFedSgd]) -> CanarySum:
    """The claim of the sound mechanism, and the sums of a broken one."""
    config = attacked.config
    facts = federation_facts(config, attacked.rows, attacked.inputs + 1)
    attack = CanarySum(attacked, lambda: broken(config, facts, noise_source(config)))
    sound = CanarySum(attacked)
    attack.claim, attack.plan = sound.claim, sound.plan
    return attack


def test_parties_that_share_a_seed_are_caught() -> None:
    attacked = sum_recipe(2)
    config = attacked.config
    facts = federation_facts(config, attacked.rows, 4)
    outcome = judged(CanaryDifference(attacked, lambda: DpFedSgd(config, facts, SharedSeed())))
    assert outcome.refuted
    assert not judged(CanaryDifference(attacked)).refuted


def test_division_by_the_secret_row_count_is_caught() -> None:
    def by_the_secret_count(training: Any) -> None:
        training.optimizer.expected_batch_size = len(training.loader.dataset)

    attacked = one_step_recipe()
    assert judged(broken_training(attacked, by_the_secret_count, CanaryCount), 1000).refuted
    assert not judged(CanaryCount(attacked)).refuted


def test_noise_on_a_float32_lattice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = sum_recipe(1, 300, **{"privacy.target_epsilon": 0.1})
    assert not judged(LowBits(attacked), 60).refuted

    def lattice(self: PrivateSum, total: torch.Tensor, noise: NoiseSource) -> torch.Tensor:
        return four_fold_float32(total, self.sigma, noise).double()

    monkeypatch.setattr(PrivateSum, "release", lattice)
    assert judged(LowBits(attacked), 60).refuted
