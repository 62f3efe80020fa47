"""A filter keeps its order: what it allows stays within the budget however releases were chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from homo_dp.privacy.accounting.accountants import renyi, renyi_epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.accounting.filters import best_order, epsilon_at_order
from homo_dp.privacy.accounting.renyi_bounds import ORDERS

EVENT = to_json(GaussianDpEvent(8.0))


def test_one_order_never_allows_more_than_all_orders_do() -> None:
    spent = renyi({EVENT: 30})
    best = renyi_epsilon(spent, 1e-5)
    assert all(epsilon_at_order(spent, float(order), 1e-5) >= best - 1e-12 for order in ORDERS)


def test_the_best_order_allows_as_many_repetitions_as_any() -> None:
    plan, budget, delta = renyi({EVENT: 1}), 2.0, 1e-5

    def repetitions(order: float) -> int:
        count = 0
        while epsilon_at_order(plan * (count + 1), order, delta) <= budget:
            count += 1
        return count

    chosen = best_order(renyi({}), plan, budget, delta)
    assert repetitions(chosen) == max(repetitions(float(order)) for order in ORDERS[::7])


@pytest.mark.parametrize("order", [1.0, 12345.0])
def test_an_unknown_order_lets_nothing_through(order: float) -> None:
    assert epsilon_at_order(renyi({}), order, 1e-5) == math.inf


def test_no_bound_at_the_order_lets_nothing_through() -> None:
    spent = np.full(len(ORDERS), math.nan)
    assert epsilon_at_order(spent, float(ORDERS[3]), 1e-5) == math.inf
