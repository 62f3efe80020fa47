"""What a plan would give away at a party, and what the party lets it cost: for dry runs, and for
approvals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan
from homo_dp.federation.sessions.plan import epsilon_cap, release_names
from homo_dp.federation.sessions.statement import epsilon_after, quoted_observer
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.runs.approval import ROWS_TOLD


def party_budget(own: Config, agreed: Config) -> Budget:
    """What the ledger enforces: the party's own cap, or the smaller target it agreed to; its own
    lifetime budget.
    """
    privacy = own.privacy
    lifetime_delta = None if privacy.lifetime_epsilon is None else own.lifetime_delta
    limits = [
        value for value in (agreed.privacy.target_epsilon, epsilon_cap(own)) if value is not None
    ]
    return Budget(min(limits) if limits else None, privacy.lifetime_epsilon, lifetime_delta)


def given_away(
    own: Config, config: Config, name: str, mechanism: Mechanism, plan: PartyPlan
) -> dict[str, Any]:
    """What a plan would release at a party, its price, and the limits that the party keeps."""
    observer = quoted_observer({name: plan})
    spent = epsilon_after(plan, observer, plan.all_rounds)
    facts = mechanism.facts.parties[name]
    names = (*release_names(mechanism), *(asked.name for asked in plan.sums.values()))
    return {
        "rounds": plan.all_rounds,
        "releases": ", ".join(dict.fromkeys(names)),
        ROWS_TOLD: own.data.rows.get(name, "no"),
        "rows": facts.rows,
        "sample rate": facts.sample_rate,
        "steps of a round": facts.steps_per_round,
        "noise multiplier": plan.noise_multiplier,
        "noise to signal per step": plan.noise_to_signal,
        "protects against": observer if spent else "nobody",
        "epsilon (PLD)": spent.pld if spent else None,
        "epsilon (RDP)": spent.rdp if spent else None,
        "delta": plan.delta,
        **own_limits(own),
    }


def own_limits(own: Config) -> dict[str, Any]:
    """The limits that a party keeps whatever a plan asks for."""
    releases = own.party.caps.releases
    return {
        "most epsilon of a run": epsilon_cap(own),
        "most rounds": own.party.caps.rounds,
        "releases allowed": "all of these" if releases is None else ", ".join(releases),
        "lifetime epsilon": own.privacy.lifetime_epsilon,
        "lifetime epsilon spent": _spent(own),
        "trusts the aggregator": own.privacy.trust_aggregator,
    }


def _spent(own: Config) -> float | None:
    """What all runs so far cost this party's data; None without a ledger."""
    if not Path(own.privacy.ledger).exists():
        return None
    with Ledger(own.privacy.ledger, read_only=True) as ledger:
        return ledger.spent(own.data.dataset, own.lifetime_delta).epsilon.quoted
