"""Renyi divergence of plain Gaussian and Laplace mechanisms, and from a divergence to epsilon, at
many orders at once.

The formulas are those of dp-accounting, which goes through orders one at a time in Python and is
half a second to import. Tests hold the two against each other.
"""

import numpy as np
from numpy.typing import NDArray

Renyi = NDArray[np.float64]  # divergence at each of ORDERS

ORDERS = np.array(
    [*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024],
    dtype=np.float64,
)
_LEAST_ORDER = 1.01  # below it the conversion is not numerically stable, nor of use


def gaussian_rdp(noise_multiplier: float, orders: Renyi) -> Renyi:
    """Renyi divergence of normals one sensitivity apart (Mironov 2017,
    https://arxiv.org/abs/1702.07476, corollary 3).

    >>> gaussian_rdp(2.0, np.array([2.0, 8.0]))
    array([0.25, 1.  ])
    """
    return orders / (2 * noise_multiplier**2)


def laplace_rdp(noise_multiplier: float, orders: Renyi) -> Renyi:
    """Renyi divergence of Laplace noise one sensitivity apart (Mironov 2017, proposition 6), all
    orders above 1.

    >>> laplace_rdp(1.0, np.array([2.0, 1024.0])).round(4)
    array([0.6191, 0.9993])
    """
    pure = 1 / noise_multiplier
    rest = (orders - 1) * np.expm1((1 - 2 * orders) * pure) / (2 * orders - 1)
    return pure + np.log1p(rest) / (orders - 1)


def converted(orders: Renyi, divergence: Renyi, delta: float) -> Renyi:
    """Epsilon at delta by the divergence of each order alone (https://arxiv.org/abs/2004.00010,
    proposition 12).

    Guarantees:
        - each is an upper bound, so the smallest is one; infinite where an order gives none.

    >>> converted(np.array([2.0, 8.0]), gaussian_rdp(5.0, np.array([2.0, 8.0])), 1e-5).round(3)
    array([10.167,  1.374])
    """
    with np.errstate(invalid="ignore"):
        epsilon = divergence + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        # delta <= sqrt(1 - exp(-KL)), and KL is at most the divergence of any order
        nothing = delta**2 + np.expm1(-divergence) > 0
    result: Renyi = np.where(
        nothing, 0.0, np.where(orders > _LEAST_ORDER, np.maximum(epsilon, 0.0), np.inf)
    )
    return np.where(np.isnan(divergence), np.inf, result)
