"""Noise sources and samplers that are wrong on purpose: each is a mistake somebody made, and some
test must see it.

They claim to be private, as the real mistakes did.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.keystream import SEED_BYTES
from homo_dp.privacy.noise.source import NoiseSource, SecureNoise
from homo_dp.privacy.sampling.samplers import PoissonSampler


class HalfNoise(SecureNoise):
    """Half the noise that was asked for."""

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return super().normal(shape, std / 2, dtype)


class NoNoise(SecureNoise):
    """Noise that was computed and then dropped."""

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)


class UniformNoise(SecureNoise):
    """The right variance, with another law."""

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        size = int(np.prod(shape))
        return ((self.uniform(size) - 0.5) * 12**0.5 * std).to(dtype).reshape(tuple(shape))


class ReusedStream(SecureNoise):
    """A key that lives on after a fork, so that forked parties draw the same noise."""

    def __init__(self) -> None:
        self._only_seed = os.urandom(SEED_BYTES)
        super().__init__()

    def _new_seed(self) -> bytes:
        return self._only_seed


class SharedSeed(SecureNoise):
    """All parties key their noise with one seed."""

    def _new_seed(self) -> bytes:
        return b"run 42".ljust(SEED_BYTES, b"\0")


class FailingNoise(SecureNoise):
    """A source that cannot draw."""

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        raise PrivacyError("entropy=0 is below 1; give the source some")


class BufferThatSurvivesFork:
    """Noise drawn ahead into a list, which a fork copies."""

    def __init__(self, source: NoiseSource, size: int, depth: int = 2) -> None:
        self._ready = [source.normal([size], 1.0, torch.float64) for _ in range(depth)]

    def take(self) -> Tensor:
        return self._ready.pop()


class ShuffledEpoch(PoissonSampler):
    """Batches of one size out of a shuffled epoch, accounted as Poisson."""

    def draw(self, noise: NoiseSource) -> Tensor:
        waiting: Tensor = self.__dict__.get("waiting", torch.empty(0, dtype=torch.int64))
        size = round(self.expected_size)
        if len(waiting) < size:
            waiting = noise.uniform(self.population).argsort()
        self.__dict__["waiting"] = waiting[size:]
        return waiting[:size]


class RateOfWholeBatches(PoissonSampler):
    """Draws at 1 / ceil(n / batch), as a data loader counts batches, and accounts for batch / n."""

    def draw(self, noise: NoiseSource) -> Tensor:
        return PoissonSampler(self.population, 1 / np.ceil(1 / self.sample_rate)).draw(noise)


class SkipsEmpty(PoissonSampler):
    """Draws again where nobody was drawn."""

    def draw(self, noise: NoiseSource) -> Tensor:
        drawn = super().draw(noise)
        return drawn if len(drawn) else self.draw(noise)


class NeverTheLast(PoissonSampler):
    """Leaves the last index out, as an off-by-one does."""

    def draw(self, noise: NoiseSource) -> Tensor:
        drawn = super().draw(noise)
        return drawn[drawn < self.population - 1]


def four_fold_float32(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """What Opacus calls secure mode: four float32 normals added up and halved, added to the sum
    in float32.
    """
    size = total.numel()
    uniform = noise.uniform(8 * size).float().clamp_(min=2.0**-31, max=1.0).reshape(2, 4, size)
    normals = (-2 * uniform[0].log()).sqrt() * (2 * np.pi * uniform[1]).cos()
    return total.float() + (normals.sum(0) / 2 * sigma).reshape(total.shape)
