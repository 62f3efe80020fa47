"""What an attack is: a function that runs a mechanism with or without a canary and gives one number
a run.

Add one by writing a class with ``claim`` and ``scores``; bounds, ceilings, plots and processes need
no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from homo_dp.evidence.tradeoff import Claim, Profile

Floats = NDArray[np.float64]


class Attack(ABC):
    """Runs the real mechanism many times and says each time how much the canary seems to be in.

    Guarantees every subclass must keep:
        - ``scores(True, n)`` and ``scores(False, n)`` are n independent runs on neighbouring data;
        - a score uses what the observer may see, the canary, and public numbers;
        - ``claim`` is what the mechanism itself names for everything that the observer sees of a
          run.
    """

    name: ClassVar[str]
    observer: str
    claim: Claim
    # the score is the log likelihood ratio of its law, which is known beforehand
    scores_are_losses: bool = False

    def law(self) -> Profile | None:
        """The best test of what this attack looks at, if the claim holds: of the whole claim,
        unless it sees less.
        """
        return self.claim.profile()

    @abstractmethod
    def scores(self, present: bool, runs: int) -> Floats:
        """One score a run, larger where the canary seems to be in."""


def sampled_losses(
    values: Floats, noise: float, rate: float, shift: float | Floats = 1.0
) -> Floats:
    """Log likelihood ratio of noisy values: mean ``shift`` with probability ``rate`` if the canary
    is in, else 0.

    >>> sampled_losses(np.array([0.5, 1.0]), noise=1.0, rate=1.0).tolist()
    [0.0, 0.5]
    """
    plain = (values * shift - shift**2 / 2) / noise**2
    if rate == 1:
        return plain
    result: Floats = np.logaddexp(np.log1p(-rate), np.log(rate) + plain)
    return result


def repeated_losses(sums: Floats, noise: float, rate: float, times: int) -> Floats:
    """The same for the sum of ``times`` such values, of which the observer does not see the
    parts.
    """
    if rate == 1:
        return sampled_losses(sums, noise * np.sqrt(times), 1.0, float(times))
    from scipy import stats

    hits = np.arange(times + 1)
    weights = stats.binom.logpmf(hits, times, rate)
    exponents = (np.multiply.outer(sums, hits) - hits**2 / 2) / (times * noise**2)
    result: Floats = np.logaddexp.reduce(weights + exponents, axis=-1)
    return result
