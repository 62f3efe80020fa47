"""The stages of a run: private estimates of bounds, categories and row counts, then the training.

One plan holds both. Until the estimates are there, rows are read as they are, by what is declared
(outer bounds, texts of categories), and stand-ins take the place of what is estimated wherever the
training is planned: typical counts, never what rows say. Then both sides make the same config from
what was found, and go on in the same run. ``stage_of`` is the one place where a stage is made, for
simulations, parties and aggregators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from homo_dp.config.base import Bounds, Column, Count, PartyName, Positive, Section, Text
from homo_dp.config.layers import put, split_key
from homo_dp.config.load import config_from
from homo_dp.config.mechanisms import STATISTICS
from homo_dp.config.schema import Config
from homo_dp.config.train import TrainConfig
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.columns import LATER, Numeric
from homo_dp.data.declared import is_pattern
from homo_dp.data.encoding import Encoding
from homo_dp.data.parties import encoding_of
from homo_dp.data.public_encoding import public_encoding
from homo_dp.data.raw_rows import may_be_level
from homo_dp.federation.mechanisms.base import (
    FederationFacts,
    Mechanism,
    PartyPlan,
    Weights,
)
from homo_dp.federation.mechanisms.estimation import BOUNDS, ROWS, Estimates, EstimationStage
from homo_dp.federation.protocol.round_sums import RoundSums, noise_of_share
from homo_dp.federation.sessions.build import (
    build_mechanism,
    common_facts,
    noise_source,
    party_facts,
)
from homo_dp.federation.sessions.plan_schema import PlanRefused, check_sizes
from homo_dp.privacy.accounting.checks import most_rows
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.statistics.private_levels import LEVEL_NAMES, MOST_LEVELS

TYPICAL_ROWS: Final = 1000  # of a party whose row count is not known when the plan is made
TYPICAL_CATEGORIES: Final = 8  # of a column whose categories are not known when the plan is made
REFUSED: Final = "estimates"  # the error code of findings that a party does not take
# settings that do not price: the rules may set them again by what was found
REFINED: Final = ("train.row_norm", "train.learning_rate", "privacy.max_grad_norm")
_MASKED: Final = ("secure_aggregation", "tolerated_dropouts", "tolerated_colluders")
_KEPT: Final = (
    *("delta", "secure_mode", "ledger", "lifetime_epsilon", "lifetime_delta"),
    *("seeded_noise_for_tests", "target_epsilon", "statistics_share"),
)

Rows = Mapping[str, int | None]
Categories = Annotated[tuple[Text, ...], Field(min_length=1, max_length=MOST_LEVELS)]


class Found(Section):
    """What was privately estimated in a run: public, and the same at all sides."""

    levels: dict[Column, Categories] = Field(default_factory=dict)
    rows: dict[PartyName, Count] = Field(default_factory=dict)
    bounds: dict[Column, Bounds] = Field(default_factory=dict)
    # of ``REFINED``, what the rules set again
    settings: dict[str, Positive] = Field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for messages and states."""
        return self.model_dump(mode="json")


def estimates(config: Config) -> tuple[str, ...]:
    """What a config asks to be privately estimated, by the names of the questions.

    >>> estimates(config_from({"data": {"scaling": "private"}, "privacy": {"target_epsilon": 1}}))
    ('bounds',)
    """
    data, asked = config.data, []
    if config.privacy.asks_raw_values:
        return ()
    if data.private_levels:
        asked.append(LEVEL_NAMES)
    if data.counts == "private":
        asked.append(ROWS)
    if data.scaling == "private":
        asked.append(BOUNDS)
    return tuple(asked)


