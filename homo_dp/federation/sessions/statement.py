"""The privacy statement of a run: what each observer can learn, per party, by both accountants."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from homo_dp.federation.mechanisms.base import Mechanism, Observer, PartyFacts, PartyPlan
from homo_dp.privacy.accounting.accountants import Epsilon, epsilon, epsilon_curve
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.accounting.strength import (
    epsilon_text,
    nothing_left,
    strength,
    strength_text,
)
from homo_dp.privacy.noise.grid import neglected

DRAFTED = "bounds, categories and classes, which were read from the rows"
OBSERVERS: tuple[Observer, ...] = ("aggregator", "model_reader")
ONE_PARTY_NOTE = (
    "The largest epsilon over the parties is the federation's epsilon only if every person is in "
    "one party; a person in several parties adds those parties' epsilons."
)


def epsilon_after(plan: PartyPlan, observer: Observer, rounds: int) -> Epsilon | None:
    """Epsilon towards an observer after some rounds, by PLD and RDP; None where there is no
    guarantee.
    """
    event = plan.events.get(observer)
    if event is None:
        return None
    beside = plan.beside(rounds)
    done, planned = plan.trained_by(rounds), plan.trained_by(plan.all_rounds)
    if not done:
        return Epsilon(0.0, 0.0) if beside is None else epsilon(beside, plan.delta)
    if beside is not None:  # changes with few rounds, so its curve is found few times
        return epsilon_curve(event, planned, plan.delta, beside)[done - 1]
    return _curve(event, planned, plan.delta)[done - 1]


def federation_epsilon(
    plans: Mapping[str, PartyPlan], observer: Observer, rounds: int
) -> float | None:
    """The largest quoted epsilon over the parties; None as soon as one party has no guarantee."""
    found = [epsilon_after(plan, observer, rounds) for plan in plans.values()]
    values = [value.quoted for value in found if value is not None]
    return max(values) if values and len(values) == len(found) else None


def quoted_observer(plans: Mapping[str, PartyPlan]) -> Observer:
    """The strongest observer that the run protects against: the aggregator, unless it is trusted
    or unprotected.
    """
    protected = all(
        "aggregator" in plan.events and not plan.trusts_aggregator for plan in plans.values()
    )
    return "aggregator" if protected else "model_reader"


def privacy_statement(
    mechanism: Mechanism,
    plans: Mapping[str, PartyPlan],
    rounds_done: int,
    applied_sigma: Mapping[str, float | None],
    private: bool,
    secure_mode: bool,
    declared_rows: bool,
) -> dict[str, Any]:
    """The ``privacy`` part of the indicators, after ``rounds_done`` rounds."""
    observer = quoted_observer(plans)
    first = next(iter(plans.values()))
    observers: dict[Observer, dict[str, float | None]] = {
        name: {"epsilon": federation_epsilon(plans, name, rounds_done) if private else None}
        for name in OBSERVERS
    }
    return {
        "private": private,
        "statement": _sentence(mechanism, plans, observer, rounds_done, private),
        **({"not_covered": [DRAFTED]} if private and _drafted(mechanism) else {}),
        "mechanism": mechanism.name,
        "unit": mechanism.capabilities.unit,
        "neighbouring_relation": first.relation,
        "epsilon": observers[observer]["epsilon"],
        "delta": first.delta,
        "strength": strength(observers[observer]["epsilon"], private=private),
        **_neglected(mechanism, plans, rounds_done, observers[observer]["epsilon"], first.delta),
        # without noise there is none to be secure
        "secure_mode": secure_mode and mechanism.capabilities.private,
        "observers": observers,
        "quoted_observer": observer,
        "parties": {
            name: _party(
                plan,
                mechanism.facts.parties[name],
                observer,
                rounds_done,
                applied_sigma.get(name),
                private,
            )
            for name, plan in plans.items()
        },
        "rows": (
            "declared in the config"
            if declared_rows
            else (
                "counted, and public with this run: sample rate, steps and noise disclose them; "
                "declare data.rows"
            )
        ),
        "releases": list(dict.fromkeys(text for plan in plans.values() for text in plan.releases)),
        "note": ONE_PARTY_NOTE,
        "notes": list(dict.fromkeys(note for plan in plans.values() for note in plan.notes)),
        **mechanism.figures(first, {name: entry["epsilon"] for name, entry in observers.items()}),
    }


def statement_lines(statement: Mapping[str, Any]) -> list[str]:
    """What a screen shows of a statement: its sentence, and how strong the guarantee is.

    The strength is left out where only the parties know their epsilon.
    """
    lines = [str(statement["statement"])]
    if statement["strength"] is not None:
        lines.append(strength_text(statement["epsilon"], private=statement["private"]))
    if (nothing := nothing_left(statement.get("delta_with_neglected"))) is not None:
        lines.append(f"warning: {nothing}")
    return lines


def _neglected(
    mechanism: Mechanism,
    plans: Mapping[str, PartyPlan],
    rounds_done: int,
    epsilon: float | None,
    delta: float,
) -> dict[str, float | None]:
    """What epsilon and delta grow by because the noise is not ideal (docs/guarantees.md): all
    that the run released.
    """
    if epsilon is None:
        return {"neglected_epsilon": None, "neglected_delta": None, "delta_with_neglected": None}
    found = neglected(
        max(_draws(mechanism, name, plan, rounds_done) for name, plan in plans.items()),
        epsilon,
        delta,
    )
    return {
        "neglected_epsilon": found.epsilon,
        "neglected_delta": found.delta,
        "delta_with_neglected": delta + found.delta,
    }


def _draws(mechanism: Mechanism, name: str, plan: PartyPlan, rounds_done: int) -> int:
    """How many normals stand behind what was released of a party, at most; a clip bit is one
    number more.
    """
    facts = mechanism.facts
    trained = (
        facts.parties[name].steps_per_round * plan.trained_by(rounds_done) * (facts.parameters + 1)
    )
    others = sum(asked.dimension for number, asked in plan.sums.items() if number <= rounds_done)
    return (trained + others) * mechanism.noises_in_a_number


def _party(
    plan: PartyPlan,
    facts: PartyFacts,
    observer: Observer,
    rounds_done: int,
    sigma: float | None,
    private: bool,
) -> dict[str, Any]:
    spent = epsilon_after(plan, observer, rounds_done) if private else None
    return {
        "epsilon_pld": spent.pld if spent else None,
        "epsilon_rdp": spent.rdp if spent else None,
        "delta": plan.delta,
        "noise_multiplier": plan.noise_multiplier,
        "applied_sigma": sigma,
        "steps": facts.steps_per_round * plan.trained_by(rounds_done),
        "sample_rate": facts.sample_rate,
        "rows": facts.rows,
    }


def _sentence(
    mechanism: Mechanism,
    plans: Mapping[str, PartyPlan],
    observer: Observer,
    rounds: int,
    private: bool,
) -> str:
    if not private:
        return "NOT PRIVATE: this run gives no differential-privacy guarantee."
    first = next(iter(plans.values()))
    relation = {"add_or_remove_one": "adding or removing", "replace_one": "replacing"}[
        first.relation
    ]
    epsilon = federation_epsilon(plans, observer, rounds)
    who = {
        "aggregator": "the aggregator and everybody who sees the model",
        "model_reader": "readers of the model",
    }
    figure = (
        "no finite epsilon"
        if epsilon is None
        else f"epsilon {epsilon_text(epsilon)} at delta {first.delta:g}"
    )
    return (
        f"{relation.capitalize()} one {mechanism.capabilities.unit} changes what {who[observer]} can see by at "
        f"most {figure}." + (f" Epsilon does not cover {DRAFTED}." if _drafted(mechanism) else "")
    )


def _drafted(mechanism: Mechanism) -> bool:
    return mechanism.config.data.bounds_source == "draft"


def _curve(event: DpEvent, rounds: int, delta: float) -> Sequence[Epsilon]:
    """The epsilons of all rounds, found at once by parties and rounds that ask again."""
    try:
        return _known_curve(event, rounds, delta)
    except TypeError:  # an event with a list inside cannot be looked up
        return epsilon_curve(event, rounds, delta)


@functools.lru_cache(maxsize=4096)
def _known_curve(event: DpEvent, rounds: int, delta: float) -> Sequence[Epsilon]:
    return epsilon_curve(event, rounds, delta)
