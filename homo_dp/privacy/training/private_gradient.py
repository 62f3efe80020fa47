"""One private gradient at a time: what DP-FedSGD asks a party for, by the sampling and clipping of DP-SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import Loss
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.training.batches_and_noise import NoiseVectors
from homo_dp.privacy.training.private_training import PrivateTraining
from homo_dp.privacy.training.sgd import views


class PrivateGradient(PrivateTraining):
    """The noisy sum of the clipped gradients of a Poisson sample; the weights do not move.

    Guarantees:
        - sampling, clipping and rows that are not finite are those of ``PrivateTraining``;
        - noise, grid and event are those of ``private_sum``, whose rate is the sampler's.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        features: Tensor,
        labels: Tensor,
        *,
        private_sum: PrivateSum,
        declared: int,
        noise: NoiseSource,
        physical_batch_size: int | None = None,
        grad_sample_mode: str = "auto",
    ) -> None:
        super().__init__(
            module,
            optimizer,
            loss,
            features,
            labels,
            sampler=private_sum.sampler(len(features), declared),
            noise_multiplier=private_sum.party_sigma / private_sum.clip_norm,
            max_grad_norm=private_sum.clip_norm,
            noise=noise,
            physical_batch_size=physical_batch_size,
            grad_sample_mode=grad_sample_mode,
        )
        if self._sum.numel() != private_sum.dimension:
            if private_sum.share is not None:
                raise PrivacyError(
                    f"privacy.secure_aggregation=true: {self._sum.numel()} of {private_sum.dimension} weights are "
                    "trained; a masked sum has all of them, so freeze none"
                )
            private_sum = replace(private_sum, dimension=self._sum.numel())
        self.private_sum = private_sum
        self.released: Tensor | None = (
            None  # of the last step: values, or steps of the grid where noise is shared
        )

    def event(self, steps: int) -> Any:
        return self.private_sum.event(steps)

    def _finish(self, vectors: NoiseVectors) -> None:
        self.released = self.private_sum.release(self._sum.cpu(), self.noise)
        self._sum.zero_()
        self.applied_sigma = self.private_sum.party_sigma
        self.steps_done += 1

    def turn(self, transform: Tensor) -> None:
        """Only the gradient of a linear model can be taken in other coordinates."""
        raise PrivacyError("train.solver=sgd: takes gradients in the model's own coordinates")

    def parts(self, values: Tensor) -> dict[str, Tensor]:
        """A vector of sums under the names of the weights; a frozen weight has zeros."""
        trained = {id(parameter) for parameter in self._parameters}
        pieces = iter(views(values, self._parameters))
        return {
            name: next(pieces) if id(parameter) in trained else values.new_zeros(parameter.shape)
            for name, parameter in self.module.named_parameters()
        }
