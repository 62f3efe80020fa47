"""Mechanisms that are broken on purpose are caught by one audit, and the sound one is not."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from homo_dp.config.load import load
from homo_dp.core.errors import MessageError
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.audit import Scores, judge
from homo_dp.evidence.failing_fits_attack import UnchargedFits
from homo_dp.evidence.record_attacks import CanaryGradient, PartyOfAttack, Recipe
from homo_dp.evidence.sum_attacks import CanaryCount, CanaryDifference, CanarySum, LowBits
from homo_dp.evidence.tradeoff import claim_of
from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.build import federation_facts, noise_source
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.training.private_training import PrivateTraining
from tests.privacy.broken_noise import SharedSeed, four_fold_float32

RUNS = 250  # with the canary, and as many without; the noise is the same in every run of these tests

Break = Callable[[PrivateTraining], None]


def recipe(**train: Any) -> Recipe:
    keys = {"train.rounds": 1, "train.local_steps": 1, "train.sample_rate": 1.0, "privacy.target_epsilon": 4.0} | train
    config = load(None, [*keys.items(), ("train.batch_size", None), ("train.local_epochs", None)]).config
    return Recipe(config, (3,), (0, 1), {"a": 50}, "a")


def audited(attacked: Recipe, broken: Break | None, runs: int = RUNS, rounds_claimed: int | None = None) -> Any:
    attack = broken_training(attacked, broken, CanaryGradient)
    if rounds_claimed is not None:
        attack.claim = claim_of(attack.plan.events["aggregator"], attack.plan.delta)
    return judged(attack, runs)


def broken_training(attacked: Recipe, broken: Break | None, attack: type[CanaryGradient]) -> CanaryGradient:
    """An attack on DP-SGD whose training was tampered with."""

    class Broken(DpSgd):
        def before_fit(self, fit: LocalFit) -> None:
            first = self._training is None
            super().before_fit(fit)
            if first and broken is not None and self._training is not None:
                broken(self._training)

    config = attacked.config
    facts = federation_facts(config, attacked.rows, 4)
    return attack(attacked, lambda: Broken(config, facts, noise_source(config)))


def judged(attack: Attack, runs: int = RUNS) -> Any:
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
    assert outcome.point_estimate == pytest.approx(outcome.claimed_epsilon, rel=0.4)  # 3 standard errors of 500 runs


# --- sums of a round: DP-FedSGD, alone and under masks ---


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
    def by_the_secret_count(training: PrivateTraining) -> None:
        training._sampler = replace(training._sampler, declared=training._sampler.population)

    attacked = recipe()
    assert judged(broken_training(attacked, by_the_secret_count, CanaryCount), 1000).refuted
    assert not judged(CanaryCount(attacked)).refuted


def test_noise_on_a_float32_lattice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = sum_recipe(1, 300, **{"privacy.target_epsilon": 0.1})
    assert not judged(LowBits(attacked), 60).refuted

    def lattice(self: PrivateSum, total: torch.Tensor, noise: NoiseSource) -> torch.Tensor:
        return four_fold_float32(total, self.sigma, noise).double()

    monkeypatch.setattr(PrivateSum, "release", lattice)
    assert judged(LowBits(attacked), 60).refuted


class KeepsMomentum:
    """A party of before: it checks its update after the fit, and what a refused fit did to the optimiser stays."""

    def __init__(self, parts: PartyOfAttack) -> None:
        self.parts = parts

    def handle(self, message: Message) -> Message:
        made = self.parts.fit.fit(self.parts.mechanism, dict(message.tensors), message.round, {})
        if not all(tensor.abs().max() < 1e30 for tensor in made.tensors.values()):
            raise MessageError("weights")
        return Message(message.run, message.round, message.recipient, message.sender, "update", made.tensors)


def test_momentum_of_fits_that_were_not_charged_is_caught() -> None:
    attacked = recipe(**{"train.momentum": 0.99, "privacy.target_epsilon": 2.0})
    assert judged(UnchargedFits(attacked, make_party=lambda parts, _: KeepsMomentum(parts)), 40).refuted
    assert not judged(UnchargedFits(attacked), 40).refuted
