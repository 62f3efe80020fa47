"""A privacy filter: how much may still be spent when every next release is chosen after seeing the
earlier ones.

Composition theorems add up losses that were fixed beforehand. Over a lifetime they are not: the
next run is chosen after looking at the last. Renyi divergence of ONE order, fixed before the first
release, still adds up then (Feldman & Zrnic, https://arxiv.org/abs/2008.11193). The smallest
epsilon over many orders, which is what an accountant reports, changes its order on the way, and
exact accounting (PLD) is known to fail as a filter (https://arxiv.org/abs/2602.15815). So a filter
keeps its order.
"""

import math

import numpy as np

from homo_dp.privacy.accounting.renyi_bounds import ORDERS, Renyi, converted, gaussian_rdp

__all__ = ["best_order", "epsilon_at_order", "epsilon_left"]


def best_order(spent: Renyi, plan: Renyi, epsilon: float, delta: float) -> float:
    """The order at which ``plan`` fits most often into what ``spent`` left of (epsilon, delta).

    For a plan repeated until the budget is used up, this order refuses no repetition that the best
    of all orders would have allowed.

    >>> from homo_dp.privacy.accounting.accountants import renyi
    >>> plan = renyi({'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 1})
    >>> best_order(renyi({}), plan, epsilon=3.0, delta=1e-5)
    7.5
    """
    left = _allowed(ORDERS, epsilon, delta) - spent
    cost = np.maximum(plan, 1e-300)
    repetitions = np.where(left > 0, left / cost, left)
    return float(ORDERS[int(np.nanargmax(repetitions))])


def epsilon_at_order(spent: Renyi, order: float, delta: float) -> float:
    """Epsilon at delta of all these releases, by their Renyi divergence of this order alone.

    >>> from homo_dp.privacy.accounting.accountants import renyi
    >>> spent = renyi({'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 50})
    >>> round(epsilon_at_order(spent, 8.7, 1e-5), 3)
    3.267
    """
    rdp = spent[order == ORDERS]
    if len(rdp) != 1 or math.isnan(rdp[0]):
        return math.inf  # an unknown order, or no bound at it: nothing fits
    return float(converted(np.array([order]), rdp, delta)[0])


def epsilon_left(
    spent: Renyi, order: float | None, epsilon: float, delta: float, *, doubled: bool = False
) -> float:
    """The epsilon of one further Gaussian release that uses up what is left of (epsilon, delta).

    Epsilons of runs do not add up to that of all of them, so this is more than the difference
    between the budget and what was spent.

    Args:
        spent: Renyi divergence of all releases so far.
        order: the order of the filter; None before the first release, when all is left.
        epsilon: the lifetime budget.
        delta: its delta.
        doubled: whether the release counts at twice the distance, as in a lifetime of different
            units or relations.

    Returns:
        Epsilon by RDP at ``delta``; 0 where nothing fits.

    >>> from homo_dp.privacy.accounting.accountants import renyi, renyi_epsilon
    >>> spent = renyi({'{"noise_multiplier":10.0,"type":"GaussianDpEvent"}': 20})
    >>> order = best_order(renyi({}), spent, epsilon=3.0, delta=1e-5)
    >>> round(renyi_epsilon(spent, 1e-5), 2), round(epsilon_left(spent, order, 3.0, 1e-5), 2)
    (1.91, 2.16)
    """
    if order is None:
        return epsilon
    rdp = spent[order == ORDERS]
    if len(rdp) != 1 or math.isnan(rdp[0]):
        return 0.0
    left = _allowed(np.array([order]), epsilon, delta)[0] - rdp[0]
    if left <= 0:
        return 0.0
    noise_multiplier = math.sqrt(order / (2 * left)) * (2 if doubled else 1)
    found = converted(ORDERS, gaussian_rdp(noise_multiplier, ORDERS), delta).min()
    return min(epsilon, float(found))


def _allowed(orders: Renyi, epsilon: float, delta: float) -> Renyi:
    """The Renyi divergence of these orders that (epsilon, delta) allows (arXiv 2004.00010,
    Proposition 12): epsilon = rdp + log(1 - 1/a) - log(delta a) / (a - 1).
    """
    found: Renyi = epsilon - np.log1p(-1 / orders) + np.log(delta * orders) / (orders - 1)
    return found
