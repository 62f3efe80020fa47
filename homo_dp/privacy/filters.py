"""A privacy filter: how much may still be spent when every next release is chosen after seeing the earlier ones.

Composition theorems add up losses that were fixed beforehand. Over a lifetime they are not: the next run is chosen
after looking at the last. Renyi divergence of ONE order, fixed before the first release, still adds up then
(Feldman & Zrnic, https://arxiv.org/abs/2008.11193, Theorem 3.1); the smallest epsilon over many orders, which is what
an accountant reports, and a PLD are not proven to (https://arxiv.org/abs/2602.15815). So a filter keeps its order.
"""

import functools
import math
from collections.abc import Mapping

import numpy as np
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray

from homo_dp.privacy.events import from_json, parts

__all__ = ["best_order", "epsilon_at_order"]

# Below 1.01 the conversion to epsilon is not stable (dp_accounting.rdp.compute_epsilon).
_ORDERS = tuple(float(order) for order in DEFAULT_RDP_ORDERS if order > 1.01)


def best_order(spent: Mapping[str, int], plan: Mapping[str, int], epsilon: float, delta: float) -> float:
    """The order at which ``plan`` fits most often into what ``spent`` left of (epsilon, delta).

    Both are texts of events -> how many times. For a plan repeated until the budget is used up, this order refuses
    no repetition that the best of all orders would have allowed.

    >>> best_order({}, {'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 1}, epsilon=3.0, delta=1e-5)
    7.5
    """
    orders = np.array(_ORDERS)
    # What epsilon = rdp + log(1 - 1/a) - log(delta a) / (a - 1) leaves for rdp (arXiv 2004.00010, Proposition 12).
    allowed = epsilon - np.log1p(-1 / orders) + np.log(delta * orders) / (orders - 1)
    left = allowed - _total(spent)
    cost = np.maximum(_total(plan), 1e-300)
    repetitions = np.where(left > 0, left / cost, left)
    return _ORDERS[int(np.nanargmax(repetitions))]


def epsilon_at_order(counts: Mapping[str, int], order: float, delta: float) -> float:
    """Epsilon at delta of all these releases, by their Renyi divergence of this order alone.

    >>> round(epsilon_at_order({'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 50}, 8.7, 1e-5), 3)
    3.267
    """
    rdp = sum(count * _rdp(text, (order,))[0] for text, count in counts.items() if count)
    return math.inf if math.isnan(rdp) else float(compute_epsilon([order], [rdp], delta)[0])


def _total(counts: Mapping[str, int]) -> NDArray[np.float64]:
    total = np.zeros(len(_ORDERS))
    for text, count in counts.items():
        if count:  # never 0 * infinity
            total = total + count * _rdp(text, _ORDERS)
    return total


@functools.lru_cache(maxsize=4096)
def _rdp(text: str, orders: tuple[float, ...]) -> NDArray[np.float64]:
    total = np.zeros(len(orders))
    for part, count in parts(from_json(text)).items():
        # Without replacement dp-accounting has replace-one only; all other events are given as add-or-remove.
        fixed_size = "SampledWithoutReplacementDpEvent" in part
        relation = NeighboringRelation.REPLACE_ONE if fixed_size else NeighboringRelation.ADD_OR_REMOVE_ONE
        accountant = RdpAccountant(list(orders), neighboring_relation=relation).compose(from_json(part), count)
        total = total + accountant.rdp
    return total
