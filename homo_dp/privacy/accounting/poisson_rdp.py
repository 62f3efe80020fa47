"""Renyi divergence of a Poisson-sampled Gaussian at many orders at once (Mironov, Talwar, Zhang
2019, section 3.3).

The sums are those of dp-accounting, which adds them up term by term in Python, a tenth of a second
for each sampling rate: too long where every party has a rate of its own. Here all orders and terms
are one array. Tests hold the two against each other.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

_TERMS = 64  # terms of the series that are added at a time
_MOST_TERMS = 1024  # beyond them the order is given up: infinite
_NEGLIGIBLE = 30.0  # a term this far below the sum, in logarithms, ends the series


def poisson_rdp(sample_rate: float, noise_multiplier: float, orders: Floats) -> Floats:
    """Renyi divergence of one step at each order, add or remove one; infinite where the series does
    not converge.

    Guarantees:
        - no term is left out before both series fall and are below 1e-13 of the sum, and none is
          subtracted.

    >>> poisson_rdp(0.01, 1.0, np.array([1.5, 8.0])).round(8)
    array([0.00013237, 0.00089364])
    """
    log_moment = np.empty(len(orders))
    whole = orders == np.floor(orders)
    # small ones share one small array
    for group in (whole & (orders <= _TERMS), whole & (orders > _TERMS)):
        log_moment[group] = _whole_orders(sample_rate, noise_multiplier, orders[group])
    log_moment[~whole] = _broken_orders(sample_rate, noise_multiplier, orders[~whole])
    return log_moment / (orders - 1)


def _whole_orders(rate: float, noise: float, orders: Floats) -> Floats:
    """Logs of the binomial sums, equation (3) of the paper."""
    if not len(orders):
        return orders
    order, i = orders[:, None], np.arange(orders.max() + 1)
    log_terms = i * math.log(rate) + (order - i) * math.log1p(-rate) + (i * i - i) / (2 * noise**2)
    log_terms = np.where(
        i <= order, log_terms + _log_choose(order, np.minimum(i, order)), -math.inf
    )
    return _log_sum(log_terms)


def _broken_orders(rate: float, noise: float, orders: Floats) -> Floats:
    """Logs of the two series of section 3.3, which meet where both parts of the mixture weigh
    the same.
    """
    total = np.full(len(orders), math.inf)
    left = np.arange(len(orders))  # whose series goes on
    sums = np.full((len(orders), 1), -math.inf)
    last = np.full((2, len(orders), 1), -math.inf)
    for start in range(0, _MOST_TERMS, _TERMS):
        terms = _terms(
            rate, noise, orders[left], np.arange(start, start + _TERMS, dtype=np.float64)
        )
        added = np.concatenate([sums, np.logaddexp(*terms)], axis=1)
        running = np.logaddexp.accumulate(added, axis=1)[:, 1:]
        falling = (np.diff(terms, prepend=last, axis=2) < 0).all(axis=0)
        enough = falling & (terms.max(axis=0) < running - _NEGLIGIBLE)
        ended = enough.any(axis=1)
        total[left[ended]] = running[ended, enough.argmax(axis=1)[ended]]
        left, sums, last = left[~ended], running[~ended, -1:], terms[:, ~ended, -1:]
        if not len(left):
            break
    return total


def _terms(rate: float, noise: float, orders: Floats, i: Floats) -> Floats:
    """Logs of the terms number i of both series, shape (2, orders, terms)."""
    order = orders[:, None]
    j = order - i
    meet = noise**2 * math.log(1 / rate - 1) + 0.5
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    below = (
        i * log_rate
        + j * log_rest
        + (i * i - i) / (2 * noise**2)
        + special.log_ndtr((meet - i) / noise)
    )
    above = (
        j * log_rate
        + i * log_rest
        + (j * j - j) / (2 * noise**2)
        + special.log_ndtr((j - meet) / noise)
    )
    return np.stack([below, above]) + _log_choose(order, i)


def _log_choose(n: Floats, k: Floats) -> Floats:
    """Log of the size of a binomial coefficient; its sign is dropped, which makes the sum
    larger.
    """
    result: Floats = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return result


def _log_sum(log_terms: Floats) -> Floats:
    """Log of the sum of each row, precise also where that is almost 0: tiny rates have tiny
    divergences.
    """
    rows, largest = np.arange(len(log_terms)), log_terms.argmax(axis=1)
    top = log_terms[rows, largest]
    others = np.exp(log_terms - top[:, None])
    others[rows, largest] = 0.0
    result: Floats = top + np.log1p(others.sum(axis=1))
    return result
