"""What an optimizer does with the clipped sum of a batch: its release.

All trained weights lie in one float64 vector, so that noise, rounding and division cost one call
each, however many parameters there are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from homo_dp.privacy.engine.drawn_ahead import NoiseVectors, PoissonBatches
from homo_dp.privacy.engine.sgd import views
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.grid import Grid
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import PrivateSum

ReleaseName = Literal["step", "hand_out", "hand_out_masked"]
RELEASES: tuple[ReleaseName, ...] = ("step", "hand_out", "hand_out_masked")
# numbers of a long sum that get their noise and go to the grid before they leave the cache
_PIECE = 1 << 16
# the same for one of several threads: so few that torch starts no threads of its own
_THREAD_PIECE = 1 << 14


class ForStep:
    """The noisy sum on its grid over the divisor, in the type of the weights: a gradient to step
    by.

    Guarantees:
        - every number gets fresh normal noise of standard deviation ``sigma``;
        - what is seen is a multiple of the grid of that noise, over the divisor.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        noise: NoiseSource,
        batches: PoissonBatches | None = None,
    ) -> None:
        """Prepare the noise.

        Args:
            parameters: What is trained.
            noise: The source of the noise.
            batches: Draws the batches, if noise may be drawn ahead for those that are drawn.
        """
        self._size = sum(parameter.numel() for parameter in parameters)
        self._like = parameters[0]
        self._noise, self._batches = noise, batches
        self._vectors: NoiseVectors | None = None
        self._grid, self._sigma = Grid.of(1.0), 1.0

    @property
    def vectors(self) -> NoiseVectors:
        """The noise of coming steps."""
        # made at the first step, when torch's number of threads is settled
        if self._vectors is None:
            self._vectors = NoiseVectors(self._noise, self._size, self._batches)
        return self._vectors

    def begin(self) -> None:
        """Let noise be drawn: the batch of a step is known."""
        self.vectors.begin()

    @property
    def producer_cpu_seconds(self) -> float:
        """CPU time of drawing in other threads so far."""
        return 0.0 if self._vectors is None else self._vectors.producer_cpu_seconds

    def of(self, total: Tensor, sigma: float, divisor: float, into: Tensor | None) -> Tensor:
        """Release a sum, which is overwritten.

        Args:
            total: The float64 sum.
            sigma: Standard deviation of the noise.
            divisor: What the noisy sum is divided by.
            into: Where it goes; None makes a new tensor.
        """
        if sigma != self._sigma:
            self._grid, self._sigma = Grid.of(sigma), sigma
        seen = total.new_empty(total.shape, dtype=self._like.dtype) if into is None else into
        step = self._grid.step / divisor

        def release(start: int, noise: Tensor) -> None:
            self._release(total, seen, start, noise, step)

        if self.vectors.threads:
            self.vectors.each(release)
        else:
            release(0, self.vectors.next())
        return seen

    def _release(
        self, total: Tensor, released: Tensor, start: int, noise: Tensor, step: float
    ) -> None:
        """Release the numbers from ``start`` on; of a long sum by several threads."""
        size = noise.shape[0]
        # all of it: slices take longer than the sum of a small model
        if size == total.shape[0] and (size <= _PIECE or total.is_cuda):
            total.add_(noise.to(total.device) if total.is_cuda else noise, alpha=self._sigma)
            torch.mul(self._grid.steps_(total), step, out=released)
            return
        noise = noise.to(total.device)
        piece = _PIECE if size == total.shape[0] else _THREAD_PIECE
        for at in range(start, start + size, piece):
            part = slice(at, min(at + piece, start + size))
            noisy = total[part].add_(
                noise[part.start - start : part.stop - start], alpha=self._sigma
            )
            torch.mul(self._grid.steps_(noisy), step, out=released[part])


class HandOut:
    """The noisy sum itself, which the aggregator steps by: float64 values, or integers for masks.

    Guarantees:
        - noise, grid and event are those of ``private_sum``.
    """

    def __init__(self, private_sum: PrivateSum, noise: NoiseSource) -> None:
        self.private_sum, self._noise = private_sum, noise

    def of(self, total: Tensor) -> Tensor:
        """What is handed out of a float64 sum."""
        return self.private_sum.release(total.cpu(), self._noise)


class ClippedSum:
    """The clipped sum of a batch over all of its blocks.

    Attributes:
        total: All of it as one float64 vector.
        parts: The same, one tensor for each weight.
        padded: The same with zeros behind, as many numbers as were asked for.
        finite: Whether the sum cannot be anything but finite.
    """

    def __init__(self, parameters: list[nn.Parameter], at_least: int) -> None:
        self.parameters = parameters
        size = sum(parameter.numel() for parameter in parameters)
        device = parameters[0].device
        self.padded = torch.zeros(max(size, at_least), dtype=torch.float64, device=device)
        self.total = self.padded[:size]
        self.parts = views(self.total, parameters)
        self.finite = False


def named_parts(module: nn.Module, released: Tensor) -> dict[str, Tensor]:
    """A released vector under the names of the weights; a frozen weight has zeros."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    pieces = iter(views(released, trained))
    return {
        name: next(pieces) if parameter.requires_grad else released.new_zeros(parameter.shape)
        for name, parameter in module.named_parameters()
    }


def checked_sum(private_sum: PrivateSum, trained: int) -> PrivateSum:
    """A private sum over the weights that are trained, of which a masked one must have all."""
    if trained == private_sum.dimension:
        return private_sum
    if private_sum.share is not None:
        raise PrivacyError(
            f"privacy.secure_aggregation=true: {trained} of {private_sum.dimension} weights are "
            "trained; a masked sum has all of them, so freeze none"
        )
    return replace(private_sum, dimension=trained)
