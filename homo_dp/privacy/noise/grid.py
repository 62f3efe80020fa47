"""The public grid that every release lies on, so that its low bits tell nothing about data or
noise.

A release is ``round((t + x) / step) * step``: t the sum of bounded contributions and x normal
noise, both float64, and a step that follows from the noise's standard deviation alone, a power of
two of which 64 to 128 make one sigma. Rounding, that of the addition included, is a function of t +
x and of nothing else: post-processing of the Gaussian mechanism. So neither the sensitivity nor the
event changes, and what is left is how far x is from an ideal normal.

How far: x is within ``e = 2**-50 max(sigma, |x|)`` of a number whose density is that of the normal
law times 1 +- 2**-47 (gaussian.py), so that the probability of a grid point is off by a factor of 1
+ r with |r| at most 2 e / step + 2**-47, to which the rounding of t + x (an eighth of a step at
most) and the slope of the density within a step add less than a half. So |r| < 2**-37 up to the 14
standard deviations that x never passes, and r**2 has a mean below 2**-81 (that of max(1, x**2) is
1.52), as the Kullback-Leibler divergence then has.

The logarithm of what q numbers together are off by is a sum of such r, each with a mean below
2**-81 given those before it, also where one is chosen after seeing others. By Bernstein's
inequality for martingales (Freedman 1975) it passes ``eta = q 2**-81 + sqrt(2 q 2**-81 L) + 2/3
2**-37 L`` with a probability below exp(-L). So if the ideal mechanism is (epsilon, delta)-private,
ours is (epsilon + 2 eta, e**eta delta + (1 + e**(epsilon + eta)) exp(-L))-private: once for each of
the two neighbours. ``neglected`` takes the L for which the last term is a millionth of delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.discrete_gaussian import LARGEST_CENTRE, WIDTH, draw_around

if TYPE_CHECKING:
    from homo_dp.privacy.noise.source import NoiseSource

CELLS = 64  # steps in one standard deviation, at least; fewer than twice as many
_EXACT = 2.0**50  # steps up to which float64 has at least 8 values in each
_MEAN_SQUARE, _LARGEST_ERROR = 2.0**-81, 2.0**-37  # of r
# what an ideal normal has beyond the largest that is drawn, 13.8 standard deviations
_NEVER_DRAWN = 2.0**-140
_RARELY = 1e-6  # of delta: how often the sum of all r may pass eta
_BEYOND = 40.0  # standard deviations that no noise passes: 1e-349 per number


@dataclass(frozen=True)
class Grid:
    """Multiples of ``step``.

    Guarantees:
        - ``step`` is a power of two that depends on the standard deviation of the noise and on
          nothing else;
        - ``round_`` and ``share`` see data only through the sum of data and noise.
    """

    step: float

    @classmethod
    def of(cls, sigma: float) -> Grid:
        """The grid for noise of this standard deviation.

        >>> Grid.of(1.0), Grid.of(1.5), Grid.of(100.0)
        (Grid(step=0.015625), Grid(step=0.015625), Grid(step=1.0))
        """
        if not (math.isfinite(sigma) and 1e-200 <= sigma <= 1e200):
            raise PrivacyError(
                f"sigma={sigma} is outside [1e-200, 1e200]; give noise that a release can carry"
            )
        return cls(math.ldexp(1.0, math.frexp(sigma)[1] - 1) / CELLS)

    @property
    def scale(self) -> float:
        """s, the steps in one unit: integers are s times the values, and one contribution moves
        them by s * C.
        """
        return 1.0 / self.step

    def check(self, most: float) -> None:
        """Raise if sums of up to ``most`` (rows times clip norm) are too large for their grid."""
        if not most <= _EXACT * self.step:
            raise PrivacyError(
                f"sums of up to {most:.3g} are too large for noise with a grid of {self.step:.3g}; "
                "raise the noise multiplier, the least for this many rows is "
                f"{most / (_EXACT * self.step):.3g} times as large"
            )

    def round_(self, values: Tensor) -> Tensor:
        """Round float64 sums of data and noise to the grid, in place."""
        return self.steps_(values).mul_(self.step)

    def steps_(self, values: Tensor) -> Tensor:
        """The same in whole steps, for a caller that multiplies by another factor anyway."""
        _check_double(values)
        return values.mul_(self.scale).round_()

    def share(self, total: Tensor, drawn: Tensor, noise: NoiseSource) -> Tensor:
        """The integers of float64 sums and the noise drawn for them, for sums over parties that
        each add a part of the noise.

        Each is drawn from the discrete Gaussian around the sum of both, of which no bit is lost, so
        that the sum over parties is what one draw around the sum would be: see
        ``discrete_gaussian.py``. That adds variance ``(WIDTH * step)**2`` and costs no privacy.
        """
        _check_double(total)
        _check_double(drawn)
        values, beside = (each.detach().reshape(-1).cpu().numpy() for each in (total, drawn))
        found = draw_around(values, noise.words, self.scale, beside)
        return torch.from_numpy(found).reshape(total.shape)

    def share_std(self, sigma: float) -> float:
        """The standard deviation of one party's whole noise where ``sigma`` is what is accounted
        for.
        """
        return math.hypot(sigma, WIDTH * self.step)

    def modulus_bits(self, summands: int, clip_norm: float, sigma: float, parties: int = 1) -> int:
        """32 or 64: the bits of integers whose sum cannot wrap, for this many contributions of norm
        ``clip_norm``.

        The sum of all contributions and of the noise of all parties lies within half the modulus:
        no coordinate of a contribution passes its norm, and no noise passes 40 of its standard
        deviations.

        >>> Grid.of(1.0).modulus_bits(summands=10_000, clip_norm=1.0, sigma=1.0, parties=10)
        32
        >>> Grid.of(1.0).modulus_bits(summands=10**9, clip_norm=1.0, sigma=1.0)
        64
        """
        most = (
            summands * clip_norm + _BEYOND * parties * self.share_std(sigma)
        ) * self.scale + parties
        if most < 2.0**31:
            return 32
        if most < LARGEST_CENTRE:  # past it no integer is drawn; far below what 64 bits hold
            return 64
        raise PrivacyError(
            f"summands={summands} of clip_norm={clip_norm:g} with sigma={sigma:g} are {most:.3g} "
            f"steps of their grid, and {LARGEST_CENTRE:.3g} is the most; declare fewer rows or "
            "users, or raise the noise multiplier"
        )


def noised(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """``total`` with noise of standard deviation ``sigma`` on every number, on its grid; float64
    whatever it was.

    Guarantees:
        - the result is a function of total + noise, so that its low bits tell no more than the
          Gaussian mechanism.

    >>> from homo_dp.privacy.noise.source import secure_noise
    >>> released = noised(torch.zeros(3), 1.0, secure_noise())
    >>> bool((released * 64 == (released * 64).round()).all())
    True
    """
    values = summed_with_noise(total, sigma, noise)
    return Grid.of(sigma).round_(values)


def noised_share(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """The same for a party whose noise is a part of that of a sum over parties, which is
    accounted as one Gaussian.
    """
    grid = Grid.of(sigma)
    drawn = noise.normal(tuple(total.shape), sigma, torch.float64)
    return grid.share(total.double(), drawn, noise).double().mul_(grid.step)


def summed_with_noise(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """Float64 total + noise, before any rounding to a grid: never to be released."""
    drawn = noise.normal(tuple(total.shape), sigma, torch.float64).to(total.device)
    return drawn.add_(total.detach())


class Neglected(NamedTuple):
    """What an accounted epsilon and delta grow by because noise on a computer is not ideal."""

    epsilon: float
    delta: float


def neglected(numbers: float, epsilon: float, delta: float) -> Neglected:
    """What the guarantee of this many released numbers grows by; see the module.

    >>> found = neglected(1e9, epsilon=8.0, delta=1e-5)
    >>> f"{found.epsilon:.1e} {found.delta:.1e}"
    '3.3e-07 1.2e-11'
    """
    found = grown_by(numbers, epsilon, delta, _MEAN_SQUARE, _LARGEST_ERROR)
    beyond = (1.0 + math.exp(min(epsilon, 600.0))) * numbers * _NEVER_DRAWN
    return Neglected(found.epsilon, min(1.0, found.delta + beyond))


def grown_by(
    numbers: float, epsilon: float, delta: float, mean_square: float, largest: float
) -> Neglected:
    """The same for probabilities that are off by factors 1 + r, by the mean square of r and the
    largest |r|.
    """
    chances = math.log((2.0 + math.exp(min(epsilon, 600.0))) / (_RARELY * delta))  # L
    eta = (
        numbers * mean_square
        + math.sqrt(2 * numbers * mean_square * chances)
        + 2 / 3 * largest * chances
    )
    return Neglected(2 * eta, delta * (math.exp(min(eta, 700.0)) * (1.0 + _RARELY) - 1.0))


def _check_double(values: Tensor) -> None:
    if values.dtype is not torch.float64:
        raise PrivacyError(
            f"dtype={values.dtype} has too few bits below a grid; add sums and noise in "
            "torch.float64"
        )


def on_grid(values: Tensor, sigma: float) -> bool:
    """Whether all values are on the grid of this noise.

    >>> on_grid(torch.tensor([0.5]), 1.0), on_grid(torch.tensor([1e-9]), 1.0)
    (True, False)
    """
    steps = values.double().numpy() / Grid.of(sigma).step
    return bool((steps == np.rint(steps)).all())
