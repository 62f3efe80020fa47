"""The sum over a cohort of users as one masked vector: updates in units of the clip norm, then the
clip bits.

Dividing by the clip norm keeps grid and modulus the same in every round while the clip norm moves.
The bits are scaled so that one noise serves all numbers: noise of standard deviation z_delta on an
update of norm 1 and on a bit of size z_delta / (2 sigma_b) costs what the pair costs, z =
(z_delta^-2 + (2 sigma_b)^-2)^(-1/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum
from homo_dp.federation.mechanisms.user_noise import UserNoise
from homo_dp.privacy.noise.grid import noised
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum


@dataclass(frozen=True)
class MaskedCohorts:
    """How the sums of all rounds lie in the parties' masked sum.

    Guarantees:
        - one user, update and bit together, moves the vector by at most ``private_sum.clip_norm``;
        - the event of a round is that of ``numbers``: the noise of any ``share.sharers`` holders is
          all of it.
    """

    numbers: UserNoise
    share: NoiseShare
    weights: int  # numbers in an update

    @cached_property
    def private_sum(self) -> PrivateSum:
        """The sum that the holders of users share the noise of."""
        numbers, bit = self.numbers, int(self.numbers.bit_noise is not None)
        return PrivateSum(
            self.weights + bit,
            clip_norm=numbers.update_multiplier / numbers.noise_multiplier,
            noise_multiplier=numbers.noise_multiplier,
            rows=numbers.sampler.population,
            sample_rate=numbers.sampler.sample_rate,
            share=self.share,
        )

    def draw(self, users: int, noise: NoiseSource) -> Tensor:
        """Who of a holder's own users is in a round: a coin each, which nobody else sees."""
        return self.private_sum.sampler(users).draw(noise)

    def usual_draw(self, users: int) -> int:
        """How many users are drawn at most, but for one round in 10^9: so many are trained,
        whoever is drawn.
        """
        rate = self.numbers.sampler.sample_rate
        return min(users, math.ceil(rate * users + 6 * math.sqrt(rate * (1 - rate) * users)))

    def released(self, total: CohortSum, noise: NoiseSource) -> Tensor:
        """A holder's part of the sum with its share of the noise, as steps of the grid: for
        masks only.
        """
        return self.private_sum.release(self._vector(total), noise)

    def released_by_all(self, total: CohortSum, noise: NoiseSource) -> CohortSum:
        """The whole sum with the shares of all holders, drawn as one, where one process stands
        for all of them.
        """
        sigma = self.private_sum.party_sigma * math.sqrt(self.share.parties)
        return self.opened(
            noised(self._vector(total), sigma, noise), total.clip_norm, self.share.parties
        )

    def opened(self, vector: Tensor, clip_norm: float, replies: int) -> CohortSum:
        """The noisy sum of a round behind the values of the unmasked vector."""
        bits = (
            float(vector[self.weights]) * self._bit_unit
            if self.numbers.bit_noise is not None
            else 0.0
        )
        return CohortSum(clip_norm, vector[: self.weights] * clip_norm, bits, replies)

    def _vector(self, total: CohortSum) -> Tensor:
        updates = total.updates.double() / total.clip_norm
        if self.numbers.bit_noise is None:
            return updates
        return torch.cat([updates, updates.new_tensor([total.bits / self._bit_unit])])

    @property
    def _bit_unit(self) -> float:
        """What one unit of the vector stands for in its last number."""
        return (self.numbers.bit_noise or math.nan) / self.numbers.update_multiplier
