"""The public grid that every release lies on, so that its low bits tell nothing about data or noise.

A release is ``round((t + x) / step) * step``: t the sum of bounded contributions and x normal noise, both float64, and
a step that follows from the noise's standard deviation alone, a power of two of which 64 to 128 make one sigma.
Rounding, that of the addition included, is a function of t + x and of nothing else: post-processing of the Gaussian
mechanism. So neither the sensitivity nor the event changes, and what is left is how far x is from an ideal normal.

How far: x is within ``e = 2**-50 max(sigma, |x|)`` of a number whose density is that of the normal law times 1 +-
2**-47 (gaussian.py), so that the probability of a grid point is off by a factor of at most 1 + 2 e / step + 2**-47, to
which the rounding of t + x adds less than a tenth; the chi-squared divergence of one number is then below 2**-81 (the
mean of max(1, x**2) is 1.52), and so is the
Kullback-Leibler divergence, which adds up over numbers, steps and rounds, also where one is chosen after seeing others.
By Pinsker's inequality q numbers together are within ``sqrt(q) * 2**-41`` of the ideal mechanism in total variation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.discrete_gaussian import WIDTH, draw_around

if TYPE_CHECKING:
    from homo_dp.privacy.noise.source import NoiseSource

CELLS = 64  # steps in one standard deviation, at least; fewer than twice as many
_EXACT = 2.0**50  # steps up to which float64 has at least 8 values in each
_DIVERGENCE = 2.0**-41
_BEYOND = 40.0  # standard deviations that no noise passes: 1e-349 per number


@dataclass(frozen=True)
class Grid:
    """Multiples of ``step``.

    Guarantees:
        - ``step`` is a power of two that depends on the standard deviation of the noise and on nothing else;
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
            raise PrivacyError(f"sigma={sigma} is outside [1e-200, 1e200]; give noise that a release can carry")
        return cls(math.ldexp(1.0, math.frexp(sigma)[1] - 1) / CELLS)

    @property
    def scale(self) -> float:
        """s, the steps in one unit: integers are s times the values, and one contribution moves them by s * C."""
        return 1.0 / self.step

    def check(self, most: float) -> None:
        """Raise if sums of up to ``most`` (rows times clip norm) are too large for their grid."""
        if not most <= _EXACT * self.step:
            raise PrivacyError(
                f"sums of up to {most:.3g} are too large for noise with a grid of {self.step:.3g}; raise the noise "
                f"multiplier, the least for this many rows is {most / (_EXACT * self.step):.3g} times as large"
            )

    def round_(self, values: Tensor) -> Tensor:
        """Round float64 sums of data and noise to the grid, in place."""
        return self.steps_(values).mul_(self.step)

    def steps_(self, values: Tensor) -> Tensor:
        """The same in whole steps: for who multiplies by something else anyway."""
        _check_double(values)
        return values.mul_(self.scale).round_()

    def share(self, values: Tensor, noise: NoiseSource) -> Tensor:
        """The integers of float64 sums of data and noise, for sums over parties that each add a part of the noise.

        Each is drawn from the discrete Gaussian around its value, so that the sum over parties is what one draw around
        the sum would be: see ``discrete_gaussian.py``. That adds variance ``(WIDTH * step)**2`` and costs no privacy.
        """
        _check_double(values)
        drawn = draw_around(values.reshape(-1).cpu().numpy(), noise.words, self.scale)
        return torch.from_numpy(drawn).reshape(values.shape)

    def share_std(self, sigma: float) -> float:
        """The standard deviation of one party's whole noise where ``sigma`` is what is accounted for."""
        return math.hypot(sigma, WIDTH * self.step)

    def modulus_bits(self, summands: int, clip_norm: float, sigma: float, parties: int = 1) -> int:
        """32 or 64: the bits of integers whose sum cannot wrap, for this many contributions of norm ``clip_norm``.

        The sum of all contributions and of the noise of all parties lies within half the modulus: no coordinate of a
        contribution passes its norm, and no noise passes 40 of its standard deviations.

        >>> Grid.of(1.0).modulus_bits(summands=10_000, clip_norm=1.0, sigma=1.0, parties=10)
        32
        >>> Grid.of(1.0).modulus_bits(summands=10**9, clip_norm=1.0, sigma=1.0)
        64
        """
        most = (summands * clip_norm + _BEYOND * parties * self.share_std(sigma)) * self.scale + parties
        for bits in (32, 64):
            if most < 2.0 ** (bits - 1):
                return bits
        raise PrivacyError(
            f"summands={summands} of clip_norm={clip_norm:g} with sigma={sigma:g} do not fit integers of 64 bits; "
            "raise the noise multiplier"
        )


def noised(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """``total`` with noise of standard deviation ``sigma`` on every number, on its grid; float64 whatever it was.

    Guarantees:
        - the result is a function of total + noise, so that its low bits tell no more than the Gaussian mechanism.

    >>> from homo_dp.privacy.noise.source import secure_noise
    >>> released = noised(torch.zeros(3), 1.0, secure_noise())
    >>> bool((released * 64 == (released * 64).round()).all())
    True
    """
    values = summed_with_noise(total, sigma, noise)
    return Grid.of(sigma).round_(values)


def noised_share(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """The same for a party whose noise is a part of that of a sum over parties, which is accounted as one Gaussian."""
    grid = Grid.of(sigma)
    return grid.share(summed_with_noise(total, sigma, noise), noise).double().mul_(grid.step)


def summed_with_noise(total: Tensor, sigma: float, noise: NoiseSource) -> Tensor:
    """Float64 total + noise, before any rounding to a grid: never to be released."""
    drawn = noise.normal(tuple(total.shape), sigma, torch.float64).to(total.device)
    return drawn.add_(total.detach())


def neglected(numbers: float) -> float:
    """The total variation between releases of this many numbers and those of ideal normals; see the module.

    A delta grows by (1 + exp(epsilon)) times it.

    >>> f"{neglected(1e6):.1e}"
    '4.5e-10'
    """
    return _DIVERGENCE * math.sqrt(numbers)


def neglected_delta(numbers: float, epsilon: float) -> float:
    """What delta grows by for ``numbers`` released numbers; negligible beside any delta that is accounted.

    >>> neglected_delta(1e6, 1.0) < 1e-8
    True
    """
    return min(1.0, (1.0 + math.exp(min(epsilon, 700.0))) * neglected(numbers))


def _check_double(values: Tensor) -> None:
    if values.dtype is not torch.float64:
        raise PrivacyError(f"dtype={values.dtype} has too few bits below a grid; add sums and noise in torch.float64")


def on_grid(values: Tensor, sigma: float) -> bool:
    """Whether all values are on the grid of this noise.

    >>> on_grid(torch.tensor([0.5]), 1.0), on_grid(torch.tensor([1e-9]), 1.0)
    (True, False)
    """
    steps = values.double().numpy() / Grid.of(sigma).step
    return bool((steps == np.rint(steps)).all())
