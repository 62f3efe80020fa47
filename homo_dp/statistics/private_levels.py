"""Levels of a categorical column that nobody declared: values whose noisy count passes a threshold, and no others.

A value text is not a sum over a known list of numbers. Which values occur is itself private, so a value that is there
because of one row alone must stay away: that is what the threshold is for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource

MOST_BYTES = 64  # of a value in UTF-8; a longer one is never a level
TAIL = 2.0**-60  # delta' as a share of delta: their float64 sum is delta itself


def threshold_of(sigma: float, delta: float) -> float:
    """The count with noise that a value needs: ``1 + sigma * Phi^-1(1 - delta)``.

    A value that one row alone has counts 1, so it passes with probability ``P(1 + N(0, sigma^2) >= t) = delta``
    (Korolova et al. 2009, "Releasing search queries and clicks privately"; Google's "Delta for thresholding", 2020,
    with Gaussian noise).

    >>> round(threshold_of(2.0, 1e-5), 3)
    9.53
    """
    if not (sigma > 0 and math.isfinite(sigma) and 0 < delta < 0.5):
        raise PrivacyError(f"sigma={sigma} delta={delta}: a threshold needs noise, and a delta above 0 and below 0.5")
    return 1.0 - sigma * NormalDist().inv_cdf(delta)


@dataclass(frozen=True)
class LevelsRelease:
    """The noisy histograms of some columns of one table, of which only names above a threshold leave.

    Guarantees:
        - a row has one value a column, so it moves one count a column by 1: over all columns by sqrt(columns) (L2), and
          the noise of each count is ``noise_multiplier`` times that: together one Gaussian event;
        - where a row is the only one with its values, any of them leaves with probability at most ``delta``, which is
          shared by the columns and comes on top of the Gaussian event;
        - names leave sorted, without counts; none of more than ``MOST_BYTES`` leaves, and none that cannot be printed.
    """

    columns: int
    noise_multiplier: float
    delta: float

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise of one count."""
        return self.noise_multiplier * math.sqrt(self.columns)

    @property
    def threshold(self) -> float:
        """What a noisy count has to reach."""
        return threshold_of(self.sigma, self.delta / self.columns)

    def names(self, counts: Mapping[str, int], noise: NoiseSource) -> list[str]:
        """The values of one column that may be known, by how many rows of one table have each value."""
        return passing(counts, self.sigma, self.threshold, noise)


def passing(counts: Mapping[str, int], sigma: float, threshold: float, noise: NoiseSource) -> list[str]:
    """The values that occur and whose noisy count reaches a threshold, sorted; private only with ``threshold_of``."""
    present = [(text, count) for text, count in counts.items() if count > 0]
    noisy = torch.tensor([count for _, count in present], dtype=torch.float64)
    if present:
        noisy += noise.normal((len(present),), sigma, torch.float64)
    found = zip(present, (noisy >= threshold).tolist(), strict=True)
    return sorted(text for (text, _), passes in found if passes and _fits(text))


def _fits(text: str) -> bool:
    return 0 < len(text.encode("utf-8", "replace")) <= MOST_BYTES and text.isprintable()
