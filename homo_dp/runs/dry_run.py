"""The dry run: what a training would release, at what price. Rows that are not declared are
counted in the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homo_dp.config.capabilities import Observer
from homo_dp.config.schema import Config
from homo_dp.console.screen import Screen
from homo_dp.data.public_facts import declared_encoding, planned_rows, public_shape
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan
from homo_dp.federation.mechanisms.charges import Account
from homo_dp.federation.mechanisms.estimation import ROWS
from homo_dp.federation.sessions.build import (
    federation_facts,
    noise_source,
    run_budget,
    trained_model,
)
from homo_dp.federation.sessions.stages import (
    asked_by,
    estimates,
    stage_of,
    with_all_columns,
    with_fixed_sampler,
)
from homo_dp.federation.sessions.statement import (
    DRAFTED,
    epsilon_after,
    federation_epsilon,
    quoted_observer,
)
from homo_dp.models.registry import build_model
from homo_dp.privacy.accounting.strength import strength_text
from homo_dp.privacy.ledger import Charge, Ledger
from homo_dp.privacy.ledger.budget import refusal
from homo_dp.privacy.ledger.totals import Totals
from homo_dp.runs.auto import algorithm_line, settled, with_model
from homo_dp.runs.run_facts import run_line
from homo_dp.runs.simulation import USERS
from homo_dp.runs.user_simulation import (
    counted,
    counts_users,
    planned_population,
    planned_user_mechanism,
    shares_user_noise,
    simulates_users,
)

# noise of a step as large as the largest sum of clipped gradients: from here on little is learned
MUCH_NOISE = 1.0


@dataclass(frozen=True)
class Planned:
    """What a training would release, by party, and why it would be refused, if it would."""

    parties: Mapping[str, Mapping[str, Any]]
    config: Config
    releases: tuple[str, ...]
    auto: tuple[str, ...]  # what train.auto chose, and what to expect of it
    notes: tuple[str, ...]
    refused: str | None
    warnings: tuple[str, ...] = ()
    counted_in_files: bool = False


def plan_of(config: Config) -> Planned:
    """Each party's releases, sigma, epsilon, remaining budget and noise-to-signal; a private
    table is only counted.
    """
    job, found = settled_by_plan(_with_users(config))
    mechanism, counted_here = planned_mechanism(job)
    config = mechanism.config
    plans = {name: mechanism.run.planned(facts) for name, facts in mechanism.facts.parties.items()}
    left = _remaining(config)
    strongest = quoted_observer(plans)
    rounds = max(plan.all_rounds for plan in plans.values())
    spent = federation_epsilon(plans, strongest, rounds) if mechanism.capabilities.private else None
    notes = [strength_text(spent, private=mechanism.capabilities.private)]
    notes += [note for plan in plans.values() for note in plan.notes]
    if config.train.init_from:
        notes.append(continuation_note(config.train.init_from))
    return Planned(
        config=config,
        parties={name: _row(mechanism, name, plan, plans, left) for name, plan in plans.items()},
        releases=tuple(dict.fromkeys(text for plan in plans.values() for text in plan.releases)),
        auto=found,
        notes=tuple(dict.fromkeys(notes)),
        refused=_refusal(config, mechanism, plans),
        warnings=(*noise_warnings(plans), *_draft_warnings(config, mechanism)),
        counted_in_files=counted_here,
    )


def _draft_warnings(config: Config, mechanism: Mechanism) -> list[str]:
    if not mechanism.capabilities.private or config.data.bounds_source != "draft":
        return []
    return [f"data.bounds_source=draft: epsilon does not cover {DRAFTED}"]


def settled_by_plan(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The config with what ``train.auto`` fills in, and what it says about it; what is to be
    estimated is still called private.
    """
    config = with_all_columns(with_model(config))
    if simulates_users(config) or shares_user_noise(config):
        return config, (algorithm_line(config),)
    rows = _public_counts(config)[0]
    stage = stage_of(config, rows)
    found = settled(stage.config, declared_encoding(stage.config), stage.rows)
    if not stage.estimating:
        return found.config, found.notes
    return with_fixed_sampler(asked_by(config, found.config), rows), found.notes


def _public_counts(config: Config) -> tuple[dict[str, int | None], bool]:
    """Row counts by party, None where they are to be estimated; and whether rows were counted."""
    rows, counted_here = planned_rows(stage_of(config, {}).reading)
    if ROWS not in estimates(config):
        return dict(rows), counted_here
    return {name: config.data.rows.get(name) for name in rows}, False


def introduce(config: Config, screen: Screen, source: str | None) -> None:
    """Show the first line of a command that trains several times."""
    config = with_model(config)
    users = simulates_users(config)
    counts = {USERS: planned_population(config)} if users else _told_counts(config)
    screen.line(_first_line(config, counts, source))


def _told_counts(config: Config) -> dict[str, int]:
    """Row counts as a plan goes by them."""
    config = with_all_columns(config)
    rows = stage_of(config, _public_counts(config)[0]).rows
    return {name: count or 1 for name, count in rows.items()}


def _first_line(config: Config, counts: Mapping[str, int], source: str | None) -> str:
    """The first line by what a plan counts: the rows of each party, or the users."""
    if simulates_users(config):
        return run_line(config, {f"{count} users": None for count in counts.values()}, source)
    return run_line(config, counts, source)