@dataclass(frozen=True)
class Stage:
    """A stage of a run: the config of the training as far as it is known, and how rows are read.

    ``rows`` are the public row counts of the parties, None of one that keeps it to itself.
    """

    config: Config
    reading: Config
    rows: Rows
    estimating: bool = False
    asked: Asked | None = None

    @property
    def estimates(self) -> RoundSums:
        """The rounds of estimates, in whichever stage the run is."""
        return (
            {} if self.asked is None else self.asked.questions(noise_source(self.config)).run.sums
        )

    def with_estimates(self, facts: FederationFacts) -> FederationFacts:
        """The facts of the training with the rounds before it."""
        return facts if self.asked is None else replace(facts, estimates=self.estimates)

    def mechanism(self, facts: FederationFacts, noise: NoiseSource) -> Mechanism:
        """The mechanism of this stage; ``facts`` are those of ``with_estimates``."""
        training = build_mechanism(self.config, facts, noise)
        if self.asked is None or not self.estimating:
            return training
        return EstimationStage(self.asked.questions(noise), training)


@dataclass(frozen=True)
class Asked:
    """What is privately estimated in a run: the questions by public figures, the same in every
    stage.
    """

    config: Config  # by which questions are asked
    rows: Mapping[str, int]  # declared counts, or what stands for them
    undeclared: frozenset[str]
    most_rows: int
    noise_of_all: float

    def questions(self, noise: NoiseSource) -> Estimates:
        """The questions, with no answer yet."""
        return Estimates(self.config, self.rows, self.most_rows, self.noise_of_all, noise)


def stage_of(
    config: Config,
    rows: Rows,
    found: Found | None = None,
    run: str = "",
    target: tuple[float, float] | None = None,
) -> Stage:
    """The stage of a run in which its parties are.

    Args:
        config: that of the plan, with what is estimated still called private.
        rows: the row counts of the plan, by party.
        found: what was estimated, once it is there.
        run: its name, for the source of what was found.
        target: epsilon and delta of the plan, where a party's own are smaller.
    """
    if not estimates(config):
        return Stage(config, config, rows)
    asking = _asking(config, rows)
    counts = {name: _standing(config) if count is None else count for name, count in rows.items()}
    undeclared = frozenset(name for name, count in rows.items() if count is None)
    most = sum(most_rows(config.delta) if count is None else count for count in rows.values())
    whole = noise_of_share(1.0, *(target or (config.privacy.target_epsilon or 1.0, config.delta)))
    asked = Asked(asking, counts, undeclared, most, whole)
    known = _with_counts(config, rows, found)
    if found is None:
        return Stage(_provisional(config, known), asking, known, True, asked)
    trained = _with_found(config, known, found, run)
    return Stage(trained, trained, known, False, asked)


def _standing(config: Config) -> int:
    """The public figure that stands for a row count which is not known when the plan is made."""
    return min(TYPICAL_ROWS, most_rows(config.delta))


def _with_counts(config: Config, rows: Rows, found: Found | None) -> Rows:
    if config.data.counts != "private":
        return rows
    counted = {} if found is None else found.rows
    return {
        name: counted.get(name, _standing(config)) if count is None else count
        for name, count in rows.items()
    }


def _provisional(config: Config, rows: Rows) -> Config:
    """The config by which a training is planned before anything of it was estimated."""
    tree = as_tree(config)
    for name in config.data.private_levels:
        tree["data"]["columns"][name]["levels"] = [
            f"(category {number})" for number in range(1, TYPICAL_CATEGORIES + 1)
        ]
    return config_from(_settled_data(tree, config, rows))


def _settled_data(tree: dict[str, Any], config: Config, rows: Rows) -> dict[str, Any]:
    tree["data"]["scaling"] = "bounds"
    if config.data.counts == "private":
        name = config.party.name  # a party's own config knows no rows of others
        told = rows if name is None else {name: rows[name]} if name in rows else {}
        tree["data"] |= {"counts": None, "rows": {**config.data.rows, **told}}
    return tree


def _with_found(config: Config, rows: Rows, found: Found, run: str) -> Config:
    """The config of the training, once what is estimated is known."""
    tree, source = as_tree(config), f"privately estimated in run {run}"
    columns = tree["data"]["columns"]
    for name, levels in found.levels.items():
        columns[name] |= {"levels": list(levels), "source": source}
    for name, bounds in found.bounds.items():
        columns[name] |= {"bounds": list(bounds), "source": source}
    if found.bounds:
        tree["data"]["bounds_source"] = "private"
    for key, value in found.settings.items():
        put(tree, split_key(key), value)
    return config_from(_settled_data(tree, config, rows))


