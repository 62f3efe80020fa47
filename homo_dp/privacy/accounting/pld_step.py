"""The privacy loss of one step, as an exact distribution and rounded up to a grid."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NoisyStep:
    """One step: a Gaussian or Laplace sum of sensitivity 1, on a Poisson sample (rate 1: on
    everybody).
    """

    noise: float
    sample_rate: float = 1.0
    laplace: bool = False

    def loss(self, x: Floats) -> Floats:
        """Log likelihood ratio, with the record over without it, of an outcome ``x``; increasing
        in x.
        """
        if self.laplace:
            return (np.abs(x) - np.abs(x - 1)) / self.noise
        plain = (x - 0.5) / self.noise**2
        if self.sample_rate == 1:
            return plain
        return np.logaddexp(math.log1p(-self.sample_rate), math.log(self.sample_rate) + plain)

    def outcome(self, loss: Floats) -> Floats:
        """The outcome with this loss; infinite where no outcome reaches it."""
        if self.laplace:
            x = (self.noise * loss + 1) / 2
            return np.where(
                loss >= 1 / self.noise, math.inf, np.where(loss <= -1 / self.noise, -math.inf, x)
            )
        if self.sample_rate == 1:
            return 0.5 + self.noise**2 * loss
        with np.errstate(divide="ignore"):
            # log(1 + (e^loss - 1) / q), without overflow for a large loss
            unsampled = np.where(
                loss > 30,
                loss - math.log(self.sample_rate),
                np.log1p(np.maximum(np.expm1(np.minimum(loss, 30)) / self.sample_rate, -1)),
            )
        return 0.5 + self.noise**2 * unsampled

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Probability of every cell between edges, with the record and without it."""
        without = self._mass(edges)
        return (1 - self.sample_rate) * without + self.sample_rate * self._mass(edges - 1), without

    def reach(self, tail: float) -> tuple[float, float]:
        """Outcomes outside of which each side has at most ``tail`` probability."""
        far = -self.noise * (math.log(2 * tail) if self.laplace else float(special.ndtri(tail)))
        return -far, 1 + far

    def _mass(self, edges: Floats) -> Floats:
        scaled = edges / self.noise
        # from the nearer tail, so that a small cell far out keeps its relative precision
        below = 0.5 * np.exp(-np.abs(scaled)) if self.laplace else special.ndtr(-np.abs(scaled))
        cell = np.abs(np.diff(below))
        return np.where((scaled[1:] > 0) & (scaled[:-1] < 0), 1 - below[1:] - below[:-1], cell)


@dataclass(frozen=True)
class Losses:
    """Mass at the losses (low + i) * grid, and at infinity; dominates the distribution that it
    was made from.
    """

    low: int
    mass: Floats
    infinite: float


@dataclass(frozen=True)
class Step:
    """The losses of one mechanism when a record is removed, and when one is added."""

    removed: Losses
    added: Losses


def spread(mechanism: NoisyStep, ignored: float) -> float:
    """Root mean square of the loss of one step, leaving out its most extreme ``ignored``
    probability.
    """
    low, high = mechanism.reach(max(ignored, 1e-18) / 2)
    edges = np.linspace(low, high, 4001)
    upper, _ = mechanism.masses(edges)
    losses = mechanism.loss((edges[1:] + edges[:-1]) / 2)
    rare = np.cumsum(upper[::-1])[::-1] <= ignored
    return math.sqrt(float(np.sum(np.where(rare, 0.0, upper * losses**2))))


def discretise(mechanism: NoisyStep, grid: float, tail: float) -> Step:
    """One step on the grid, rounded so that every hockey-stick divergence is at least the true one.

    Guarantees:
        - inside each cell the probability is moved to the two ends so that both neighbours keep
          their mass, which joins the true divergences at grid points by chords and so lies above
          them (Connect the Dots, https://arxiv.org/abs/2207.04380, algorithm 1);
        - at most ``tail`` of the mass beyond the grid is given an infinite loss.
    """
    lowest, highest = (float(value) for value in mechanism.loss(np.array(mechanism.reach(tail))))
    low, high = math.floor(lowest / grid), math.ceil(highest / grid)
    edges = np.full(high - low + 3, math.inf)
    edges[0], edges[1:-1] = (
        -math.inf,
        mechanism.outcome(grid * np.arange(low, high + 1, dtype=np.float64)),
    )
    upper, lower = mechanism.masses(edges)
    return Step(_split(upper, lower, low, grid), _split(lower[::-1], upper[::-1], -high, grid))


def _split(upper: Floats, lower: Floats, low: int, grid: float) -> Losses:
    """Move the mass of each cell to its two ends; ``upper`` and ``lower`` start and end with the
    open cells.
    """
    losses = (low + np.arange(len(upper) - 1)) * grid
    inside = upper[1:-1]
    # Solves: both ends together keep sum(mass) and sum(mass * exp(-loss)) of the cell. Past e**600
    # the second sum underflows, and all of the cell goes up.
    scale = np.exp(np.minimum(losses, 600.0))
    to_top = np.where(
        losses[:-1] < 600, (inside - lower[1:-1] * scale[:-1]) / -math.expm1(-grid), inside
    )
    to_top = np.clip(to_top, 0.0, inside)
    mass = np.zeros(len(losses))
    mass[1:] += to_top
    mass[:-1] += inside - to_top
    mass[0] += upper[0]
    finite = min(float(upper[-1]), float(lower[-1] * scale[-1])) if losses[-1] < 600 else 0.0
    mass[-1] += finite
    return Losses(low, mass, float(upper[-1]) - finite)
