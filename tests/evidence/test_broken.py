"""Mechanisms that are broken on purpose are caught by one audit, and the sound one is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from homo_dp.config.load import load
from homo_dp.evidence.audit import Scores, judge
from homo_dp.evidence.profile import claim_of
from homo_dp.evidence.records import CanaryGradient, Recipe
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.build import federation_facts, noise_source
from homo_dp.privacy.training.private_training import PrivateTraining

RUNS = 250  # with the canary, and as many without; false alarms at 0.99: below 1 in 1,000

Break = Callable[[PrivateTraining], None]


def recipe(**train: Any) -> Recipe:
    keys = {"train.rounds": 1, "train.local_steps": 1, "train.sample_rate": 1.0, "privacy.target_epsilon": 4.0} | train
    config = load(None, [*keys.items(), ("train.batch_size", None), ("train.local_epochs", None)]).config
    return Recipe(config, (3,), (0, 1), {"a": 50}, "a")


def audited(attacked: Recipe, broken: Break | None, runs: int = RUNS, rounds_claimed: int | None = None) -> Any:
    class Broken(DpSgd):
        def before_fit(self, fit: LocalFit) -> None:
            first = self._training is None
            super().before_fit(fit)
            if first and broken is not None and self._training is not None:
                broken(self._training)

    config = attacked.config
    attack = CanaryGradient(
        attacked, lambda: Broken(config, federation_facts(config, attacked.rows, 4), noise_source(config))
    )
    if rounds_claimed is not None:
        attack.claim = claim_of(attack.plan.events["aggregator"], attack.plan.delta)
    return judge(attack, Scores(attack.scores(True, runs), attack.scores(False, runs)), 0.99)


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
    def bias_only(vectors: Any) -> None:
        training._sum[-1:] += vectors.next()[-1:] * training.noise_multiplier

    training._add_noise = bias_only  # type: ignore[method-assign]


def every_epoch_once(training: PrivateTraining) -> None:
    """Shuffled epochs of four batches, accounted as Poisson."""
    waiting: list[torch.Tensor] = []

    def draw() -> torch.Tensor:
        if not waiting:
            waiting.extend(torch.randperm(len(training._features)).tensor_split(4))
        return waiting.pop()

    training._draw = draw  # type: ignore[method-assign]


@pytest.mark.parametrize("broken", [half_the_noise, no_clip, clip_of_the_batch_mean, no_noise_in_one_layer])
def test_broken_noise_and_clipping_are_caught(broken: Break) -> None:
    outcome = audited(recipe(), broken)
    assert outcome.refuted
    assert outcome.lower_bound > outcome.claimed_epsilon


def test_batches_that_are_not_poisson_are_caught() -> None:
    keys = {"train.sample_rate": 0.25, "train.rounds": 4, "privacy.target_epsilon": 100.0}
    assert audited(recipe(**keys), every_epoch_once).refuted


def test_an_accountant_that_is_reset_each_round_is_caught() -> None:
    outcome = audited(recipe(**{"train.rounds": 6, "privacy.target_epsilon": 12.0}), None, rounds_claimed=1)
    assert outcome.lower_bound > outcome.claimed_epsilon


def test_the_sound_mechanism_is_not() -> None:
    outcome = audited(recipe(), None)
    assert not outcome.refuted
    assert 0.5 * outcome.ceiling < outcome.lower_bound <= outcome.claimed_epsilon
    assert outcome.point_estimate == pytest.approx(outcome.claimed_epsilon, rel=0.25)
