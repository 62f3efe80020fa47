"""Whether releases fit a budget: the run's by the quoted epsilon, the lifetime's by a Renyi filter."""

from collections import Counter
from collections.abc import Iterable

from homo_dp.privacy.filters import best_order, epsilon_at_order
from homo_dp.privacy.ledger_lifetime import Releases, renyi_of
from homo_dp.privacy.ledger_rows import Budget, Charge, Scope
from homo_dp.privacy.ledger_totals import Totals, epsilon_of, known_epsilon

__all__ = ["by_scope", "lifetime_order", "lifetime_refusal", "refusal", "run_refusal"]

_ROUNDING = 1 + 1e-9  # sums of floats in another order


def refusal(totals: Totals, planned: Iterable[tuple[Charge, int]], budget: Budget) -> str | None:
    """Why these releases, all together, would pass the budget; None if they fit."""
    runs: dict[tuple[str, ...], tuple[Charge, Counter[str]]] = {}
    planned = list(planned)
    for charge, count in planned:
        run = charge.run, charge.party, charge.dataset, charge.unit, charge.relation, str(charge.delta)
        runs.setdefault(run, (charge, Counter()))[1][charge.event_text] += count
    reasons = [run_refusal(totals.run(charge) + plan, charge, budget) for charge, plan in runs.values()]
    first = {charge.scope: charge for charge, _ in reversed(planned)}
    for scope, plan in by_scope(planned).items():
        order = lifetime_order(totals, scope, plan, budget)
        reasons.append(lifetime_refusal(totals, first[scope], plan, order, budget))
    return next((reason for reason in reasons if reason is not None), None)


def by_scope(planned: Iterable[tuple[Charge, int]]) -> dict[Scope, Releases]:
    """What is planned about each dataset, unit and relation."""
    plans: dict[Scope, dict[str, dict[str, Counter[str]]]] = {}
    for charge, count in planned:
        parties = plans.setdefault(charge.scope, {}).setdefault(charge.run, {})
        parties.setdefault(charge.party, Counter())[charge.event_text] += count
    return {**plans}


def run_refusal(counts: Counter[str], charge: Charge, budget: Budget) -> str | None:
    """Why these releases of the run would pass the run's budget; the sum in one piece has the last word."""
    if budget.epsilon is None:
        return None
    ahead = known_epsilon(counts, charge.delta)
    if ahead is not None and ahead.quoted <= budget.epsilon:
        return None
    spent = epsilon_of(counts, charge.delta).quoted
    if spent <= budget.epsilon * _ROUNDING:
        return None
    return (
        f"epsilon={spent:.6g} at delta={charge.delta:g} would pass the budget epsilon={budget.epsilon:g} of "
        f"run={charge.run} party={charge.party} (round={charge.round} kind={charge.kind}); "
        "plan fewer rounds or more noise"
    )


def lifetime_refusal(totals: Totals, charge: Charge, plan: Releases, order: float | None, budget: Budget) -> str | None:
    """Why these releases, after those of all runs, would pass the lifetime budget of the dataset, unit and relation."""
    if order is None or budget.lifetime_epsilon is None or budget.lifetime_delta is None:
        return None
    spent = epsilon_at_order(totals.lifetime(charge.scope).renyi(plan), order, budget.lifetime_delta)
    if spent <= budget.lifetime_epsilon * _ROUNDING:
        return None
    return (
        f"lifetime_epsilon={budget.lifetime_epsilon:g} at lifetime_delta={budget.lifetime_delta:g} of "
        f"dataset={charge.dataset} unit={charge.unit} relation={charge.relation} would be passed: epsilon={spent:.6g} "
        f"over all runs by RDP at the fixed order={order:g} (run={charge.run} party={charge.party} "
        f"round={charge.round}); "
        "this data has been used up, raise privacy.lifetime_epsilon only if its owner agrees"
    )


def lifetime_order(totals: Totals, scope: Scope, plan: Releases, budget: Budget) -> float | None:
    """The order of the lifetime filter: the one on the ledger, else the best for what is planned now."""
    if budget.lifetime_epsilon is None or budget.lifetime_delta is None:
        return None
    fixed = totals.lifetime_order(scope)
    if fixed is not None:
        return fixed
    spent = totals.lifetime(scope).renyi()
    return best_order(spent, renyi_of(plan), budget.lifetime_epsilon, budget.lifetime_delta)
