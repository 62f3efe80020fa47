"""A filter keeps its order: what it allows stays within the budget however releases were chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from homo_dp.privacy.accounting.accountants import (
    calibrate,
    epsilon,
    renyi,
    renyi_epsilon,
)
from homo_dp.privacy.accounting.dp_event import DpEvent, GaussianDpEvent
from homo_dp.privacy.accounting.events import compose, to_json
from homo_dp.privacy.accounting.filters import (
    best_order,
    epsilon_at_order,
    epsilon_left,
)
from homo_dp.privacy.accounting.renyi_bounds import ORDERS
from tests.privacy.adaptive_plans import adaptive_epsilon, least_noise

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


@pytest.mark.parametrize("rounds", [1, 10, 30])
@pytest.mark.parametrize("doubled", [False, True])
def test_what_is_left_fits_exactly_and_is_more_than_the_difference(
    rounds: int, doubled: bool
) -> None:
    spent, budget, delta = renyi({EVENT: rounds}), 4.0, 1e-5
    order = best_order(renyi({}), spent, budget, delta)
    left = epsilon_left(spent, order, budget, delta, doubled=doubled)
    if not doubled:
        assert left > budget - epsilon_at_order(spent, order, delta)

    def fits(epsilon: float) -> bool:
        noise = brentq(
            lambda noise: (
                renyi_epsilon(renyi({to_json(GaussianDpEvent(noise)): 1}), delta) - epsilon
            ),
            0.1,
            1000.0,
        )
        planned = renyi({to_json(GaussianDpEvent(noise)): 1}, doubled=doubled)
        return epsilon_at_order(spent + planned, order, delta) <= budget

    assert fits(0.999 * left)
    assert not fits(1.001 * left)


def test_all_is_left_before_the_first_release_and_nothing_after_the_last() -> None:
    assert epsilon_left(renyi({}), None, 4.0, 1e-5) == 4.0
    spent = renyi({EVENT: 1000})
    order = best_order(renyi({}), renyi({EVENT: 1}), 4.0, 1e-5)
    assert epsilon_left(spent, order, 4.0, 1e-5) == 0.0
    assert epsilon_left(spent, 12345.0, 4.0, 1e-5) == 0.0


@pytest.mark.parametrize(("claimed", "found"), [(1.0, 1.17), (4.0, 4.3)])
def test_exact_composition_is_no_filter(claimed: float, found: float) -> None:
    """The broken variant: each total is priced by PLD, which holds for plans that were fixed
    before the first answer.
    """
    first = calibrate(GaussianDpEvent, claimed, 1e-5) / math.sqrt(0.5)
    answer = GaussianDpEvent(first)

    def admitted(event: DpEvent) -> bool:
        return epsilon(compose(answer, event), 1e-5).quoted <= claimed

    assert adaptive_epsilon(first, least_noise(admitted), 1e-5) > found
