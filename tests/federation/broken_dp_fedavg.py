"""DP-FedAvg broken in the ways that other systems were: every check of user_checks.py has to
fail on one of these.
"""

import torch
from dp_accounting import DpEvent, GaussianDpEvent, SampledWithoutReplacementDpEvent
from torch import Tensor

from homo_dp.federation.mechanisms.base import Combined, Update, Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum, Contributions
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.mechanisms.user_noise import UserNoise


class RawBits(DpFedAvg):
    """Bits in {0, 1}: one user moves their sum by 1, and the pair costs more than z."""

    def bits(self, within: Tensor) -> Tensor:
        return within.to(torch.float64)


class InvertedBit(DpFedAvg):
    """The bit says that the update was clipped: C runs away."""

    def bits(self, within: Tensor) -> Tensor:
        return -super().bits(within)


class NoiseOfTheNextClipNorm(DpFedAvg):
    """The noise follows the clip norm after its update."""

    def combine(self, total: CohortSum, current: Weights, round_number: int) -> Combined:
        clipped_to, self.clip_norm = total.clip_norm, total.clip_norm
        self._move_clip_norm(total)
        total.clip_norm, after = self.clip_norm, self.clip_norm
        combined = super().combine(total, current, round_number)
        self.clip_norm, total.clip_norm = after, clipped_to
        return combined


class DividesByReplies(DpFedAvg):
    """A missing reply leaves the mean and makes everybody else, and the noise, count more."""

    def denominator(self, total: CohortSum) -> float:
        return max(1, total.replies)


class NoiseDropped(DpFedAvg):
    """Noise is computed and left out of the result."""

    def noisy_sum(self, total: CohortSum) -> Tensor:
        super().noisy_sum(total)
        return total.updates


class NoiseTwice(DpFedAvg):
    """Parties add their shares and the aggregator adds its own on top."""

    def noisy_sum(self, total: CohortSum) -> Tensor:
        sigma = self.numbers.sum_sigma(total.clip_norm)
        return super().noisy_sum(total) + self.noise.normal(
            total.updates.shape, sigma, torch.float64
        )


class FullNoiseAtEveryParty(DpFedAvg):
    """Every party adds the noise of the whole sum: sqrt(m - t) times too much."""

    def contributions(self, rows: Tensor, clip_norm: float, within: Tensor) -> Contributions:
        sent = super().contributions(rows, clip_norm, within)
        if not self.noise_at_parties:
            return sent
        full = self.noise.normal(rows.shape, self.numbers.sum_sigma(clip_norm), rows.dtype)
        return Contributions(rows.clamp(-clip_norm, clip_norm) + full, sent.bits)


class WeighsByRows(DpFedAvg):
    """Users count by their rows, with the noise of a uniform mean."""

    def on_receive(self, updates: "list[Update]", current: Weights, round_number: int) -> Combined:  # type: ignore[override]
        mean_weight = sum(update.weight for update in updates) / len(updates)
        total, layout = self.open_sum(current), self.layout(current)
        for update in updates:
            rows = layout.flatten(update.tensors).unsqueeze(0) * (update.weight / mean_weight)
            total.add(Contributions(rows, torch.zeros(1, dtype=torch.float64)))
        return self.combine(total, current, round_number)


class NoClipping(DpFedAvg):
    """Updates pass as they are."""

    def contributions(self, rows: Tensor, clip_norm: float, within: Tensor) -> Contributions:
        return Contributions(rows.clone(), super().contributions(rows, clip_norm, within).bits)

    def on_receive(self, updates: "list[Update]", current: Weights, round_number: int) -> Combined:  # type: ignore[override]
        total, layout = self.open_sum(current), self.layout(current)
        for update in updates:
            total.add(
                Contributions(
                    layout.flatten(update.tensors).unsqueeze(0), torch.zeros(1, dtype=torch.float64)
                )
            )
        return self.combine(total, current, round_number)


class _WithoutFactorTwo(UserNoise):
    @property
    def event(self) -> DpEvent:
        sampled = GaussianDpEvent(self.noise_multiplier)
        size, population = round(self.cohort_size), self.sampler.population
        return SampledWithoutReplacementDpEvent(population, size, sampled)


class ForgetsFactorTwo(DpFedAvg):
    """A fixed-size cohort is accounted as if replacing one user moved the sum by C."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        numbers = self.numbers
        self.numbers = _WithoutFactorTwo(
            numbers.sampler, numbers.noise_multiplier, numbers.bit_noise, numbers.shares
        )
