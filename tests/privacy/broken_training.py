"""Private trainings that break the contract in one way each, so that we know which check would notice."""

import math
from typing import Any

import torch
from torch import Tensor

from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.privacy.training.batches_and_noise import NoiseVectors, PoissonBatches
from homo_dp.privacy.training.private_training import PrivateTraining


class NoClip(PrivateTraining):
    """Sums gradients as they are."""

    def _sum_clipped(self, rows: Tensor) -> None:
        losses = self._loss(self.module(self._features[rows]), self._labels[rows])
        for total, gradient in zip(
            self._sums, torch.autograd.grad(losses.sum(), self._parameters), strict=True
        ):
            total.copy_(gradient)


class BatchMeanClip(PrivateTraining):
    """Clips the mean gradient of the batch and calls it per-sample."""

    def _sum_clipped(self, rows: Tensor) -> None:
        losses = self._loss(self.module(self._features[rows]), self._labels[rows])
        gradients = torch.autograd.grad(losses.mean(), self._parameters)
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for total, gradient in zip(self._sums, gradients, strict=True):
            total.copy_(gradient * min(1.0, self.max_grad_norm / norm) * len(rows))


class HalfNoise(PrivateTraining):
    """Adds half of the noise that it reports."""

    def _add_noise(self, total: Tensor, noise: Tensor) -> None:
        total.add_(noise, alpha=self.applied_sigma / 2)


class NoNoise(PrivateTraining):
    """Computes noise and drops it."""

    def _add_noise(self, total: Tensor, noise: Tensor) -> None:
        noise.mul(self.applied_sigma)


class ReusedStream(PrivateTraining):
    """All trainings seed their noise alike, and start over every round."""

    def _add_noise(self, total: Tensor, noise: Tensor) -> None:
        generator = torch.Generator().manual_seed(0)
        total.add_(
            torch.randn(total.shape, generator=generator, dtype=total.dtype) * self.applied_sigma
        )


class SkippedEmptyBatches(PrivateTraining):
    """Does nothing where nobody was drawn."""

    def _sum_clipped(self, rows: Tensor) -> None:
        self._empty = len(rows) == 0
        super()._sum_clipped(rows)

    def _finish(self, vectors: NoiseVectors) -> None:
        if self._empty:
            self.steps_done += 1
        else:
            super()._finish(vectors)


class DividedByDrawn(PrivateTraining):
    """Divides by the size that was drawn."""

    def _draw(self) -> Tensor:
        rows = super()._draw()
        self._drawn = max(1, len(rows))
        return rows

    def _release(self, total: Tensor, released: Tensor) -> None:
        released.copy_(self._grid.round_(total)).div_(self._drawn)


class RateOfWholeBatches(PrivateTraining):
    """Samples at 1 / ceil(1 / q), as Opacus does, and accounts q."""

    def __init__(self, *args: Any, sampler: PoissonSampler, **options: Any) -> None:
        super().__init__(*args, sampler=sampler, **options)
        other = PoissonSampler(sampler.population, 1 / math.ceil(1 / sampler.sample_rate))
        self._batches = PoissonBatches(other, self.noise)


BROKEN: list[tuple[type[PrivateTraining], str]] = [
    (NoClip, "bound"),
    (BatchMeanClip, "bound"),
    (HalfNoise, "variance"),
    (NoNoise, "variance"),
    (ReusedStream, "fresh"),
    (SkippedEmptyBatches, "empty"),
    (DividedByDrawn, "division"),
    (RateOfWholeBatches, "rate"),
]
