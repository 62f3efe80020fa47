"""What a party would give away: its dry run, from the plan it was sent or, before that, from its
own config.
"""

from __future__ import annotations

from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.data.images import is_image_file
from homo_dp.data.parties import Federation, load_federation, party_encoding
from homo_dp.data.readers import csv_form, header
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan
from homo_dp.federation.mechanisms.estimation import ROWS
from homo_dp.federation.sessions.build import noise_source
from homo_dp.federation.sessions.crash_state import read_state
from homo_dp.federation.sessions.plan import (
    PlanJson,
    agree,
    check_price,
    check_releases_cap,
    facts_for_party,
    make_plan,
)
from homo_dp.federation.sessions.plan_schema import PlanRefused
from homo_dp.federation.sessions.stages import (
    asked_by,
    estimates,
    stage_of,
    with_all_columns,
    with_fixed_sampler,
)
from homo_dp.models.registry import build_model
from homo_dp.runs.approval import ROWS_TOLD
from homo_dp.runs.auto import settled, with_model
from homo_dp.runs.plan_cost import given_away, own_limits
from homo_dp.runs.processes import check_bounds_source, run_name


def show_party_plan(own: Config, screen: Screen) -> None:
    """Print what each round releases, its price, and the limits that this party keeps; charges
    and sends nothing.
    """
    name = own.party.name
    if name is None:
        raise ConfigError(
            "party.name: is not given; use the name under which the aggregator lists this party"
        )
    check_bounds_source(own)
    # one that serves gets its runs' names later
    no_run = own.federation.run is None and own.party.serve is not None
    kept = None if no_run else read_state(own.party.folder / run_name(own) / "plan.safetensors")
    if kept is None and (left := _left_to_the_plan(own, name)):
        _show_limits(own, name, left, screen)
        return
    asked = with_all_columns(with_model(own)) if kept is None else agree(own, kept[1]["plan"])
    federation = load_federation(stage_of(asked, {}).reading, own.train.seed, only=name)
    notes: tuple[str, ...] = ()
    if kept is None:
        plan, notes = _plan_by_own_config(asked, federation, name)
    else:
        plan = kept[1]["plan"]
    source = (
        "this party's own config (no plan has come yet)"
        if kept is None
        else "the aggregator's plan"
    )
    screen.line(f"dry run from {source}: nothing is sent, nothing is charged")
    target = (plan["privacy"]["target_epsilon"] or 1.0, plan["privacy"]["delta"])
    stage = stage_of(agree(own, plan), plan["rows"], target=target)
    config, plan = stage.config, plan | {"rows": dict(stage.rows)}
    encoding, public = party_encoding(config, name), config.privacy.public_tensors
    model = build_model(
        config.model,
        encoding.input_shape,
        encoding.classes,
        config.train.seed,
        public_tensors=public,
    )
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    rows = config.data.rows.get(name, len(federation.parties[name].train))
    facts = facts_for_party(config, plan, name, rows, parameters, model.task.outputs)
    mechanism = stage.mechanism(stage.with_estimates(facts), noise_source(own))
    price = mechanism.run.planned(facts.parties[name])
    values = given_away(own, config, name, mechanism, price)
    screen.table(
        "what would be given away", ["", name], [[key, value] for key, value in values.items()]
    )
    for text in (*price.releases, *notes, *price.notes):
        screen.line(f"would be released: {text}" if text in price.releases else text)
    _check_limits(own, mechanism, price, screen, hypothetical=kept is None)
    screen.summary({"party": name, "plan": values})


def _check_limits(
    own: Config, mechanism: Mechanism, price: PartyPlan, screen: Screen, *, hypothetical: bool
) -> None:
    """Refuse what the party itself would refuse; of a plan that was made up for the dry run, say so
    only.
    """
    try:
        check_releases_cap(own, mechanism, price)
    except PlanRefused as error:
        if not hypothetical:
            raise
        screen.warn(f"this party would refuse such a plan: {error}")
    check_price(own, price)


def _left_to_the_plan(own: Config, name: str) -> list[str]:
    """The keys that this config leaves out, and without which its table cannot be priced."""
    data = own.data
    path = data.files.get(name) or next(iter(data.files.values()), None)
    if path is None or is_image_file(path):
        return []
    left = []
    if "label" not in data.model_fields_set and data.label not in header(path, csv_form(data)):
        left.append("data.label")
    if not (data.columns or data.columns_from or data.default_bounds):
        left.append("data.columns")
    if left and data.classes is None and data.target_bounds is None:
        left.append("data.classes")
    return left


def _show_limits(own: Config, name: str, left: list[str], screen: Screen) -> None:
    """Before the plan has come: what this party allows, and what the plan still has to bring."""
    screen.line(
        "dry run from this party's own config (no plan has come yet): nothing is sent, nothing is "
        "charged"
    )
    limits = {ROWS_TOLD: own.data.rows.get(name, "no"), **own_limits(own)}
    screen.table("limits of this party", ["", name], [[key, text] for key, text in limits.items()])
    screen.line(
        f"left to the plan: {', '.join(left)}; releases and their price are shown once it has "
        "come, or with the aggregator's config first: --config AGGREGATOR.yaml --config OWN.yaml"
    )
    screen.summary({"party": name, "limits": limits, "left_to_the_plan": left})


def _plan_by_own_config(
    own: Config, federation: Federation, name: str
) -> tuple[PlanJson, tuple[str, ...]]:
    """The plan that the aggregator would send if this config were its own and all parties were as
    large as this one.

    ``train.auto`` has its say, as it has at the aggregator.
    """
    hidden = ROWS in estimates(own)
    mine = own.data.rows.get(name, None if hidden else len(federation.parties[name].train))
    rows = {party.name: own.data.rows.get(party.name) for party in own.federation.parties} | {
        name: mine
    }
    stage = stage_of(own, rows)
    encoding = party_encoding(stage.config, name) if stage.estimating else federation.encoding
    found = settled(stage.config, encoding, stage.rows)
    job = found.config
    if stage.estimating:
        job = with_fixed_sampler(asked_by(own, job), rows)
    encoding = party_encoding(stage_of(job, rows).config, name)  # which may have got curves
    return make_plan(job, rows, encoding.to_json()), found.notes
