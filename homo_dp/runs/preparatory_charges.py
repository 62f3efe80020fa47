"""Compares what a party has paid for runs that learn something before a training with the plan of that training.

A plan tells what was learnt before it and at what price, and the noise of the training is solved together with that.
An aggregator that leaves it out would get the training under a target of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import PartyPlan
from homo_dp.federation.sessions.party_session import STEPS, learns_for
from homo_dp.federation.sessions.plan import PlanRefused, check_price
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import compose, from_json
from homo_dp.privacy.ledger import Ledger, LedgerRow
from homo_dp.runs.processes import learning_run

_SLACK = 1e-6  # relative


def check_learnt(own: Config, agreed: Config, plan: PartyPlan, run: str, ledger: Ledger) -> None:
    """Refuse a plan that counts less than this party has paid before it, or a step that passes its cap with others.

    Guarantees:
        - all steps of a training, and the training, together stay within the party's cap of one run, whichever the
          aggregator asks for first.
    """
    name = str(own.party.name)
    base = learns_for(run)
    # Before a training its steps; beside a step the others and, if an aggregator asks it too late, the training.
    others = {base or run, *(learning_run(base or run, step) for step in STEPS)} - {run}
    spent = [row for other in sorted(others) for row in ledger.rows(other, name) if row.is_release]
    if not spent:
        return
    if base is None:
        learnt = agreed.data.learnt
        _check_counted(spent, () if learnt is None else learnt.noise_multipliers)
        return
    before = [from_json(row.event) for row in spent] + ([] if plan.before is None else [plan.before])
    check_price(own, replace(plan, before=compose(*before)))


def _check_counted(spent: Sequence[LedgerRow], claimed: Sequence[float]) -> None:
    """Every release that was paid for must be among those that the plan counts, with as much noise or less there."""
    events = [from_json(row.event) for row in spent]
    paid = sorted(event.noise_multiplier if isinstance(event, GaussianDpEvent) else 0.0 for event in events)
    told = sorted(claimed)
    if len(told) < len(paid) or any(one > other * (1 + _SLACK) for one, other in zip(told, paid, strict=False)):
        raise PlanRefused(
            "plan",
            f"data.learnt: the plan does not count the {len(paid)} releases that this party made before it under the "
            "same target (runs of its name with -levels, -counts or -bounds)",
        )
