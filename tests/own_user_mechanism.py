"""User-level mechanisms of somebody's own, in one file: another noise on the sum, another local training."""

import torch
from torch import Tensor

from homo_dp.federation.cohort_mechanism import CohortSum
from homo_dp.federation.local_fit import LocalFit
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg


class Louder(DpFedAvg):
    """Adds the noise of DP-FedAvg twice, so it costs at most what it says."""

    name = "louder"

    def noisy_sum(self, total: CohortSum) -> Tensor:
        sigma = self.numbers.sum_sigma(total.clip_norm)
        return super().noisy_sum(total) + self.noise.normal(total.updates.shape, sigma, torch.float64)


class StayingPut(DpFedAvg):
    """Undoes every local batch, so that nobody has anything to send."""

    name = "staying_put"

    def after_batch(self, fit: LocalFit) -> None:
        fit.load(fit.start)