def _asking(config: Config, rows: Rows) -> Config:
    """The config by which rows are read, and questions asked, in the estimation stage."""
    tree = config.model_dump(mode="json")
    privacy = tree["privacy"]
    tree["privacy"] = {name: privacy[name] for name in (*_KEPT, *_MASKED) if name in privacy} | {
        "mechanism": STATISTICS.name,
        "delta": config.delta,
    }
    tree |= {STATISTICS.name: {"ask": list(estimates(config))}, "metrics": {}}
    tree["train"] = TrainConfig(seed=config.train.seed).model_dump(mode="json")
    tree["tracking"]["enabled"] = False
    return config_from(_settled_data(tree, config, _with_counts(config, rows, None)))


def as_tree(config: Config) -> dict[str, Any]:
    """A config as plain values; what nobody set in these sections stays open for ``train.auto``."""
    given = config.model_dump(mode="json", exclude_unset=True)
    return config.model_dump(mode="json") | {
        name: given.get(name, {}) for name in ("model", "privacy", "train")
    }


# --- before the plan ---


def with_all_columns(config: Config) -> Config:
    """The config with every column written out, where anything is privately estimated: findings
    name columns.
    """
    if not estimates(config):
        return config
    tree = as_tree(config)
    for name in config.data.private_levels:
        if is_pattern(name):
            raise DataError(
                f"data.columns.{name}.levels=private: is a pattern; name each column whose "
                "categories are estimated"
            )
        tree["data"]["columns"][name]["levels"] = [LATER]
    encoding = _known_encoding(config_from(tree | {"data": tree["data"] | {"scaling": "bounds"}}))
    if unused := [name for name in config.data.private_levels if name not in encoding.names]:
        raise DataError(
            f"data.columns.{unused[0]}.levels=private: the column is not used; leave its "
            "description out"
        )
    tree = as_tree(config)
    blocks = {column.name: _block(config, tree, column) for column in encoding.columns}
    tree["data"] |= {"columns": blocks, "columns_from": None, "default_bounds": None}
    if config.data.embedded is None or config.data.files:
        tree["data"]["use"] = list(blocks)
    return config_from(tree)


def _block(config: Config, tree: Mapping[str, Any], column: Any) -> dict[str, Any]:
    known = tree["data"]["columns"]
    if column.name in known:
        return dict(known[column.name])
    if isinstance(column, Numeric):
        bounds = {"bounds": [column.low, column.high]}
        return bounds | {"missing": column.missing, "indicator": column.indicator}
    pattern = next(key for key in config.data.columns if fnmatchcase(column.name, key))
    return config.data.columns[pattern].model_dump(mode="json")


def _known_encoding(config: Config) -> Encoding:
    """By the names of a table's columns where one is here, else by those that are declared, as
    an aggregator does.
    """
    data = config.data
    here = data.files or data.embedded is not None
    return encoding_of(config) if here else public_encoding(config)


