"""The privacy statement as far as an aggregator can make it: an upper bound from the plan.

What a party really spent is in its own indicators and ledger; it may have asked for less than the
plan allows.
"""

from __future__ import annotations

from typing import Any

from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan
from homo_dp.federation.sessions.aggregator import Aggregator
from homo_dp.federation.sessions.plan import PlanJson
from homo_dp.federation.sessions.statement import ONE_PARTY_NOTE, privacy_statement
from homo_dp.privacy.accounting.strength import epsilon_text, strength

KEPT = "kept by the parties"
BASIS = "an upper bound from the plan; each party's own indicators and ledger hold what it spent"


def promised_plans(
    config: Config, aggregator: Aggregator, plan: PlanJson
) -> dict[str, PartyPlan] | None:
    """What each party planned, as far as the aggregator can know; None where it depends on rows
    that none declared.
    """
    mechanism = aggregator.mechanism
    if not (config.private and mechanism.capabilities.private) or _hidden(mechanism, plan):
        return None
    return {name: mechanism.run.planned(facts) for name, facts in mechanism.facts.parties.items()}


def promised_statement(
    config: Config, aggregator: Aggregator, plan: PlanJson, rounds_done: int
) -> dict[str, Any]:
    """The ``privacy`` part of the aggregator's indicators, after ``rounds_done`` rounds."""
    mechanism, rows = aggregator.mechanism, plan["rows"]
    private = config.private and mechanism.capabilities.private
    if _hidden(mechanism, plan):
        return _without_rows(config, aggregator, plan, private)
    plans = {name: mechanism.run.planned(facts) for name, facts in mechanism.facts.parties.items()}
    statement = privacy_statement(
        mechanism,
        plans,
        rounds_done,
        dict.fromkeys(plans, aggregator.applied_sigma),
        private=private,
        secure_mode=config.privacy.secure_mode,
        declared_rows=all(count is not None for count in rows.values()),
    )
    for name, count in rows.items():
        if count is None:
            statement["parties"][name].update(rows=None, steps=None, sample_rate=None)
            statement["rows"] = KEPT
    return {**statement, "basis": BASIS}


def _hidden(mechanism: Mechanism, plan: PlanJson) -> bool:
    """Whether epsilon depends on rows that a party keeps to itself."""
    counted = mechanism.capabilities.unit == "record" and mechanism.capabilities.price_needs_rows
    return counted and any(count is None for count in plan["rows"].values())


def _without_rows(
    config: Config, aggregator: Aggregator, plan: PlanJson, private: bool
) -> dict[str, Any]:
    """Parties that keep their row counts to themselves promise the target and solve their own
    noise for it.
    """
    target, delta = config.privacy.target_epsilon, config.delta
    if not private:
        sentence = "NOT PRIVATE: this run gives no differential-privacy guarantee."
    elif target is None:
        sentence = (
            "Each party knows its own epsilon; it depends on row counts that were not declared."
        )
    else:
        sentence = (
            f"Each party promised that one {aggregator.mechanism.capabilities.unit} changes what the aggregator "
            f"and everybody who sees the model can see by at most epsilon {epsilon_text(target)} at delta "
            f"{delta:g}."
        )
    bound = target if private else None
    relation = aggregator.mechanism.capabilities.relation
    nothing = dict.fromkeys(
        ("epsilon_rdp", "noise_multiplier", "applied_sigma", "steps", "sample_rate")
    )
    return {
        "private": private,
        "statement": sentence,
        "mechanism": aggregator.mechanism.name,
        "unit": aggregator.mechanism.capabilities.unit,
        **({"neighbouring_relation": relation} if relation is not None else {}),
        "epsilon": bound,
        "delta": delta,
        # without a target only the parties know their epsilon
        "strength": None if private and bound is None else strength(bound, private=private),
        "secure_mode": config.privacy.secure_mode,
        "observers": {"aggregator": {"epsilon": bound}, "model_reader": {"epsilon": bound}},
        "quoted_observer": "aggregator",  # who keeps its row count adds its own noise
        "parties": {
            name: {"epsilon_pld": bound, "delta": delta, "rows": rows, **nothing}
            for name, rows in plan["rows"].items()
        },
        "rows": KEPT,
        "note": ONE_PARTY_NOTE,
        "basis": BASIS,
    }
