"""What a party would give away: its dry run, from the plan it was sent or, before that, from its own config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.data.parties import load_federation
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan
from homo_dp.federation.sessions.build import build_mechanism, noise_source
from homo_dp.federation.sessions.crash_state import read_state
from homo_dp.federation.sessions.plan import (
    Plan,
    agree,
    check_price,
    epsilon_cap,
    facts_for_party,
    make_plan,
    release_names,
)
from homo_dp.federation.sessions.statement import epsilon_after, quoted_observer
from homo_dp.models.registry import build_model
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.party_process import party_budget, state_dir
from homo_dp.runs.processes import run_name


def show_party_plan(own: Config, screen: Screen) -> None:
    """Print what each round releases, its price, and the limits that this party keeps; charges and sends nothing."""
    name = own.party.name
    if name is None:
        raise ConfigError("party.name: is not given; use the name under which the aggregator lists this party")
    kept = read_state(state_dir(own, name) / run_name(own) / "plan.safetensors")
    federation = load_federation(own if kept is None else agree(own, kept[1]["plan"]), own.train.seed, only=name)
    encoding = federation.encoding.to_json()
    plan: Plan = make_plan(own, {}, encoding) if kept is None else kept[1]["plan"]
    source = "this party's own config (no plan has come yet)" if kept is None else "the aggregator's plan"
    screen.line(f"dry run from {source}: nothing is sent, nothing is charged")
    config = agree(own, plan)
    shape, public = federation.input_shape, config.privacy.public_tensors
    module = build_model(config.model, shape, federation.classes, config.train.seed, public_tensors=public).module
    parameters = sum(parameter.numel() for parameter in module.parameters())
    rows = config.data.rows.get(name, len(federation.parties[name].train))
    facts = facts_for_party(config, plan, name, rows, parameters)
    mechanism = build_mechanism(config, facts, noise_source(own))
    price = mechanism.plan(facts.parties[name])
    values = _values(own, config, name, mechanism, price)
    screen.table("what would be given away", ["", name], [[key, value] for key, value in values.items()])
    for text in (*price.releases, *price.notes):
        screen.line(f"each round: {text}" if text in price.releases else text)
    check_price(own, price)
    screen.summary({"party": name, "plan": values})


def _values(own: Config, config: Config, name: str, mechanism: Mechanism, plan: PartyPlan) -> dict[str, Any]:
    observer = quoted_observer({name: plan})
    spent = epsilon_after(plan, observer, plan.rounds)
    facts = mechanism.facts.parties[name]
    budget = party_budget(own, config)
    return {
        "rounds": plan.rounds,
        "releases of a round": ", ".join(release_names(mechanism)),
        "rows told to the aggregator": own.data.rows.get(name, "no"),
        "rows": facts.rows,
        "sample rate": facts.sample_rate,
        "steps of a round": facts.steps_per_round,
        "noise multiplier": plan.noise_multiplier,
        "noise to signal per step": plan.noise_to_signal,
        "protects against": observer if spent else "nobody",
        "epsilon (PLD)": spent.pld if spent else None,
        "epsilon (RDP)": spent.rdp if spent else None,
        "delta": plan.delta,
        "most epsilon of a run": epsilon_cap(own),
        "most rounds": own.party.caps.rounds,
        "releases allowed": ", ".join(own.party.caps.releases)
        if own.party.caps.releases is not None
        else "all of these",
        "lifetime epsilon": budget.lifetime_epsilon,
        "lifetime epsilon spent": _spent(own),
        "trusts the aggregator": own.privacy.trust_aggregator,
    }


def _spent(own: Config) -> float | None:
    """What all runs so far cost this party's data; None without a ledger."""
    if not Path(own.privacy.ledger).exists():
        return None
    with Ledger(own.privacy.ledger, read_only=True) as ledger:
        delta = own.privacy.lifetime_delta or own.privacy.delta
        return ledger.spent(own.data.dataset, delta).epsilon.quoted
