"""User-level mechanisms of somebody's own, in one file: another noise on the sum, another
training; and a model.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from homo_dp.config.mechanisms import DP_FEDAVG
from homo_dp.federation.mechanisms.base import PartyFacts, PartyPlan
from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.mechanisms.local_fit import LocalFit


class Louder(DpFedAvg):
    """Adds the noise of DP-FedAvg twice, so it costs at most what it says."""

    capabilities = replace(DP_FEDAVG, name="louder")

    def noisy_sum(self, total: CohortSum) -> Tensor:
        sigma = self.numbers.sum_sigma(total.clip_norm)
        return super().noisy_sum(total) + self.noise.normal(
            total.updates.shape, sigma, torch.float64
        )


class LargeDelta(DpFedAvg):
    """Quotes its epsilon at a delta that protects nobody in particular."""

    capabilities = replace(DP_FEDAVG, name="large_delta")

    def plan(self, party: PartyFacts) -> PartyPlan:
        return replace(super().plan(party), delta=1 / party.rows)


class StayingPut(DpFedAvg):
    """Undoes every local batch, so that nobody has anything to send."""

    capabilities = replace(DP_FEDAVG, name="staying_put")

    def after_batch(self, fit: LocalFit) -> None:
        fit.load(fit.start)


class Scaled(nn.Module):
    """A linear model with a scalar weight and a buffer of one integer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("version", torch.tensor(3))

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.linear(features) * self.scale
        return outputs


def scaled(input_shape: Sequence[int], outputs: int) -> nn.Module:
    return Scaled(math.prod(input_shape), outputs)
