"""The job as the aggregator describes it, and what a party makes of it: the plan never overrides
the party's own part.

From the plan: model, training, mechanism and its settings, public column facts. The party's own,
always: its table, ledger, budgets, delta, caps, trust, noise source, and which code of its own may
run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from homo_dp.config.base import is_import_path
from homo_dp.config.layers import put
from homo_dp.config.load import config_from
from homo_dp.config.mechanisms import BUILT_IN, capabilities_of
from homo_dp.config.mechanisms import SECTIONS as MECHANISM_SECTIONS
from homo_dp.config.metrics import MetricsConfig
from homo_dp.config.privacy import EVERY_KEY, SharedNoiseKeys, every_key, masks_problem
from homo_dp.config.schema import Config, DataConfig
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.federation.mechanisms.base import (
    FederationFacts,
    Levels,
    Mechanism,
    PartyFacts,
    PartyPlan,
)
from homo_dp.federation.protocol.round_sums import RoundSum
from homo_dp.federation.sessions.build import (
    capabilities,
    common_facts,
    mechanism_class,
    party_facts,
    warn_of_full_batches,
)
from homo_dp.federation.sessions.plan_schema import (
    DATA_KEYS,
    LATER_DATA_KEYS,
    LATER_KEYS,
    LATER_SECTIONS,
    OWN_TRAIN_KEYS,
    PRIVACY_KEYS,
    VERSION,
    check_sizes,
    read_plan,
)
from homo_dp.federation.sessions.plan_schema import PlanJson as PlanJson
from homo_dp.federation.sessions.plan_schema import PlanRefused as PlanRefused
from homo_dp.federation.sessions.statement import OBSERVERS, epsilon_after
from homo_dp.privacy.sampling.samplers import REPLACE_ONE

_SLACK = 1e-6  # relative; a calibrated epsilon may meet its cap
# of all parties in all rounds, where a mechanism writes down who has which
_MOST_TURNS = 10_000_000


def make_plan(
    config: Config, rows: Mapping[str, int | None], encoding: Mapping[str, Any]
) -> PlanJson:
    """The aggregator's description of the job; ``rows`` are the declared counts of the parties,
    null if undeclared.
    """
    train, data = (part.model_dump(mode="json") for part in (config.train, config.data))
    privacy = every_key(config.privacy) | {"delta": config.delta}
    if data["counts"] != "private" or config.privacy.asks_raw_values:
        data["counts"] = None  # how a party's count becomes known is its own, if none is estimated
    return {
        "version": VERSION,
        "model": config.model.model_dump(mode="json"),
        "train": {name: value for name, value in train.items() if name not in OWN_TRAIN_KEYS},
        "privacy": {
            name: privacy[name] for name in PRIVACY_KEYS if name not in LATER_KEYS or _asks(privacy)
        },
        **{name: getattr(config, name).model_dump(mode="json") for name in _sections(config)},
        "data": {
            name: data[name]
            for name in DATA_KEYS
            if name not in LATER_DATA_KEYS or data[name] not in (None, False, "draft")
        },
        "order": list(config.data.columns),
        "encoding": encoding_digest(encoding),
        "rows": dict(sorted(rows.items())),  # in one order everywhere: a mechanism may go by it
    }


def _sections(config: Config) -> tuple[str, ...]:
    """Sections in a plan beside model, train and data: one that came later only if it is asked
    for.
    """
    asked = dict(
        zip(
            LATER_SECTIONS,
            (config.privacy.asks_raw_values, config.metrics.release == "noised"),
            strict=True,
        )
    )
    return tuple(name for name in (*MECHANISM_SECTIONS, "metrics") if asked.get(name, True))


def _asks(privacy: Mapping[str, Any]) -> bool:
    return bool(privacy["secure_aggregation"])


def change(kept: PlanJson, plan: PlanJson) -> str | None:
    """What a plan that came later under the same run changes, also if it is too large to be
    read; None if nothing.
    """
    try:
        check_sizes(plan)
    except PlanRefused as refusal:
        return str(refusal)
    return difference(kept, plan)


def difference(old: PlanJson, new: PlanJson) -> str | None:
    """The first key in which two plans differ, None if they are the same job.

    Declared rows aside; and the order of columns, which the digest of the encoding covers.

    >>> difference({"train": {"rounds": 2}}, {"train": {"rounds": 3}})
    'train.rounds=2 became 3'
    """
    for name in sorted((old.keys() | new.keys()) - {"rows", "order"}):
        one, other = old.get(name), new.get(name)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            key = next(
                key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)
            )
            return f"{name}.{key}={one.get(key)} became {other.get(key)}"
        return f"{name} changed"
    return None


def encoding_digest(encoding: Mapping[str, Any]) -> str:
    """What must be the same at all parties: columns, bounds, levels, label and shape; not the
    name of the id column.
    """
    shared = {name: value for name, value in encoding.items() if name != "id"}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


def agree(own: Config, plan: PlanJson) -> Config:
    """The config that a party runs with, or PlanRefused; touches no data.

    Guarantees:
        - epsilon is calibrated to the smaller of the plan's target and the party's own, delta to
          the smaller delta;
        - no module is imported that the party's own config does not name, and no mechanism without
          privacy is taken that it does not ask for.
    """
    plan = read_plan(plan)
    try:
        _check_listed(own, plan)
        _check_code(own, plan)
        _check_protection(own, plan)
        _check_caps(own, plan)
        _check_shared_noise(own, plan)
        config = config_from(_merged(own, plan))
        _check_names(own, config)
        return config
    except ConfigError as error:
        raise PlanRefused("plan", f"the plan cannot be used: {error}") from error


def epsilon_cap(own: Config) -> float | None:
    """The most epsilon that a party spends in a run: its cap, else the target of its own config."""
    return (
        own.party.caps.epsilon if own.party.caps.epsilon is not None else own.privacy.target_epsilon
    )


def release_names(
    mechanism: Mechanism | type[Mechanism], asked: RoundSum | None = None
) -> tuple[str, ...]:
    """What a party releases in a round: the update, and the numbers that a mechanism sends with
    it; or another sum.
    """
    return (
        ("update", *mechanism.message_fields.get("update", {})) if asked is None else (asked.name,)
    )


def check_releases_cap(own: Config, mechanism: Mechanism, plan: PartyPlan) -> None:
    """Refuse rounds that ask for a sum that the party's caps do not name, or of more numbers than a
    model may have.

    Guarantees:
        - the answer is a function of the plan and of the party's config; that memory runs out
          depends on rows.
    """
    caps, most = own.party.caps, own.transport.max_message_bytes // 8
    if caps.parameters is not None:
        most = min(most, caps.parameters)
    large = next((asked for asked in plan.sums.values() if asked.dimension > most), None)
    if large is not None:
        raise PlanRefused(
            "releases_cap",
            f"party.caps.parameters={caps.parameters} "
            f"transport.max_message_bytes={own.transport.max_message_bytes}: the sum {large.name} "
            f"has {large.dimension} numbers; ask about fewer columns, classes or bins",
        )
    if caps.releases is not None and (
        surplus := {asked.name for asked in plan.sums.values()} - set(caps.releases)
    ):
        raise PlanRefused(
            "releases_cap",
            f"party.caps.releases={list(caps.releases)}: the plan of {mechanism.name} also asks "
            f"for {', '.join(sorted(surplus))}",
        )


def check_price(own: Config, plan: PartyPlan) -> None:
    """Refuse a plan that costs more than the party's cap, towards any observer that it does not
    trust.
    """
    cap = epsilon_cap(own)
    if cap is None:
        return
    for observer in OBSERVERS[1:] if plan.trusts_aggregator else OBSERVERS:
        spent = epsilon_after(plan, observer, plan.all_rounds)
        if spent is not None and spent.quoted > cap * (1 + _SLACK):
            raise PlanRefused(
                "epsilon_cap",
                f"party.caps.epsilon={cap:g}: the plan would cost epsilon {spent.quoted:.4g} at "
                f"delta {plan.delta:g}; raise the cap, or ask the aggregator for more noise or "
                "fewer rounds",
            )


def check_encoding(plan: PlanJson, encoding: Mapping[str, Any]) -> None:
    """Refuse to train on columns that mean something else here than at the aggregator."""
    if encoding_digest(encoding) != plan["encoding"]:
        raise PlanRefused(
            "columns",
            "data.columns: columns, bounds, levels, curves, classes or label differ from the "
            "aggregator's; leave them out here to take the aggregator's, or agree on one "
            "description",
        )


def facts_for_party(
    config: Config, plan: PlanJson, name: str, rows: int, parameters: int, outputs: int = 1
) -> FederationFacts:
    """The facts as a party knows them: its own rows, and those that others declared (its own count
    where they did not).

    The smallest count is then never above the party's own, which is what noise may depend on. Under
    masks the counts are those of the plan, its own too: noise is shared, so all have to take theirs
    by the same figures.
    """
    counts = {other: rows if count is None else count for other, count in plan["rows"].items()}
    if not plan["privacy"].get("secure_aggregation"):
        counts[name] = rows
    parties = {other: party_facts(config, other, count) for other, count in sorted(counts.items())}
    warn_of_full_batches(config, {name: parties[name]})
    return common_facts(
        config, FederationFacts(parties, config.train.rounds, parameters, outputs=outputs)
    )


def facts_for_aggregator(
    config: Config, plan: PlanJson, parameters: int, outputs: int = 1, levels: Levels | None = None
) -> FederationFacts:
    """The facts as the aggregator knows them; an undeclared count stands as one row and is used
    for nothing.
    """
    train, needs_rows = config.train, needs_declared_rows(config)
    parties = {}
    for name, rows in sorted(plan["rows"].items()):
        if rows is not None:
            parties[name] = party_facts(config, name, rows)
        elif needs_rows is not None:
            raise DataError(
                f"{needs_rows}: the rows of {name} are not declared; set data.rows.{name} there or "
                "here"
            )
        else:
            parties[name] = PartyFacts(
                name, 1, train.rounds, train.local_steps or 1, train.sample_rate or 1.0
            )
    return common_facts(
        config,
        FederationFacts(parties, train.rounds, parameters, outputs=outputs, levels=levels or {}),
    )


def needs_declared_rows(config: Config, mechanism: str | None = None) -> str | None:
    """The setting that cannot work while a party keeps its row count to itself; None if there is
    none. ``mechanism`` is the one that rules will choose, where they do.
    """
    if config.train.weighting == "rows":
        return "train.weighting=rows"
    found = capabilities(config) if mechanism is None else mechanism_class(mechanism).capabilities
    return found.rows_are_needed(config)


def begun_without(config: Config, missing: Collection[str]) -> Config:
    """The config of a run whose plan does not list these parties: each counts as one of
    ``privacy.tolerated_dropouts``, so the sum has as many sharers of its noise as before.
    """
    privacy = config.privacy
    if not missing or not isinstance(privacy, SharedNoiseKeys) or not privacy.secure_aggregation:
        return config
    fewer = privacy.tolerated_dropouts - len(missing)
    parties = len(config.federation.parties)
    if problem := masks_problem(parties - len(missing), fewer, privacy.tolerated_colluders):
        raise ConfigError(problem)
    tree = config.model_dump(mode="json", exclude_unset=True)
    put(tree, ("privacy", "tolerated_dropouts"), fewer)
    return config_from(tree)


def _check_listed(own: Config, plan: PlanJson) -> None:
    name = own.party.name
    if name is not None and name not in plan["rows"]:
        raise PlanRefused(
            "roster",
            f"the plan does not list {name}: the run began without this party, whose rows the "
            f"aggregator does not know; be there from the start, or agree on data.rows.{name} in "
            "its config",
        )


def _check_code(own: Config, plan: PlanJson) -> None:
    mechanism, factory = plan["privacy"]["mechanism"], plan["model"]["factory"]
    if mechanism not in BUILT_IN and mechanism != own.privacy.mechanism:
        raise PlanRefused(
            "mechanism",
            f"privacy.mechanism={mechanism}: is code that this party's own config does not name; "
            "refused",
        )
    if factory is not None and factory != own.model.factory:
        raise PlanRefused(
            "factory", f"model.factory={factory}: is code that this party's config does not name"
        )


def _check_protection(own: Config, plan: PlanJson) -> None:
    mechanism = plan["privacy"]["mechanism"]
    found = mechanism_class(mechanism).capabilities
    if not found.private and own.privacy.mechanism != mechanism:
        raise PlanRefused(
            "not_private",
            f"privacy.mechanism={mechanism}: the aggregator asks for updates without noise; this "
            f"party sends them only if its own config says privacy.mechanism: {mechanism}",
        )
    tree = _merged(own, plan)
    tree["privacy"]["trust_aggregator"] = True  # a config that asks for trust is invalid without it
    if found.leaves_noise_to_aggregator(config_from(tree)) and not own.privacy.trust_aggregator:
        raise PlanRefused(
            "trust",
            "privacy.trust_aggregator=false: the plan leaves the noise to the aggregator; set it "
            "to true in this party's own config if you trust it",
        )


def _check_caps(own: Config, plan: PlanJson) -> None:
    caps, rounds = own.party.caps, plan["train"]["rounds"]
    if (
        epsilon_cap(own) is None
        and own.private
        and mechanism_class(plan["privacy"]["mechanism"]).capabilities.private
    ):
        raise PlanRefused(
            "epsilon_cap",
            "party.caps.epsilon=null: this party's config has no privacy.target_epsilon either, so "
            "nothing bounds what one run may cost; give a cap",
        )
    if caps.rounds is not None and rounds > caps.rounds:
        raise PlanRefused(
            "rounds_cap", f"party.caps.rounds={caps.rounds}: the plan has {rounds} rounds; refused"
        )
    if rounds * max(1, len(plan["rows"])) > _MOST_TURNS:
        raise PlanRefused(
            "rounds_cap", f"the plan has {rounds} rounds of {len(plan['rows'])} parties; refused"
        )
    _check_columns(own, plan)
    names = release_names(mechanism_class(plan["privacy"]["mechanism"]))
    if caps.releases is not None and (
        surplus := [name for name in names if name not in caps.releases]
    ):
        raise PlanRefused(
            "releases_cap",
            f"party.caps.releases={list(caps.releases)}: the plan also releases "
            f"{', '.join(surplus)}",
        )


def _check_names(own: Config, config: Config) -> None:
    """Refuse to estimate names of categories where the party requires masks, whoever asked."""
    named = config.data.private_levels
    required = own.party.caps.secure_aggregation == "required"
    if required and named and capabilities_of(config.privacy.mechanism).trains:
        raise PlanRefused(
            "secure_aggregation",
            f"party.caps.secure_aggregation=required: data.columns.{named[0]}.levels=private asks "
            "for a list of names, which no masks can add up; refused",
        )


def _check_shared_noise(own: Config, plan: PlanJson) -> None:
    """Noise that is shared holds only as agreed by all: a party that wants more of it cannot add
    it alone.
    """
    asked = plan["privacy"]
    if not asked.get("secure_aggregation"):
        if own.party.caps.secure_aggregation == "required":
            raise PlanRefused(
                "secure_aggregation",
                "party.caps.secure_aggregation=required: the plan asks for updates in the clear; "
                "refused",
            )
        return
    name = own.party.name
    told, declared = plan["rows"].get(name), own.data.rows.get(str(name))
    if declared is not None and told is not None and told != declared:
        raise PlanRefused(
            "rows",
            f"data.rows.{name}={declared}: the plan counts {told} rows of this party, and noise "
            "that is shared rests on the counts of the plan; agree on one figure",
        )
    members = {member.name: member.public_key for member in own.federation.parties}
    alone = own.party.name is None  # all parties in one process, which makes their keys
    missing = len(members) - len(plan["rows"])
    # who is not in the plan counts as a dropout, of so many as a plan of all parties can tolerate
    tolerated = asked["tolerated_dropouts"] + missing
    listed = (
        set(members) >= set(plan["rows"])
        and own.party.name in members
        and None not in members.values()
        and (
            not missing
            or masks_problem(len(members), tolerated, asked["tolerated_colluders"]) is None
        )
    )
    if not alone and not listed:
        raise PlanRefused(
            "roster",
            "federation.parties: must list exactly the parties of the plan, and as many that are "
            "not there as masked sums can tolerate, this one too, each with its public_key, in "
            f"this party's own config; it has {', '.join(members) or 'none'}, the plan "
            f"{', '.join(plan['rows'])}",
        )
    least = every_key(own.privacy)["tolerated_colluders"]
    if asked["tolerated_colluders"] < least:
        raise PlanRefused(
            "roster",
            f"privacy.tolerated_colluders={least}: the plan assumes "
            f"{asked['tolerated_colluders']}; refused",
        )
    cap, target = epsilon_cap(own), asked["target_epsilon"]
    if (cap is not None and target is not None and target > cap) or asked["delta"] > own.delta:
        raise PlanRefused(
            "epsilon_cap",
            f"party.caps.epsilon={cap} privacy.delta={own.delta:g}: the plan asks for "
            f"{target} at {asked['delta']:g}, and noise that is shared cannot be raised by one "
            "party; agree on one target",
        )


def _check_columns(own: Config, plan: PlanJson) -> None:
    """Columns as the plan describes them, if they are taken from it: a level or class is a
    number of each row.
    """
    cap, data = own.party.caps.columns, plan["data"]
    described = data["columns"].values()
    width = sum(
        len(block["levels"]) if isinstance(block["levels"], list) else 1 for block in described
    ) + len(data["use"] or ())
    width = max(width, len(data["classes"] or ()))
    if cap is not None and width > cap:
        raise PlanRefused(
            "columns_cap",
            f"party.caps.columns={cap}: the plan's columns, levels or classes are {width}; refused",
        )


def check_work(own: Config, agreed: Config, name: str) -> None:
    """Refuse more work than the party's caps allow; asks for no row count but a declared one.

    Guarantees:
        - the answer is a function of the plan and of the party's config.
    """
    caps, train, rows = own.party.caps, agreed.train, own.data.rows.get(name)
    epochs = train.rounds * (train.local_epochs or 0)
    if caps.epochs is not None and epochs > caps.epochs:
        raise PlanRefused(
            "steps_cap", f"party.caps.epochs={caps.epochs:g}: the plan asks for {epochs:g} passes"
        )
    if train.local_steps is None and train.sample_rate is None and rows is None:
        return  # the steps follow from the count, which the epochs bound
    facts = FederationFacts(
        {name: party_facts(agreed, name, rows or 1)}, train.rounds, parameters=1
    )
    steps = common_facts(agreed, facts).parties[name].steps_per_round
    by_count = train.local_steps is None and train.sample_rate is None
    why = (
        f", by batches of {train.batch_size} of the data.rows.{name}={rows} that are declared here"
        if by_count
        else ""
    )
    for key, cap, asked in (
        ("steps", caps.steps, steps),
        ("total_steps", caps.total_steps, steps * train.rounds),
    ):
        if cap is not None and asked > cap:
            raise PlanRefused(
                "steps_cap",
                f"party.caps.{key}={cap}: the plan asks for {asked} local steps{why}; refused",
            )


def check_count(own: Config, agreed: Config, name: str) -> None:
    """Refuse a plan whose noise, division or price is a function of the row count, where that is
    not public.

    Guarantees:
        - no update shows a secret count by the size of its noise, and no answer to a plan tells it
          by its price.
    """
    if name in own.data.rows:
        return
    asked = needs_declared_rows(agreed)
    if asked is not None:
        raise PlanRefused(
            "rows",
            f"{asked}: the aggregator has to know the rows, and data.rows.{name} is not declared; "
            "declare it",
        )
    if hides_count(agreed) and not own.privacy.not_private and not own.data.count_is_public(name):
        raise PlanRefused(
            "rows",
            f"data.rows.{name}: is not declared, and the noise of updates would tell how many rows "
            "there are; declare a figure that is known without the table, or write data.counts: "
            "public if the true one may be known",
        )


def hides_count(config: Config) -> bool:
    """Whether the mechanism promises that one row more or less is not seen: then the row count
    is a secret, too.
    """
    found = capabilities(config)
    return found.private and found.unit == "record" and found.relation != REPLACE_ONE


def _merged(own: Config, plan: PlanJson) -> dict[str, Any]:
    tree = own.model_dump(mode="json")
    tree |= {name: plan[name] for name in ("model", *MECHANISM_SECTIONS) if name in plan}
    # the plan decides what leaves
    tree["metrics"] = plan.get("metrics") or MetricsConfig().model_dump(mode="json")
    tree["train"] = {**plan["train"], **{name: tree["train"][name] for name in OWN_TRAIN_KEYS}}
    tree["train"] |= {"init_from": None, "early_stopping": None, "keep": "last"}
    asked = {name: plan["privacy"].get(name, EVERY_KEY[name].default) for name in PRIVACY_KEYS}
    if is_import_path(asked["mechanism"]):
        asked["options"] = every_key(own.privacy)["options"]
    cap = epsilon_cap(own)
    if asked["target_epsilon"] is not None and cap is not None:
        asked["target_epsilon"] = min(asked["target_epsilon"], cap)
    asked["delta"] = min(asked["delta"], own.delta)
    tree["privacy"] = {**tree["privacy"], **asked}
    tree["data"] = {**tree["data"], **_public_data(own.data, plan)}
    # the plan decides what is privately estimated
    tree["data"]["scaling"] = plan["data"].get("scaling", "bounds")
    if own.data.counts == "private":
        tree["data"] |= {"counts": None, "rows": tree["data"]["rows"] | noisy_count(own, plan)}
    if plan["data"].get("counts") == "private":
        tree["data"]["counts"] = "private"
    if "order" in plan:
        tree["data"]["columns"] = _in_order(tree["data"]["columns"], plan["order"])
    return tree


def _is_private(block: Mapping[str, Any]) -> bool:
    """Whether the categories of a column are to be estimated."""
    return bool(block["levels"] == "private")


def _in_order(columns: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """The same columns in the aggregator's order, which a message does not keep; others behind
    them, as they were.

    >>> list(_in_order({"a": 1, "b": 2, "c": 3}, ["b", "a"]))
    ['b', 'a', 'c']
    """
    return {name: columns[name] for name in dict.fromkeys((*order, *columns)) if name in columns}


def noisy_count(own: Config, plan: PlanJson) -> dict[str, int]:
    """The row count that stands for a party with ``data.counts: private``: that of the plan or,
    where a run asks statistics alone, one row, so that nothing depends on the true count. Empty
    where it declares its rows, or no count came.
    """
    name = own.party.name
    if own.data.counts != "private" or name is None or name in own.data.rows:
        return {}
    trains = capabilities_of(plan["privacy"]["mechanism"]).trains
    count = plan["rows"].get(name) or (None if trains else 1)
    return {} if count is None else {name: count}


def with_count(own: Config, counts: Mapping[str, int]) -> Config:
    """A party's config with counts as declared ones."""
    data = own.data.model_copy(update={"rows": own.data.rows | dict(counts)})
    return own.model_copy(update={"data": data}) if counts else own


def _public_data(own: DataConfig, plan: PlanJson) -> dict[str, Any]:
    """Column facts: the party's own where it states any, else the aggregator's; of what is
    privately estimated the aggregator's.
    """
    fields, asked = DataConfig.model_fields, plan["data"]
    stated = [
        name
        for name in DATA_KEYS
        if name not in ("scaling", "counts")
        and getattr(own, name) != fields[name].get_default(call_default_factory=True)
    ]
    own_names = ("scaling", "counts", *stated)
    found = {name: asked.get(name) for name in DATA_KEYS if name not in own_names}
    outer = own.scaling == "private" or own.default_bounds is not None
    estimated = asked.get("scaling") == "private" or any(
        map(_is_private, asked["columns"].values())
    )
    statistics = not capabilities_of(plan["privacy"]["mechanism"]).trains
    if not (estimated or (statistics and (outer or own.private_levels))):
        return found
    own_blocks = own.model_dump(mode="json")["columns"]
    said = {
        name
        for name, block in own.columns.items()
        if block.levels != "private"
        and (block.bounds is None or not (outer or asked.get("scaling") == "private"))
    }
    kept = {name: own_blocks[name] for name in said}
    return found | {"columns": {**asked["columns"], **kept}}
