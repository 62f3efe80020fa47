"""Adaptive clipping: the clip norm follows a quantile of the update norms (Andrew et al. 2021,
arXiv:1905.03871).

Every update comes with one bit, whether its norm was within the clip norm C. The noisy share b of
such bits moves C towards the norm that a share ``target_quantile`` of the updates does not exceed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import LEAST, MOST, check_clip_norm

# sigma_b = m / 20: b is off by 1/20 whatever the cohort (section 3.1 of the paper)
BITS_PER_NOISE = 20.0
HALF = 0.5


def centred_bits(within: Tensor) -> Tensor:
    """+1/2 where an update was within the clip norm, -1/2 where not: adding one moves their sum by
    exactly 1/2.

    Raw bits in {0, 1} would move it by up to 1, and the split below would cost more than it says.

    >>> centred_bits(torch.tensor([True, False])).tolist()
    [0.5, -0.5]
    """
    return within.to(torch.float64) - HALF


def update_multiplier(noise_multiplier: float, bit_noise: float) -> float:
    """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): the noise left for updates when bits get
    ``bit_noise`` (theorem 1).

    Guarantees:
        - an update with noise z_delta * C and a centred bit with noise sigma_b together cost one
          Gaussian of z.

    >>> round(update_multiplier(1.0, 5.0), 6)
    1.005038
    """
    if not noise_multiplier < 2 * bit_noise:
        raise PrivacyError(
            f"noise_multiplier={noise_multiplier:g} must be below 2 * bit_noise = "
            f"{2 * bit_noise:g}: the bits would cost more than the whole budget; raise "
            f"privacy.adaptive.bit_noise above {noise_multiplier / 2:g}"
        )
    return 1.0 / math.sqrt(noise_multiplier**-2 - (2 * bit_noise) ** -2)


def smallest_cohort(
    noise_multiplier_of: Callable[[int], float], start: int, population: int
) -> int | None:
    """The smallest cohort m from ``start`` on whose z(m) is below 2 sigma_b = m / 10; None if not
    even everybody.

    ``noise_multiplier_of`` must not fall with m (a larger cohort is a larger sample, which needs
    more noise); so no cohort below 10 z(m) can work, and going up by that bound never skips the
    smallest.

    >>> smallest_cohort(lambda cohort: 2.0, start=5, population=1000)
    21
    """
    cohort = start
    while cohort <= population:
        needed = math.floor(BITS_PER_NOISE / 2 * noise_multiplier_of(cohort)) + 1
        if needed <= cohort:
            return cohort
        cohort = needed
    return None


@dataclass(frozen=True)
class QuantileTracker:
    """How C moves: C <- C * exp(-eta * (b - gamma)) (algorithm 1, geometric update).

    Guarantees:
        - C is a function of the noisy sum alone, so it may be published and costs nothing more;
        - b is divided by the fixed cohort size: a user who does not reply counts as half a bit, for
          whatever reason.

    >>> tracker = QuantileTracker(learning_rate=0.2, target_quantile=0.5, cohort_size=100)
    >>> round(tracker.next_clip_norm(1.0, tracker.share(50.0)), 4)
    0.9048
    """

    learning_rate: float
    target_quantile: float
    cohort_size: float

    def share(self, noisy_sum: float) -> float:
        """b = 1/2 + (sum of centred bits + noise) / m."""
        return HALF + noisy_sum / self.cohort_size

    def next_clip_norm(self, clip_norm: float, share: float) -> float:
        """The clip norm of the next round, given the noisy share of this one; it stays where
        float32 resolves it.
        """
        # no overflow
        moved = clip_norm * math.exp(
            min(-self.learning_rate * (share - self.target_quantile), 100.0)
        )
        return check_clip_norm(min(max(moved, LEAST), MOST))
