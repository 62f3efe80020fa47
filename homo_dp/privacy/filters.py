"""A privacy filter: how much may still be spent when every next release is chosen after seeing the earlier ones.

Composition theorems add up losses that were fixed beforehand. Over a lifetime they are not: the next run is chosen
after looking at the last. Renyi divergence of ONE order, fixed before the first release, still adds up then
(Feldman & Zrnic, https://arxiv.org/abs/2008.11193). The smallest epsilon over many orders, which is what an accountant
reports, changes its order on the way, and exact accounting (PLD) is known to fail as a filter
(https://arxiv.org/abs/2602.15815). So a filter keeps its order.
"""

import math
from collections.abc import Mapping

import numpy as np
from dp_accounting.rdp import compute_epsilon
from numpy.typing import NDArray

from homo_dp.privacy.accounting import ORDERS
from homo_dp.privacy.accounting import _rdp_vector as rdp_vector

__all__ = ["best_order", "epsilon_at_order"]


def best_order(spent: Mapping[str, int], plan: Mapping[str, int], epsilon: float, delta: float) -> float:
    """The order at which ``plan`` fits most often into what ``spent`` left of (epsilon, delta).

    Both are texts of events -> how many times. For a plan repeated until the budget is used up, this order refuses
    no repetition that the best of all orders would have allowed.

    >>> best_order({}, {'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 1}, epsilon=3.0, delta=1e-5)
    7.5
    """
    # What epsilon = rdp + log(1 - 1/a) - log(delta a) / (a - 1) leaves for rdp (arXiv 2004.00010, Proposition 12).
    allowed = epsilon - np.log1p(-1 / ORDERS) + np.log(delta * ORDERS) / (ORDERS - 1)
    left = allowed - _total(spent)
    cost = np.maximum(_total(plan), 1e-300)
    repetitions = np.where(left > 0, left / cost, left)
    return float(ORDERS[int(np.nanargmax(repetitions))])


def epsilon_at_order(counts: Mapping[str, int], order: float, delta: float) -> float:
    """Epsilon at delta of all these releases, by their Renyi divergence of this order alone.

    >>> round(epsilon_at_order({'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 50}, 8.7, 1e-5), 3)
    3.267
    """
    rdp = _total(counts)[order == ORDERS]
    if len(rdp) != 1 or math.isnan(rdp[0]):
        return math.inf  # an order that nobody knows, or no bound at it: nothing fits
    return float(compute_epsilon([order], rdp, delta)[0])


def _total(counts: Mapping[str, int]) -> NDArray[np.float64]:
    total = np.zeros(len(ORDERS))
    for text, count in counts.items():
        if count:  # never 0 * infinity
            total = total + count * rdp_vector(text)
    return total
