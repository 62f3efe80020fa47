"""Privacy loss distributions: many steps composed by FFT, and the epsilon of their sum.

dp-accounting has the same algorithms; ours keep the Fourier transform of a round, so that a curve
over rounds costs one inverse FFT a round instead of one accountant a round, and choose the grid
from the spread of the loss, so that tiny sampling rates stay tight and tiny noise stays affordable.
Tests hold the two against each other.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from homo_dp.privacy.accounting.pld_step import Floats, Losses, NoisyStep, Step, discretise, spread

Counts = Mapping[NoisyStep, int]

# grid points per standard deviation of the loss of one step: epsilon is about 1e-4 above the truth
RESOLUTION = 30
# grid points at most: 8 MB a distribution; past it the grid gets coarser, still an upper bound
LARGEST = 2**20
_ROUNDING = 1e-16  # relative error of a Fourier coefficient; it adds up over steps


def loss_epsilons(
    before: Counts,
    a_round: Counts,
    rounds: Sequence[int],
    delta: float,
    resolution: float = RESOLUTION,
    planned: int | None = None,
) -> list[float]:
    """Epsilon by PLD at ``delta``, add or remove one, of ``before`` and r times ``a_round`` for
    every r of ``rounds``.

    They are found on the grid of the curve over all ``planned`` rounds, where these are some of its
    points.

    Guarantees:
        - at or above the true epsilon, at any resolution; infinite where floating point cannot
          resolve delta.

    >>> step = NoisyStep(noise=1.1, sample_rate=256 / 60000)
    >>> [round(value, 3) for value in loss_epsilons({}, {step: 141}, [1, 100], delta=1e-5)]
    [0.249, 2.385]
    """
    curve = rounds if planned is None else range(1, planned + 1)
    total = {
        key: before.get(key, 0) + curve[-1] * a_round.get(key, 0) for key in {**before, **a_round}
    }
    if _ROUNDING * sum(total.values()) >= 0.1 * delta:
        return [math.inf] * len(rounds)
    points = LARGEST // max(1, min(len(curve) // 10, 8))
    grid = _grid(total, delta, resolution, points)
    while True:
        step = {key: discretise(key, grid, 1e-7 * delta / sum(total.values())) for key in total}
        pairs = [
            (_composition(before, step, removed), _composition(a_round, step, removed))
            for removed in (True, False)
        ]
        windows = [
            _window(first, repeated, np.array(curve), 1e-6 * delta) for first, repeated in pairs
        ]
        widest = max(high - low for low, high in windows)
        if widest <= 2 * points:
            break
        grid *= widest / points  # heavy tails: wider than their spread says
    removed, added = (
        _epsilons(first, repeated, rounds, window, grid, delta)
        for (first, repeated), window in zip(pairs, windows, strict=True)
    )
    return [max(values) for values in zip(removed, added, strict=True)]


def loss_distribution(
    counts: Counts, delta: float, resolution: float = RESOLUTION
) -> tuple[float, Losses]:
    """The privacy loss of all steps together in the world with the record: the grid, and the mass
    on it.

    Mass at loss l here is mass * exp(-l) in the world without the record, so this one distribution
    holds the whole trade-off between the two errors of a test. It dominates the true one, as
    ``loss_epsilons`` does; what lies outside of the window (1e-6 of ``delta``) is left out.

    >>> grid, losses = loss_distribution({NoisyStep(noise=1.0): 1}, delta=1e-5)
    >>> round(float(losses.mass.sum()), 6)
    1.0
    """
    grid = _grid(counts, delta, resolution, LARGEST)
    while True:
        step = {key: discretise(key, grid, 1e-7 * delta / sum(counts.values())) for key in counts}
        composition, nothing = _composition(counts, step, removed=True), Composition([])
        low, high = _window(nothing, composition, np.array([1]), 1e-6 * delta)
        if high - low <= 2 * LARGEST:
            break
        grid *= (high - low) / LARGEST
    longest = max(len(losses.mass) for losses, _ in composition.parts)
    size = int(fft.next_fast_len(max(high - low + 1, longest), real=True))
    mass = np.roll(fft.irfft(composition.transform(size), size), (composition.low - low) % size)
    return grid, Losses(low, np.maximum(mass, 0.0), -math.expm1(composition.log_finite()))


def _composition(counts: Counts, step: Mapping[NoisyStep, Step], removed: bool) -> "Composition":
    return Composition(
        [
            (step[key].removed if removed else step[key].added, count)
            for key, count in counts.items()
        ]
    )


def _grid(counts: Counts, delta: float, resolution: float, points: int) -> float:
    """Spacing of the losses: fine against the spread of a step, coarse enough for ``points``
    points in all.
    """
    steps = sum(counts.values())
    spreads = {mechanism: spread(mechanism, 0.1 * delta / steps) for mechanism in counts}
    variance = math.fsum(count * spreads[mechanism] ** 2 for mechanism, count in counts.items())
    extents = [
        np.ptp(mechanism.loss(np.array(mechanism.reach(1e-7 * delta / steps))))
        for mechanism in counts
    ]
    extent = float(max(extents)) + 20 * math.sqrt(variance)
    grid = max(math.sqrt(variance / steps) / resolution, extent / points, 1e-9)
    # Laplace has most of its mass at exactly 1/noise: put that on the grid
    largest = next((1 / mechanism.noise for mechanism in counts if mechanism.laplace), grid)
    if largest > grid:
        return largest / math.floor(largest / grid)
    # one grid for almost equal plans: equal sums get equal epsilons
    return 2 ** (math.floor(4 * math.log2(grid)) / 4)


@dataclass(frozen=True)
class Composition:
    """Independent losses added up, each so many times; kept apart until their sum is asked for."""

    parts: Sequence[tuple[Losses, int]]

    @property
    def low(self) -> int:
        return sum(losses.low * count for losses, count in self.parts)

    @property
    def width(self) -> int:
        return sum((len(losses.mass) - 1) * count for losses, count in self.parts)

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.parts)

    def log_finite(self) -> float:
        """Log of the probability that no part has an infinite loss."""
        return math.fsum(count * math.log1p(-losses.infinite) for losses, count in self.parts)

    def variance(self) -> float:
        """In grid steps squared."""
        return math.fsum(count * _variance(losses.mass) for losses, count in self.parts)

    def log_moment(self, order: float) -> float:
        """Log of the mean of exp(order * (sum - low)), in grid steps; infinite where it
        overflows.
        """
        total = 0.0
        for losses, count in self.parts:
            top = max(0.0, order * (len(losses.mass) - 1))
            mean = float(losses.mass @ np.exp(order * np.arange(len(losses.mass)) - top))
            total += count * (top + math.log(mean)) if mean > 0 else math.inf
        return total

    def transform(self, size: int) -> NDArray[np.complex128]:
        """Fourier transform of the distribution of (sum - low) modulo ``size``."""
        product = np.ones(size // 2 + 1, dtype=np.complex128)
        for losses, count in self.parts:
            product *= _power(fft.rfft(losses.mass, size), count)
        return product


def _epsilons(
    before: Composition,
    a_round: Composition,
    rounds: Sequence[int],
    window: tuple[int, int],
    grid: float,
    delta: float,
) -> list[float]:
    """Smallest epsilon at ``delta`` of ``before`` and r times ``a_round``, for every r of the
    increasing ``rounds``.

    Guarantees:
        - an upper bound: mass outside of the window and the rounding of the FFT count as infinite
          loss;
        - infinite where floating point cannot resolve delta (below about 1e-12).
    """
    tail, (low, high) = 1e-6 * delta, window
    longest = max(len(losses.mass) for losses, _ in (*before.parts, *a_round.parts))
    size = int(fft.next_fast_len(max(high - low + 1, longest), real=True))
    composed, factor = before.transform(size), a_round.transform(size)
    decay = np.exp(-grid * np.arange(-min(size, int(600 / grid)), size))
    result, done = [], 0
    for r in rounds:
        composed, done = composed * _power(factor, r - done), r
        mass = np.roll(fft.irfft(composed, size), (before.low + r * a_round.low - low) % size)
        # Where the true mass is nil the rounding of the FFT shows as negative mass; as much may be
        # missing elsewhere.
        rounding = -float(np.sum(np.minimum(mass, 0.0))) + _ROUNDING * (
            before.steps + r * a_round.steps
        )
        infinite = -math.expm1(before.log_finite() + r * a_round.log_finite()) + 2 * tail + rounding
        composition = Losses(low, np.maximum(mass, 0.0), infinite)
        result.append(
            _epsilon(composition, grid, delta, decay) if rounding < 0.1 * delta else math.inf
        )
    return result


def _epsilon(losses: Losses, grid: float, delta: float, decay: Floats) -> float:
    """Smallest epsilon >= 0 with: infinite + sum of mass * (1 - exp(epsilon - loss)) over losses
    above it <= delta.
    """
    if losses.infinite > delta:
        return math.inf
    first = min(max(-losses.low, 0), len(losses.mass))  # losses below zero do not count
    low, mass = losses.low + first, losses.mass[first:]
    above = losses.infinite + np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    # at this loss the mass above is already small enough
    highest = int(np.count_nonzero(above > delta)) - 1
    if highest < 0:
        return 0.0
    zero = len(decay) - len(losses.mass)  # decay[zero + k] = exp(-grid * k)
    start = max(0, highest - zero)
    # exp(-loss), 1 at the highest
    weights = decay[zero + start - highest : zero + len(mass) - highest]
    below = np.append(np.cumsum((mass[start:] * weights)[::-1])[::-1], 0.0)
    upto = highest - start + 1
    divergence = above[start + 1 : highest + 2] - below[1 : upto + 1] / weights[:upto]
    at = start + int(np.argmax(divergence <= delta))
    between = highest * grid + math.log((above[at] - delta) / below[at - start])
    return max(0.0, min(low * grid + between, (low + at) * grid))


def _window(
    before: Composition, a_round: Composition, rounds: NDArray[np.int64], tail: float
) -> tuple[int, int]:
    """Grid indices outside of which each composition has at most ``tail`` probability on either
    side.
    """
    low, width = before.low + rounds * a_round.low, before.width + rounds * a_round.width
    above = np.minimum(_chernoff(before, a_round, rounds, tail, 1), width)
    below = np.minimum(_chernoff(before, a_round, rounds, tail, -1), 0.0)
    return math.floor(np.min(low - below)), math.ceil(np.max(low + above))


def _chernoff(
    before: Composition, a_round: Composition, rounds: NDArray[np.int64], tail: float, sign: int
) -> Floats:
    """For each r: sign * (sum - low) exceeds this with probability at most ``tail``."""
    need = -math.log(tail)
    variance = before.variance() + rounds * a_round.variance()
    order, least = (
        math.sqrt(2 * need / max(v, 1e-9)) for v in (float(variance[0]), float(variance[-1]))
    )
    order, bounds = 2 * order, np.full(len(rounds), math.inf)
    for _ in range(80):
        # for normal sums the best order is sqrt(2 * need / variance); heavy tails need a smaller
        # one
        moment = before.log_moment(sign * order) + rounds * a_round.log_moment(sign * order)
        candidate = (moment + need) / order
        if order < least and np.all(np.isfinite(bounds)) and not np.any(candidate < bounds):
            break
        bounds, order = np.minimum(bounds, candidate), order / 2
    return bounds


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Repeated squaring: more precise and faster than a complex logarithm."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def _variance(mass: Floats) -> float:
    index = np.arange(len(mass)) - float(mass @ np.arange(len(mass)))
    return float(mass @ index**2)