def with_fixed_sampler(config: Config, rows: Rows) -> Config:
    """The config with its sample rate and steps written out, where row counts are estimated: a
    count that is found later must not change them.
    """
    train = config.train
    if ROWS not in estimates(config) or train.sample_rate is not None:
        return config
    known = _with_counts(config, rows, None)
    total = sum(count or 1 for count in known.values())
    rate = min(1.0, (train.batch_size or total) * len(known) / total)
    tree = as_tree(config)
    tree["train"] |= {"sample_rate": rate, "batch_size": None}
    fixed = config_from(tree)
    party = {"": party_facts(fixed, "", max(1, total // max(1, len(known))))}
    steps = common_facts(fixed, FederationFacts(party, train.rounds, 1)).parties[""].steps_per_round
    tree["train"] |= {"local_steps": steps, "local_epochs": None}
    return config_from(tree)


def asked_by(config: Config, settled: Config) -> Config:
    """The settings that rules have filled in, with what is still to be estimated."""
    tree = as_tree(settled)
    tree["data"] = config.model_dump(mode="json")["data"] | {"curves": settled.data.curves}
    return config_from(tree)


# --- after the estimates ---


def found_by(stage: Stage, mechanism: Mechanism, weights: Weights) -> Found:
    """What the answers of the first rounds say, as a public message.

    Raises:
        DataError: no category of a column passed the threshold, so that it has no encoding.
    """
    if not isinstance(mechanism, EstimationStage):
        raise ConfigError("data: nothing is privately estimated in this run")
    made, asked = mechanism.estimates.found(weights), stage.asked
    for name, levels in made.get("levels", {}).items():
        if not levels:
            raise DataError(
                f"data.columns.{name}.levels=private: no value passed the threshold of "
                f"{mechanism.estimates.threshold:.0f} rows of a party; list the levels, drop the "
                "column, or raise privacy.statistics_share or target_epsilon"
            )
    most = most_rows(stage.config.delta)
    if "rows" in made and asked is not None:
        # a party may answer anything, and no plan can have more
        made["rows"] = {
            name: min(most, max(1, round(count)))
            for name, count in made["rows"].items()
            if name in asked.undeclared
        }
    return Found(**made)


def with_settings(found: Found, settings: Mapping[str, float]) -> Found:
    """What was found, with settings that the rules set again by it."""
    return found.model_copy(update={"settings": dict(settings)})


def read_found(config: Config, rows: Rows, raw: object) -> Found:
    """What an aggregator says was found, checked against what the plan asks for.

    Guarantees:
        - categories are those of columns that the plan asks for, at most ``MOST_LEVELS`` texts
          each; bounds lie within the outer ones; counts are below 1 / delta;
        - the answer is a function of the plan and the message: no row is looked at.

    Raises:
        PlanRefused: anything else.
    """
    check_sizes(raw)
    try:
        found = TypeAdapter(Found).validate_python(raw)
    except (ValidationError, ValueError) as error:
        raise _refused(f"cannot be read ({type(error).__name__})") from None
    asked, data = estimates(config), config.data
    unknown = [name for name, count in rows.items() if count is None and ROWS in asked]
    outer = {
        name: block.bounds
        for name, block in data.columns.items()
        if block.bounds is not None and BOUNDS in asked
    }
    if set(found.levels) != set(data.private_levels) or set(found.bounds) != set(outer):
        raise _refused("are not of the columns that the plan asks for")
    if not set(found.rows) <= set(unknown) or not set(found.settings) <= set(REFINED):
        raise _refused("have counts or settings that the plan does not ask for")
    if any(count > most_rows(config.delta) for count in found.rows.values()):
        raise _refused("have a row count that privacy.delta does not allow")
    for name, (low, high) in found.bounds.items():
        least, most = outer[name]
        if not least <= low < high <= most:
            raise _refused(f"have bounds of {name} that are not within the outer ones")
    for name, levels in found.levels.items():
        if len(set(levels)) < len(levels) or not all(map(may_be_level, levels)):
            raise _refused(f"have categories of {name} that none can be")
    return found


def _refused(why: str) -> PlanRefused:
    return PlanRefused(REFUSED, f"what the aggregator says was privately estimated: values {why}")


def check_same_events(planned: PartyPlan, now: PartyPlan) -> None:
    """Refuse a stage whose releases are not those of the plan.

    Guarantees:
        - whatever was found, the noise multipliers, samplers and numbers of steps are those that
          were priced before the first answer.
    """
    if _events(planned) != _events(now):
        raise _refused("change what the run costs")


def _events(plan: PartyPlan) -> tuple[Any, ...]:
    others = {number: (asked.name, asked.event) for number, asked in plan.sums.items()}
    return plan.rounds, dict(plan.events), plan.delta, plan.relation, plan.schedule, others
