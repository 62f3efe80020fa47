"""Whether releases fit: the run's budget by the quoted epsilon, the lifetime's by one Renyi
order.
"""

from __future__ import annotations

import pytest

from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.ledger import Budget
from homo_dp.privacy.ledger.budget import by_dataset, lifetime_order, refusal
from homo_dp.privacy.ledger.totals import Totals
from tests.privacy.ledger_parts import DELTA, EVENT, FREE, budget_for, release


def test_exactly_what_was_calibrated_fits() -> None:
    assert refusal(Totals(), [(release(), 10)], budget_for(10)) is None
    over = refusal(Totals(), [(release(), 11)], budget_for(10))
    assert over is not None
    assert "would pass the budget" in over
    assert refusal(Totals(), [(release(), 10**6)], FREE) is None


def test_parties_of_a_run_have_budgets_of_their_own() -> None:
    planned = [(release(), 10), (release(party="b"), 10)]
    assert refusal(Totals(), planned, budget_for(10)) is None
    assert refusal(Totals(), [*planned, (release(2, party="b"), 1)], budget_for(10)) is not None


def test_a_lifetime_counts_runs_together_whatever_their_party() -> None:
    enough = epsilon(compose(*[EVENT] * 20), DELTA).rdp
    budget = Budget(lifetime_epsilon=enough, lifetime_delta=DELTA)
    apart = [(release(), 10), (release(run="run-2", party="renamed"), 9)]
    assert refusal(Totals(), apart, budget) is None
    over = refusal(Totals(), [*apart, (release(run="run-3"), 2)], budget)
    assert over is not None
    assert "this data has been used up" in over
    other = [(release(), 10), (release(run="run-2", dataset="other"), 10)]
    assert refusal(Totals(), [*other, (release(run="run-3", dataset="other"), 9)], budget) is None


def test_the_order_is_found_once_and_only_for_a_lifetime() -> None:
    plan = by_dataset([(release(), 10)])["table"]
    assert lifetime_order(Totals(), "table", plan, FREE) is None
    budget = Budget(lifetime_epsilon=2.0, lifetime_delta=DELTA)
    order = lifetime_order(Totals(), "table", plan, budget)
    assert order is not None
    assert order > 1
    assert order == pytest.approx(lifetime_order(Totals(), "table", plan, budget))
