"""Mechanisms that are broken on purpose are caught by one audit, and the sound one is not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from homo_dp.evidence.record_attacks import CanaryGradient, Recipe
from homo_dp.evidence.tradeoff import claim_of
from homo_dp.privacy.engine.release import ForStep
from tests.evidence.parts import RUNS, Break, broken_training, judged, one_step_recipe
from tests.privacy.broken_training import BatchMeanClip, HalfNoise, NoClip


def audited(
    attacked: Recipe, broken: Break | None, runs: int = RUNS, rounds_claimed: int | None = None
) -> Any:
    attack = broken_training(attacked, broken, CanaryGradient)
    if rounds_claimed is not None:
        attack.claim = claim_of(attack.plan.events["aggregator"], attack.plan.delta)
    return judged(attack, runs)


def half_the_noise(training: Any) -> None:
    training.optimizer._for_step.__class__ = HalfNoise


def no_clip(training: Any) -> None:
    training.optimizer.__class__ = NoClip


def clip_of_the_batch_mean(training: Any) -> None:
    training.optimizer.__class__ = BatchMeanClip


class NoiseOfTheBias(ForStep):
    """Leaves the weights without noise."""

    def _release(
        self, total: Tensor, released: Tensor, start: int, noise: Tensor, *more: Any
    ) -> None:
        noise = noise.clone()
        noise[:-1] = 0.0
        super()._release(total, released, start, noise, *more)


def no_noise_in_one_layer(training: Any) -> None:
    training.optimizer._for_step.__class__ = NoiseOfTheBias


def every_epoch_once(training: Any) -> None:
    """Shuffled epochs of four batches, accounted as Poisson."""
    waiting: list[Tensor] = []

    def draw() -> Tensor:
        if not waiting:
            waiting.extend(torch.randperm(len(training.loader.dataset)).tensor_split(4))
        return waiting.pop()

    training.loader.batch_sampler.drawn.next = draw


@pytest.mark.parametrize(
    "broken", [half_the_noise, no_clip, clip_of_the_batch_mean, no_noise_in_one_layer]
)
def test_broken_noise_and_clipping_are_caught(broken: Break) -> None:
    outcome = audited(one_step_recipe(), broken)
    assert outcome.refuted
    assert outcome.lower_bound > outcome.claimed_epsilon


def test_batches_that_are_not_poisson_are_caught() -> None:
    keys = {"train.sample_rate": 0.25, "train.rounds": 4, "privacy.target_epsilon": 100.0}
    assert audited(one_step_recipe(**keys), every_epoch_once).refuted


def test_an_accountant_that_is_reset_each_round_is_caught() -> None:
    outcome = audited(
        one_step_recipe(**{"train.rounds": 6, "privacy.target_epsilon": 12.0}),
        None,
        rounds_claimed=1,
    )
    assert outcome.lower_bound > outcome.claimed_epsilon


def test_the_sound_mechanism_is_not() -> None:
    outcome = audited(one_step_recipe(), None, 1000)
    assert not outcome.refuted
    assert 0.5 * outcome.ceiling < outcome.lower_bound <= outcome.claimed_epsilon
    # 3 standard errors of 500 runs, 6 of these
    assert outcome.point_estimate == pytest.approx(outcome.claimed_epsilon, rel=0.4)
