"""Mechanisms that are broken on purpose are caught by one audit, and the sound one is not."""

from typing import Any

import pytest
import torch

from homo_dp.evidence.record_attacks import CanaryGradient, Recipe
from homo_dp.evidence.tradeoff import claim_of
from homo_dp.privacy.training.private_training import PrivateTraining
from tests.evidence.parts import RUNS, Break, broken_training, judged, one_step_recipe


def audited(
    attacked: Recipe, broken: Break | None, runs: int = RUNS, rounds_claimed: int | None = None
) -> Any:
    attack = broken_training(attacked, broken, CanaryGradient)
    if rounds_claimed is not None:
        attack.claim = claim_of(attack.plan.events["aggregator"], attack.plan.delta)
    return judged(attack, runs)


def half_the_noise(training: PrivateTraining) -> None:
    training._noise_multiplier /= 2


def raw_gradients(training: PrivateTraining, rows: torch.Tensor) -> None:
    training.module.zero_grad()
    outputs = training.module(training._features[rows])
    loss = training._loss(outputs, training._labels[rows]).sum()
    found = torch.autograd.grad(loss, training._parameters)
    for place, gradient in zip(training._sums, found, strict=True):
        place.copy_(gradient)


def no_clip(training: PrivateTraining) -> None:
    training._sum_clipped = lambda rows: raw_gradients(training, rows)  # type: ignore[method-assign]


def clip_of_the_batch_mean(training: PrivateTraining) -> None:
    def clipped(rows: torch.Tensor) -> None:
        raw_gradients(training, rows)
        mean = training._sum / len(rows)
        training._sum.copy_(mean / max(1.0, float(mean.norm())) * training.sampler.expected_size)

    training._sum_clipped = clipped  # type: ignore[method-assign]


def no_noise_in_one_layer(training: PrivateTraining) -> None:
    def bias_only(total: torch.Tensor, noise: torch.Tensor) -> None:
        total[-1:] += noise[-1:] * training.noise_multiplier

    training._add_noise = bias_only  # type: ignore[method-assign]


def every_epoch_once(training: PrivateTraining) -> None:
    """Shuffled epochs of four batches, accounted as Poisson."""
    waiting: list[torch.Tensor] = []

    def draw() -> torch.Tensor:
        if not waiting:
            waiting.extend(torch.randperm(len(training._features)).tensor_split(4))
        return waiting.pop()

    training._draw = draw  # type: ignore[method-assign]


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
    outcome = audited(one_step_recipe(), None)
    assert not outcome.refuted
    assert 0.5 * outcome.ceiling < outcome.lower_bound <= outcome.claimed_epsilon
    assert outcome.point_estimate == pytest.approx(
        outcome.claimed_epsilon, rel=0.4
    )  # 3 standard errors of 500 runs
