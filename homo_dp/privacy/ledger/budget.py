"""Whether releases fit a budget: the run's by the quoted epsilon, the lifetime's by a Renyi
filter.
"""

from collections import Counter
from collections.abc import Iterable

from homo_dp.privacy.accounting.events import EventText
from homo_dp.privacy.accounting.filters import best_order, epsilon_at_order
from homo_dp.privacy.ledger.lifetime import Releases, renyi_of
from homo_dp.privacy.ledger.rows import Budget, Charge, Spend
from homo_dp.privacy.ledger.totals import Totals, epsilon_of, known_epsilon

__all__ = ["by_dataset", "lifetime_order", "lifetime_refusal", "refusal", "run_refusal"]

_ROUNDING = 1 + 1e-9  # sums of floats in another order


def refusal(totals: Totals, planned: Iterable[tuple[Charge, int]], budget: Budget) -> str | None:
    """Why these releases, all together, would pass the budget; None if they fit. Marks cost
    nothing, so they fit.
    """
    runs: dict[tuple[str, ...], tuple[Charge, Counter[EventText]]] = {}
    planned = [(charge, count) for charge, count in planned if charge.is_release]
    for charge, count in planned:
        run = charge.run, charge.party, str(charge.delta)
        runs.setdefault(run, (charge, Counter()))[1][charge.event_text] += count
    reasons = [
        run_refusal(totals.run(charge) + plan, charge, budget) for charge, plan in runs.values()
    ]
    first = {charge.dataset: charge for charge, _ in reversed(planned)}
    for dataset, plan in by_dataset(planned).items():
        order = lifetime_order(totals, dataset, plan, budget)
        reasons.append(lifetime_refusal(totals, first[dataset], plan, order, budget))
    return next((reason for reason in reasons if reason is not None), None)


def by_dataset(planned: Iterable[tuple[Charge, int]]) -> dict[str, Releases]:
    """What is planned about each dataset."""
    plans: dict[str, dict[str, dict[str, Counter[Spend]]]] = {}
    for charge, count in planned:
        parties = plans.setdefault(charge.dataset, {}).setdefault(charge.run, {})
        parties.setdefault(charge.party, Counter())[charge.spend] += count
    return {**plans}


def run_refusal(counts: Counter[EventText], charge: Charge, budget: Budget) -> str | None:
    """Why these releases of the run would pass the run's budget; epsilon of all of them in one
    computation decides.
    """
    if budget.epsilon is None:
        return None
    ahead = known_epsilon(counts, charge.delta)
    if ahead is not None and ahead.quoted <= budget.epsilon:
        return None
    spent = epsilon_of(counts, charge.delta).quoted
    if spent <= budget.epsilon * _ROUNDING:
        return None
    return (
        f"epsilon={spent:.6g} at delta={charge.delta:g} would pass the budget "
        f"epsilon={budget.epsilon:g} of run={charge.run} party={charge.party} "
        f"(round={charge.round} kind={charge.kind}); plan fewer rounds or more noise"
    )


def lifetime_refusal(
    totals: Totals, charge: Charge, plan: Releases, order: float | None, budget: Budget
) -> str | None:
    """Why these releases, after those of all runs, would pass the lifetime budget of the
    dataset.
    """
    if order is None or budget.lifetime_epsilon is None or budget.lifetime_delta is None:
        return None
    spent = epsilon_at_order(
        totals.lifetime(charge.dataset).renyi(plan), order, budget.lifetime_delta
    )
    if spent <= budget.lifetime_epsilon * _ROUNDING:
        return None
    return (
        f"lifetime_epsilon={budget.lifetime_epsilon:g} at lifetime_delta={budget.lifetime_delta:g} "
        f"of dataset={charge.dataset} would be passed: epsilon={spent:.6g} over all runs, units "
        f"and relations by RDP at the fixed order={order:g} (run={charge.run} "
        f"party={charge.party} round={charge.round} unit={charge.unit} "
        f"relation={charge.relation}); this data has been used up, raise privacy.lifetime_epsilon "
        "only if its owner agrees"
    )


def lifetime_order(totals: Totals, dataset: str, plan: Releases, budget: Budget) -> float | None:
    """The order of the lifetime filter: the one on the ledger, else the best for what is planned
    now.
    """
    if budget.lifetime_epsilon is None or budget.lifetime_delta is None:
        return None
    fixed = totals.lifetime_order(dataset)
    if fixed is not None:
        return fixed
    spent = totals.lifetime(dataset).renyi()
    return best_order(spent, renyi_of(plan), budget.lifetime_epsilon, budget.lifetime_delta)
