"""What a claim allows: the trade-off between the two errors of any test, and what a perfect
attack could show of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from homo_dp.evidence.estimators import Guesses, clopper_pearson, error_bounds
from homo_dp.privacy.accounting.accountants import mechanisms_of
from homo_dp.privacy.accounting.analytic_gaussian import gaussian_epsilons
from homo_dp.privacy.accounting.events import DpEvent
from homo_dp.privacy.accounting.pld import loss_distribution, loss_epsilons
from homo_dp.privacy.accounting.pld_step import NoisyStep

Floats = NDArray[np.float64]
Steps = tuple[tuple[NoisyStep, int], ...]  # every step of a run, and how many times
_POINTS = 200_000  # of a curve at most
# grid points per standard deviation while noise is searched for; allows a little more than the
# truth
_COARSE = 8.0
_LEAST, _MOST = 1 / 32, 32.0  # times the claimed noise
_HALVINGS = 12  # of that range, in powers: to 0.2 % of the noise


@dataclass(frozen=True)
class Profile:
    """The optimal test of a mechanism, from its own privacy loss distribution.

    ``losses`` are thresholds on the log likelihood ratio, ascending; ``in_rate`` and ``out_rate``
    the chance that the loss is at or above each of them with and without the record. By Neyman and
    Pearson no test does better.
    """

    losses: Floats
    in_rate: Floats
    out_rate: Floats

    def allowed(self, false_positive: float) -> float:
        """The largest true-positive rate of any test with this false-positive rate, whichever
        world is called "in".
        """
        forward = _between(self.out_rate[::-1], self.in_rate[::-1], false_positive)
        backward = _between(1 - self.in_rate, 1 - self.out_rate, false_positive)
        return max(forward, backward)

    def refuted_by(self, guesses: Guesses, confidence: float) -> bool:
        """Whether an attack's errors are smaller than those of any test on this mechanism, with
        ``confidence``.
        """
        false_positive, false_negative = error_bounds(guesses, confidence)
        return 1 - false_negative > self.allowed(false_positive)

    def best_threshold(self, present: int, absent: int, confidence: float) -> tuple[float, Guesses]:
        """The threshold with the best expected result, fixed before any score is seen, and the
        guesses to expect at it. Best: the largest distance between the two worlds, in standard
        deviations of a Gaussian, that is left after the errors were rounded up.
        """
        inside = np.flatnonzero((self.in_rate > 1e-9) & (self.out_rate < 1 - 1e-9))
        best = (-math.inf, 0)
        for at in inside[:: max(1, len(inside) // 400)]:
            false_positive, false_negative = error_bounds(
                self._expected(int(at), present, absent), confidence
            )
            distance = float(stats.norm.isf(false_positive) - stats.norm.ppf(false_negative))
            best = max(best, (distance, int(at)))
        return float(self.losses[best[1]]), self._expected(best[1], present, absent)

    def separation(self) -> float:
        """Between the losses of the two worlds: difference of their means over the root of their
        mean variance.
        """
        masses = [-np.diff(np.append(rate, 0.0)) for rate in (self.in_rate, self.out_rate)]
        means = [float(mass @ self.losses / mass.sum()) for mass in masses]
        spreads = [
            float(mass @ (self.losses - mean) ** 2)
            for mass, mean in zip(masses, means, strict=True)
        ]
        return (means[0] - means[1]) / math.sqrt(sum(spreads) / 2)

    def curve(self) -> tuple[Floats, Floats]:
        """False-positive rates and the true-positive rates that are allowed at them, for a plot."""
        rates = np.unique(np.concatenate([np.geomspace(1e-5, 1, 300), np.linspace(0, 1, 200)]))
        return rates, np.array([self.allowed(float(rate)) for rate in rates])

    def _expected(self, at: int, present: int, absent: int) -> Guesses:
        return Guesses(
            float(self.in_rate[at]) * present, present, float(self.out_rate[at]) * absent, absent
        )


@dataclass(frozen=True)
class Claim:
    """Everything that one observer gets to see of a run, as the accountant was told, at one delta.

    ``steps`` is None where no privacy loss distribution is known (samples of a fixed size); then
    there is no curve to hold an attack against, and a bound assumes nothing but (epsilon, delta).
    """

    steps: Steps | None
    epsilon: float
    delta: float

    def profile(self) -> Profile | None:
        """The curve that this claim allows."""
        return None if self.steps is None else _profile(self.steps, self.delta, 30.0)

    def with_noise(self, factor: float) -> Profile | None:
        """The curve of the same with ``factor`` times the noise."""
        return (
            None if self.steps is None else _profile(_scaled(self.steps, factor), self.delta, 30.0)
        )

    def epsilon_at(self, factor: float) -> float:
        """Epsilon if the noise of every step were ``factor`` times what is claimed."""
        return (
            self.epsilon
            if self.steps is None
            else _epsilon(_scaled(self.steps, factor), self.delta)
        )

    def lower_bound(self, guesses: Guesses, confidence: float) -> float:
        """The largest epsilon that these guesses certify.

        Both ways to read them hold under the same confidence, so the better one is taken: (epsilon,
        delta) alone, and the curve of this mechanism with more or less noise, of which the least
        private one is looked for that no attack could have told apart so well (as Nasr et al. 2023
        do with the Gaussian's curve).
        """
        alone = clopper_pearson(guesses, self.delta, confidence)
        factor = self._refuted_noise(guesses, confidence)
        return alone if factor is None else max(alone, self.epsilon_at(factor))

    def _refuted_noise(self, guesses: Guesses, confidence: float) -> float | None:
        """The least noise, in parts of the claimed, for which these guesses were too good; None
        if there is none.
        """
        steps = self.steps
        if steps is None:
            return None

        def refuted(factor: float) -> bool:
            return _profile(_scaled(steps, factor), self.delta, _COARSE).refuted_by(
                guesses, confidence
            )

        if sum(error_bounds(guesses, confidence)) >= 1 or not refuted(_MOST):
            return None
        low, high = math.log(_LEAST), math.log(_MOST)  # refuted at high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if refuted(math.exp(middle)) else (middle, high)
        return math.exp(high)

    def point_estimate(self, separation: float) -> float | None:
        """Epsilon of the noise that would explain how far apart the mean scores are, taken as
        normal.

        The scores are assumed to be normal; then their separation is inverse to the noise, and the
        claimed noise has the separation of the claim's own losses.
        """
        profile = self.profile()
        if profile is None:
            return None
        if not separation > 0:
            return 0.0
        return self.epsilon_at(min(max(profile.separation() / separation, _LEAST), _MOST))


def claim_of(event: DpEvent, delta: float) -> Claim:
    """The claim that a ledger makes by charging this event."""
    from homo_dp.privacy.accounting.accountants import epsilon

    mechanisms = mechanisms_of(event)
    steps = None if mechanisms is None else tuple(sorted(mechanisms.items(), key=repr))
    return Claim(steps, epsilon(event, delta).quoted, delta)


def gaussian_profile(distance: float) -> Profile:
    """The profile of one Gaussian whose neighbours are so many standard deviations apart."""
    standard = np.linspace(-9, 9 + distance, 8000)  # the noisy value in standard deviations
    losses = distance * (standard - distance / 2)
    return Profile(losses, stats.norm.sf(standard - distance), stats.norm.sf(standard))


def drawn_profile(present: Floats, absent: Floats) -> Profile:
    """The profile of scores that were drawn in both worlds."""
    losses = np.unique(np.quantile(np.concatenate([present, absent]), np.linspace(0, 1, 2000)))
    rates = (1 - np.searchsorted(np.sort(each), losses) / len(each) for each in (present, absent))
    return Profile(losses, *rates)


@functools.lru_cache(maxsize=64)
def _profile(steps: Steps, delta: float, resolution: float) -> Profile:
    distance = _gaussian_distance(steps)
    if distance is not None:
        return gaussian_profile(distance)
    grid, found = loss_distribution(dict(steps), delta, resolution)
    losses = (found.low + np.arange(len(found.mass))) * grid
    inside = np.cumsum(found.mass[::-1])[::-1] + found.infinite
    outside = np.cumsum((found.mass * np.exp(-np.clip(losses, -600, 600)))[::-1])[::-1]
    every = max(1, len(losses) // _POINTS)
    rates = (
        np.asarray(np.minimum(each, 1.0)[::every], dtype=np.float64) for each in (inside, outside)
    )
    return Profile(np.asarray(losses[::every], dtype=np.float64), *rates)


@functools.lru_cache(maxsize=256)
def _epsilon(steps: Steps, delta: float) -> float:
    distance = _gaussian_distance(steps)
    if distance is not None:
        return float(gaussian_epsilons(np.array([distance]), delta)[0])
    return loss_epsilons({}, dict(steps), [1], delta)[0]


def _gaussian_distance(steps: Steps) -> float | None:
    """The distance over noise of plain Gaussians together; None where something else is among
    them.
    """
    if any(each.sample_rate < 1 or each.laplace for each, _ in steps):
        return None
    return math.hypot(*(math.sqrt(count) / each.noise for each, count in steps))


def _scaled(steps: Steps, factor: float) -> Steps:
    scaled: Mapping[NoisyStep, int] = {
        replace(each, noise=each.noise * factor): count for each, count in steps
    }
    return tuple(scaled.items())


def _between(x: Floats, y: Floats, at: float) -> float:
    """The ascending curve (x, y) at a point; tests may be mixed by a coin, so chords are
    allowed.
    """
    return float(
        np.interp(at, np.concatenate([[0.0], x, [1.0]]), np.concatenate([[0.0], y, [1.0]]))
    )