def show_plan(config: Config, screen: Screen, source: str | None = None) -> None:
    """Print the plan of a training."""
    planned = plan_of(config)
    rows = list(planned.parties.values())
    counts = {name: row["rows"] for name, row in planned.parties.items()}
    first = _first_line(planned.config, counts, source)
    screen.line(first)
    if planned.counted_in_files:
        screen.line(
            f"dry run: {counted(config)} were counted in the files, nothing else of them was used; "
            "nothing is released or charged"
        )
    else:
        screen.line("dry run: no data was touched, nothing is charged")
    header = [counted(config) if name == "rows" else name for name in rows[0]]
    screen.table("plan", header, [list(row.values()) for row in rows])
    for text in planned.releases:
        screen.line(f"released by each party: {text}")
    for text in (*planned.auto, *planned.notes):
        screen.line(text)
    for text in planned.warnings:
        screen.warn(text)
    if planned.refused is not None:
        screen.line(f"the run would be refused: {planned.refused}")
    screen.summary(
        {
            "run": first,
            "parties": planned.parties,
            "released": planned.releases,
            "auto": planned.auto,
            "notes": planned.notes,
            "warnings": planned.warnings,
            "counted_in_files": planned.counted_in_files,
            "refused": planned.refused,
        }
    )


def noise_warnings(plans: Mapping[str, PartyPlan]) -> list[str]:
    """A warning where the noise of a step is larger than the largest sum of clipped gradients,
    for the worst party.
    """
    name, worst = max(
        ((name, plan.noise_to_signal) for name, plan in plans.items()), key=lambda each: each[1]
    )
    if worst < MUCH_NOISE:
        return []
    return [
        f"noise to signal per step is {worst:.3g} at {name}: noise is larger than all clipped "
        "gradients of a step together, so little will be learned; raise train.batch_size or "
        "privacy.target_epsilon, or use fewer rounds, a smaller model or more rows"
    ]


def planned_mechanism(config: Config) -> tuple[Mechanism, bool]:
    """The mechanism of a run, calibrated from declared, shipped or counted rows; and whether
    they were counted.
    """
    if not simulates_users(config) and not shares_user_noise(config):
        return _planned_by_records(config)
    shape, classes = public_shape(config)
    public = config.privacy.public_tensors
    model = build_model(config.model, shape, classes, config.train.seed, public_tensors=public)
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    return planned_user_mechanism(config, parameters), counts_users(config)


def _planned_by_records(job: Config) -> tuple[Mechanism, bool]:
    rows, counted_here = _public_counts(job)
    stage = stage_of(job, rows)
    config = stage.config
    model = trained_model(config, *public_shape(config))
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    known = {name: count or 1 for name, count in stage.rows.items()}
    facts = federation_facts(config, known, parameters, model.task.outputs)
    return stage.mechanism(stage.with_estimates(facts), noise_source(config)), counted_here


def continuation_note(path: str) -> str:
    """What somebody who continues a model should know about epsilon."""
    return (
        f"continuing {path}: where the data are the same, the epsilon of this run adds to the one "
        "in that model's privacy statement"
    )


def _row(
    mechanism: Mechanism,
    name: str,
    plan: PartyPlan,
    plans: dict[str, PartyPlan],
    remaining: float | None,
) -> dict[str, Any]:
    party = mechanism.facts.parties[name]
    spent = epsilon_after(plan, quoted_observer(plans), plan.all_rounds)
    return {
        "party": name,
        "rows": party.rows,
        "steps": party.steps_per_round * plan.trained_by(plan.all_rounds),
        "sample rate": party.sample_rate,
        "noise multiplier": plan.noise_multiplier,
        "sigma": plan.sigma,
        "epsilon (PLD)": spent.pld if spent else None,
        "epsilon (RDP)": spent.rdp if spent else None,
        "delta": plan.delta,
        "remaining budget": remaining,
        "noise to signal per step": plan.noise_to_signal,
    }


def _remaining(config: Config) -> float | None:
    """Epsilon that one further release about these data may have before this run; None without a
    lifetime budget.
    """
    budget = run_budget(config)
    if not Path(config.privacy.ledger).exists():
        return budget.lifetime_epsilon
    with Ledger(config.privacy.ledger, read_only=True) as ledger:
        return ledger.epsilon_left(config.data.dataset, budget)


def planned_charges(config: Config) -> list[tuple[Charge, int]]:
    """All that a run would charge, and how often each, before a row is touched."""
    config, _ = settled_by_plan(_with_users(config))
    mechanism, _ = planned_mechanism(config)
    plans = {name: mechanism.run.planned(facts) for name, facts in mechanism.facts.parties.items()}
    return _charges(config, mechanism, plans)


def _charges(
    config: Config, mechanism: Mechanism, plans: Mapping[str, PartyPlan]
) -> list[tuple[Charge, int]]:
    # where the aggregator is trusted with the noise, its ledger is charged for readers of the model
    observer: Observer = "aggregator" if mechanism.ledger_keeper == "party" else "model_reader"
    return [
        charge
        for name, plan in plans.items()
        if observer in plan.events
        for charge in Account("dry-run", config.data.dataset, name).all_planned(
            mechanism, plan, observer
        )
    ]


def _with_users(config: Config) -> Config:
    """The config with its delta by the number of users, where users are counted."""
    if simulates_users(config) or shares_user_noise(config):
        return config.with_delta([planned_population(config)])
    return config


def _refusal(config: Config, mechanism: Mechanism, plans: dict[str, PartyPlan]) -> str | None:
    """Why training would stop before its first round, None if the ledger has room for all of it."""
    if not mechanism.capabilities.private:
        return None
    planned = _charges(config, mechanism, plans)
    if not Path(config.privacy.ledger).exists():
        return refusal(Totals(), planned, run_budget(config))
    with Ledger(config.privacy.ledger, read_only=True) as ledger:
        return ledger.would_exceed(planned, run_budget(config))
