"""The exact epsilon of the Gaussian mechanism (Balle & Wang, https://arxiv.org/abs/1805.06530,
theorem 8).
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]


def gaussian_epsilons(inverse_noise: Floats, delta: float) -> Floats:
    """Smallest epsilon at ``delta`` for sensitivity / sigma = mu, for an array of mu >= 0.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e**epsilon Phi(-mu/2 - epsilon/mu). With t =
    epsilon/mu - mu/2 this is Phi(-t) - exp(-t**2/2) erfcx((t + mu)/sqrt(2)) / 2: no large
    exponents, whatever the noise.

    Guarantees:
        - an upper bound: delta is computed with a bound on its rounding added, and the bisection
          returns its safe end, a relative 1e-12 above the other.

    >>> [round(float(value), 4) for value in gaussian_epsilons(np.array([0.0, 0.2, 1.0]), delta=1e-5)]
    [0.0, 0.7255, 4.3772]
    """
    mu = np.asarray(inverse_noise, dtype=np.float64)
    low, high = np.maximum(-mu / 2, -40.0), np.full_like(mu, 39.0)
    free = _delta(-mu / 2, mu) <= delta  # delta at epsilon = 0
    for _ in range(120):
        middle = (low + high) / 2
        enough = _delta(middle, mu) <= delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(free, 0.0, mu * (high + mu / 2) * (1 + 1e-12))


def _delta(t: Floats, mu: Floats) -> Floats:
    """Delta at t, rounded up."""
    with np.errstate(under="ignore", over="ignore"):
        # erfcx overflows only below -26, where the factor before it is 0 and Phi(-t) is 1
        second = np.where(
            t + mu > -30, np.exp(-(t**2) / 2) * special.erfcx((t + mu) / math.sqrt(2)) / 2, 0.0
        )
        first = special.ndtr(-t)
        # The difference of two numbers that are nearly equal where mu is small. Each is right to a
        # few units in the last place, and to t**2 of them through its exponential.
        rounding = (8.0 + 2.0 * t**2) * 2.0**-52 * (first + second)
        result: Floats = first - second + rounding
    return result
