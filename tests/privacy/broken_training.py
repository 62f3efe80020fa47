"""Private trainings that break the contract in one way each, so that we know which check would
notice.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.engine.fast_module import FastDPOptimizer
from homo_dp.privacy.engine.release import ForStep
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.training_parts import PrivateLoop


class NoClip(FastDPOptimizer):
    """Sums gradients as they are."""

    def clip_and_accumulate(self) -> None:
        bound, self.max_grad_norm = self.max_grad_norm, 1e12
        super().clip_and_accumulate()
        self.max_grad_norm = self._clipped_to = bound


class BatchMeanClip(NoClip):
    """Clips the mean gradient of the batch and calls it per-sample."""

    def clip_and_accumulate(self) -> None:
        super().clip_and_accumulate()
        norm = float(self.clipped.total.norm()) / len(self.last_norms)
        self.clipped.total.mul_(min(1.0, self.max_grad_norm / norm))


class SkippedEmptyBatches(FastDPOptimizer):
    """Does nothing where nobody was drawn."""

    def step(self, closure: Callable[[], float] | None = None) -> None:
        block = None if self.current is None else self.current.block
        if block is not None and len(block.features):
            super().step(closure)


class DividedByDrawn(FastDPOptimizer):
    """Divides by the size that was drawn."""

    def add_noise(self) -> None:
        self.expected_batch_size = max(1, len(self.last_norms))
        super().add_noise()


class HalfNoise(ForStep):
    """Adds half of the noise that it reports."""

    def _release(
        self, total: Tensor, released: Tensor, start: int, noise: Tensor, *more: Any
    ) -> None:
        super()._release(total, released, start, noise / 2, *more)


class NoNoise(ForStep):
    """Computes noise and drops it."""

    def _release(
        self, total: Tensor, released: Tensor, start: int, noise: Tensor, *more: Any
    ) -> None:
        super()._release(total, released, start, noise * 0, *more)


class ReusedStream(ForStep):
    """All trainings seed their noise alike, and start over every round."""

    def _release(
        self, total: Tensor, released: Tensor, start: int, noise: Tensor, *more: Any
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        same = torch.randn(noise.shape, generator=generator, dtype=noise.dtype)
        super()._release(total, released, start, same, *more)


def with_optimizer(kind: type[FastDPOptimizer]) -> Callable[..., PrivateLoop]:
    """A training whose engine has another optimizer."""

    class Engine(PrivacyEngine):
        def _prepare_optimizer(self, **options: Any) -> Any:
            made = super()._prepare_optimizer(**options)
            made.__class__ = kind
            return made

    return partial(PrivateLoop, engine=Engine)


def with_release(kind: type[ForStep]) -> Callable[..., PrivateLoop]:
    """A training whose sums are released in another way."""

    class Engine(PrivacyEngine):
        def _prepare_optimizer(self, **options: Any) -> Any:
            made = super()._prepare_optimizer(**options)
            made._for_step.__class__ = kind
            return made

    return partial(PrivateLoop, engine=Engine)


class RateOfWholeBatches(PrivacyEngine):
    """Samples at 1 / ceil(1 / q), as Opacus does, and accounts q."""

    def _prepare_optimizer(self, **options: Any) -> Any:
        batches = options["batches"]
        rate = 1 / math.ceil(1 / batches._sampler.sample_rate)
        batches._sampler = PoissonSampler(batches._sampler.population, rate)
        return super()._prepare_optimizer(**options)


BROKEN: dict[str, tuple[Callable[..., PrivateLoop], str]] = {
    "no clip": (with_optimizer(NoClip), "bound"),
    "clip of the batch mean": (with_optimizer(BatchMeanClip), "bound"),
    "half the noise": (with_release(HalfNoise), "variance"),
    "no noise": (with_release(NoNoise), "variance"),
    "reused stream": (with_release(ReusedStream), "fresh"),
    "skipped empty batches": (with_optimizer(SkippedEmptyBatches), "empty"),
    "divided by drawn": (with_optimizer(DividedByDrawn), "division"),
    "rate of whole batches": (partial(PrivateLoop, engine=RateOfWholeBatches), "rate"),
}
