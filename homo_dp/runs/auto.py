"""``train.auto``: which settings the rules fill in, and the config that follows, before any plan
is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from homo_dp.config.base import Section
from homo_dp.config.layers import get, put, split_key
from homo_dp.config.load import config_from
from homo_dp.config.mechanisms import CHOSEN, capabilities_of
from homo_dp.config.privacy import RecordKeys, SharedNoiseKeys
from homo_dp.config.schema import LINEAR_MODELS, Config
from homo_dp.core.errors import ConfigError
from homo_dp.data.columns import Categorical, Date, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.images import is_image_file
from homo_dp.federation.mechanisms.train_hooks import active_hooks
from homo_dp.federation.protocol.round_sums import noise_of_share
from homo_dp.federation.sessions.stages import REFINED
from homo_dp.models.files import read_card
from homo_dp.models.registry import FRONT_ENDS
from homo_dp.models.task import task_for
from homo_dp.privacy.private_sum import NoiseShare
from homo_dp.runs.auto_rules import Choice, Given, PublicFacts, choose, takes_curves

# Settings of steps in the columns' own coordinates.
NUMBERS_OF_SGD = ("learning_rate", "batch_size", "sample_rate", "local_steps", "local_epochs")
# of steps that parties take without privacy
LOCAL_KNOBS = ("optimizer", "momentum", "grad_clip", "proximal_mu")
# The learning rate of Adam times rounds. Of 0.8, 1.5, 3.5 and 6, test loss over the least of each case
# was 1.06, 1.04, 1.04 and 1.05 on average, and AUC 4.0, 2.3, 0.6 and 0.2 points below its best; at the
# config's default rate 1.62 and 4.8, at that of SGD 1.43 and 3.5. Logistic regression prefers 6, an MLP
# less by its loss (python benchmarks/adam_path.py: three generated tables, epsilon 1 and 4).
PATH_OF_ADAM = 3.5
LINEAR_SOLVERS = ("gradient", "second_moment")
# What a run may need to be told of its training: shown where the user gave it.
SHOWN = (
    "rounds",
    "solver",
    "row_norm",
    "moment_share",
    "column_share",
    "column_passes",
    "calibration_rounds",
    *NUMBERS_OF_SGD,
    *LOCAL_KNOBS,
    "schedule",
    "server_optimizer",
    "averaging",
    "weighting",
    "weight_decay",
)

OF_IMAGES = "scattering2"
LEAST_SIDE = 16  # pixels: smaller images are few numbers already


@dataclass(frozen=True)
class Settled:
    """A config with every setting filled in, and what to tell its user about it."""

    config: Config
    notes: tuple[str, ...] = ()


def is_auto(config: Config) -> bool:
    """Whether the rules fill in what is not set.

    >>> is_auto(config_from({})), is_auto(config_from({"train": {"auto": False}}))
    (True, False)
    """
    return _without_rules(config) is None


def _without_rules(config: Config) -> str | None:
    """Why the rules fill in nothing; None where they do."""
    if not config.train.auto:
        return "train.auto: false"
    if not config.privacy.capabilities.auto:
        return f"there are no rules for privacy.mechanism: {config.privacy.mechanism}"
    if config.model.factory is not None:
        return "there are no rules for a model of your own"
    return None


def chosen_mechanism(config: Config) -> str:
    """The mechanism of a run.

    It is the one that is written out, else dp_fedsgd where the rules choose and no setting asks
    for several steps of a party in a round.
    """
    if not is_auto(config) or "mechanism" in config.privacy.model_fields_set:
        return config.privacy.mechanism
    one_step = config.train.solver in LINEAR_SOLVERS or not config.train.own_steps
    return CHOSEN if one_step else config.privacy.mechanism


def algorithm_line(config: Config) -> str:
    """The algorithm of a run in which the rules fill in nothing, and why they do not."""
    train = config.train
    solver = f", solver {train.solver}" if train.solver in LINEAR_SOLVERS else ""
    rounds = f"{train.rounds} round{'s' * (train.rounds != 1)}"
    return (
        f"algorithm: {config.privacy.mechanism}{solver}, {rounds}; settings as given, others by "
        f"default ({_without_rules(config)})"
    )


def with_model(config: Config) -> Config:
    """The config with what is known before any table is read.

    That is a model for images, where the rules choose and nobody named one, and curves of numbers
    where the model that is continued has them.
    """
    found: dict[str, Any] = {}
    continued = config.train.init_from
    if (
        continued is not None
        and config.data.curves is None
        and read_card(continued).encoding.get("curves")
    ):
        found["data.curves"] = True
    if (
        is_auto(config)
        and "name" not in config.model.model_fields_set
        and _fixed_features_suit(config)
    ):
        found["model.name"] = OF_IMAGES
    if not found:
        return config
    tree = config.model_dump(mode="json", exclude_unset=True)
    for key, value in found.items():
        put(tree, split_key(key), value)
    return config_from(tree)


def _fixed_features_suit(config: Config) -> bool:
    """Whether the data are images to be told apart, large enough to have more than single
    pixels.
    """
    image = config.data.image
    shape = None if image is None else image.shape
    images = shape is not None or any(map(is_image_file, config.data.files.values()))
    large = shape is None or min(shape[1:], default=0) >= LEAST_SIDE
    return images and large and config.model.task != "regression"


def by_linear_solver(config: Config) -> bool:
    """Whether a run needs no gradients by Opacus."""
    linear = config.model.name in LINEAR_MODELS and config.model.factory is None
    chosen = config.train.solver in ("gradient", "second_moment") or (
        is_auto(config) and config.train.solver == "auto" and not _sgd_numbers(config)
    )
    return linear and chosen and capabilities_of(chosen_mechanism(config)).one_sum


def settled(config: Config, encoding: Encoding, rows: Mapping[str, int | None]) -> Settled:
    """The config that runs: as it is, or with what its user left open filled in by the rules.

    Guarantees:
        - what is filled in follows from the config, declared columns and the given row counts;
        - nothing that is set is changed; a mechanism that is written out stays.
    """
    config = config.with_delta(rows.values() if config.privacy.unit == "record" else ())
    if not is_auto(config):
        if config.train.calibration_problem is not None:
            raise ConfigError(config.train.calibration_problem)
        return Settled(config, (algorithm_line(config),))
    mechanism = chosen_mechanism(config)
    solver = config.train.solver
    if solver == "auto" and (_sgd_numbers(config) or _local_steps(config, mechanism)):
        solver = "sgd"  # its numbers are in the columns' own coordinates
    if "second_moment" in capabilities_of(mechanism).solvers and solver != "sgd":
        encoding = _curved_by_rule(config, encoding, rows)
    choice = choose(public_facts(config, encoding, rows), mechanism, solver, _figures(config))
    settings = _left_open(config, choice)
    return Settled(
        _filled(config, mechanism, settings, encoding),
        _notes(config, mechanism, settings, choice, encoding),
    )


def set_again(
    given: Config, config: Config, encoding: Encoding, rows: Mapping[str, int | None]
) -> dict[str, float]:
    """Settings that do not price, chosen again by what was privately estimated in the first rounds.

    Solver, rounds and shares are those of the plan. A learning rate goes with the momentum that it
    was chosen for, so it stays where that would be another one now.

    Args:
        given: the config before the rules.
        config: that of the training, with what was found.
        encoding: its columns.
        rows: row counts, those that were found among them.

    Returns:
        Values by key, of what the user left open.
    """
    if not is_auto(given):
        return {}
    train, figures = config.train, Given(config.train.rounds, _given_clip(given))
    facts = public_facts(config, encoding, rows)
    choice = choose(facts, config.privacy.mechanism, train.solver, figures)
    optimizer = choice.settings.get("train.server_optimizer", "fedavg")
    now = optimizer if isinstance(optimizer, Mapping) else {"name": optimizer}
    same = all(getattr(train.server_optimizer, name) == value for name, value in now.items())
    kept = () if same else ("train.learning_rate",)
    return {
        key: float(value)
        for key, value in _left_open(given, choice).items()
        if key in REFINED and key not in kept
    }


def _curved_by_rule(config: Config, encoding: Encoding, rows: Mapping[str, int | None]) -> Encoding:
    """The encoding with curves, where the rules take them and nobody named a model, a file to
    continue, or curves.
    """
    said = (
        "name" in config.model.model_fields_set
        or config.data.curves is not None
        or config.train.init_from
    )
    if said or not encoding.columns or encoding.shape is not None:
        return encoding
    found = replace(encoding, curves=True)
    return found if found.curved and takes_curves(public_facts(config, found, rows)) else encoding


def public_facts(config: Config, encoding: Encoding, rows: Mapping[str, int | None]) -> PublicFacts:
    """What the rules go by."""
    task = task_for(encoding.classes)
    fixed = config.model.name in FRONT_ENDS
    numeric, categorical = _columns(encoding)
    width = math.prod(encoding.input_shape) - _spare(encoding)
    if fixed:
        front = FRONT_ENDS[config.model.name](encoding.input_shape)
        numeric, width = round(3 * front.row_square), front.features
    known = [count for count in rows.values() if count is not None]
    least = min(known, default=1)
    shared = config.privacy
    sharers = None
    if isinstance(shared, SharedNoiseKeys) and shared.secure_aggregation:
        sharers = NoiseShare(
            len(rows), shared.tolerated_dropouts, shared.tolerated_colluders
        ).sharers
    return PublicFacts(
        rows=sum(known) + least * (len(rows) - len(known)),
        parties=max(1, len(rows)),
        sharers=sharers,
        numeric=numeric,
        categorical=categorical,
        width=width,
        outputs=task.outputs,
        task=task.kind,
        linear=config.model.name in LINEAR_MODELS,
        mu=_mu(config),
        bias=config.model.bias,
        declared=None not in rows.values(),
        fixed_features=fixed,
        even_levels=sum(
            1 / len(column.levels) for column in encoding.columns if isinstance(column, Categorical)
        ),
        alike=task.kind == "multiclass" and _alike(encoding),
    )


def _mu(config: Config) -> float | None:
    privacy = config.privacy
    if not privacy.capabilities.private:
        return None
    if privacy.noise_multiplier is not None:
        return math.sqrt(config.train.rounds) / privacy.noise_multiplier
    return 1.0 / noise_of_share(1.0, privacy.target_epsilon or 1.0, config.delta)


def _columns(encoding: Encoding) -> tuple[int, int]:
    """Numbers within bounds, and columns of which a row has one of several places (or a point on
    a circle).
    """
    numeric = categorical = 0
    for column in encoding.columns:
        if isinstance(column, Numeric):
            numeric += 1
        elif isinstance(column, Date):
            circles = sum(part in ("month", "weekday") for part in column.parts)
            numeric, categorical = numeric + len(column.parts) - circles, categorical + circles
        elif isinstance(column, Categorical):
            categorical += 1
    numeric += encoding.curve_count
    return (numeric, categorical) if encoding.columns else (math.prod(encoding.input_shape), 0)


def _spare(encoding: Encoding) -> int:
    """Places for values that are missing or not declared: most tables have none, and nothing is
    learnt of them.
    """
    levels = [column for column in encoding.columns if isinstance(column, Categorical)]
    return sum(column.width - len(column.levels) for column in levels)


def _alike(encoding: Encoding) -> bool:
    """Whether all columns are numbers within the same bounds."""
    bounds = {
        (column.low, column.high) if isinstance(column, Numeric) else None
        for column in encoding.columns
    }
    return len(bounds) <= 1 and None not in bounds


def _sgd_numbers(config: Config) -> tuple[str, ...]:
    """The settings that are given in the columns' own coordinates, so that no other solver can
    take them.
    """
    train = config.train
    given = [f"train.{name}" for name in NUMBERS_OF_SGD if name in train.model_fields_set]
    if train.schedule.kind == "optimal":  # a rate of its own
        given.append("train.schedule")
    if _given_clip(config) is not None:
        given.append("privacy.max_grad_norm")
    return tuple(given)


def _local_steps(config: Config, mechanism: str) -> bool:
    """Whether somebody set or hooked steps of parties, which a run without privacy by a moment
    does not take.
    """
    return not capabilities_of(mechanism).private and (
        bool(config.train.model_fields_set & set(LOCAL_KNOBS)) or active_hooks() is not None
    )


def _figures(config: Config) -> Given:
    rounds = config.train.rounds if "rounds" in config.train.model_fields_set else None
    return Given(rounds, _given_clip(config))


def _given_clip(config: Config) -> float | None:
    """The clip norm of a row's gradient, where the user gave it."""
    privacy = config.privacy
    if isinstance(privacy, RecordKeys) and "max_grad_norm" in privacy.model_fields_set:
        return privacy.max_grad_norm
    return None


def _left_open(config: Config, choice: Choice) -> dict[str, Any]:
    """The settings of the rules that the user leaves open."""
    tree = config.model_dump(mode="json", exclude_unset=True)
    given = config.train.model_fields_set
    # in the place of a rule's setting: the same said otherwise, or what goes with other settings
    instead = {
        "train.sample_rate": {"batch_size", "sample_rate"},
        "train.local_steps": {"local_epochs"},
        # of so many rounds, after such a question, were they meant to be
        "train.calibration_rounds": {"rounds", "column_share"},
    }
    settings = {"train.solver": "sgd", **choice.settings}
    if "train.solver" not in choice.settings:  # of sgd, a given rate is the whole step
        instead["train.server_optimizer"] = {"learning_rate"}
    if config.train.optimizer == "adam":
        # Adam's steps are as long as its rate, however short gradients and clip norm are
        settings["train.learning_rate"] = PATH_OF_ADAM / _rounds_to_run(config, choice)
    if config.train.optimizer == "adam" or config.train.momentum:
        # with momentum at the aggregator too, steps would be ten times as long
        settings.pop("train.server_optimizer", None)
    return {
        key: value
        for key, value in settings.items()
        if get(tree, key) in (None, "auto") and not given & instead.get(key, set())
    }


def _rounds_to_run(config: Config, choice: Choice) -> int:
    given = _figures(config).rounds
    return given or int(choice.settings["train.rounds"])


def _filled(
    config: Config, mechanism: str, settings: Mapping[str, Any], encoding: Encoding
) -> Config:
    tree = config.model_dump(mode="json", exclude_unset=True)
    for key, value in settings.items():
        put(tree, split_key(key), dict(value) if isinstance(value, Mapping) else value)
    put(tree, ("privacy", "mechanism"), mechanism)
    put(tree, ("train", "auto"), False)
    if encoding.curves:
        put(tree, ("data", "curves"), True)
    return config_from(tree)


def _notes(
    config: Config,
    mechanism: str,
    settings: Mapping[str, Any],
    choice: Choice,
    encoding: Encoding,
) -> tuple[str, ...]:
    chosen = ", ".join(
        [mechanism, *(f"{key.split('.', 1)[1]} {_short(value)}" for key, value in settings.items())]
    )
    given = _given(config)
    notes = [
        f"train.auto: {chosen}" + (f"; as given: {', '.join(given)}" if given else ""),
        *_forced(config, mechanism),
        *_model_note(config),
        *(f"train.auto: {why}" for why in choice.why),
    ]
    if encoding.curves and config.data.curves is None:
        count = len(encoding.curved)
        notes.append(
            f"train.auto: squares and roots of {count} number{'s' * (count > 1)} beside them "
            "(data.curves): they follow from the public bounds, so they cost no privacy; a named "
            "model does not get them"
        )
    return (*notes, *([f"to expect: {choice.expected}"] if choice.expected else ()))


def _forced(config: Config, mechanism: str) -> list[str]:
    """Why settings of the user leave the rules another algorithm than they would choose."""
    record = capabilities_of(mechanism)
    if record.local_steps and "mechanism" not in config.privacy.model_fields_set:
        keys = ", ".join(f"train.{name}" for name in config.train.own_steps)
        return [f"train.auto: {mechanism}, because parties take several steps in a round by {keys}"]
    keys = ", ".join(_sgd_numbers(config))
    linear = config.model.name in LINEAR_MODELS and "second_moment" in record.solvers
    if config.train.solver != "auto" or not linear or not keys:
        return []
    return [f"train.auto: solver sgd, in the columns' own coordinates, because of the given {keys}"]


def _model_note(config: Config) -> tuple[str, ...]:
    """Which model images get, or would get."""
    name = config.model.name
    if name in FRONT_ENDS:
        return (
            (
                f"train.auto: model {name}, a linear model on fixed features of images, of which "
                "nothing is learnt"
            ),
        )
    if not _fixed_features_suit(config):
        return ()
    return (
        (
            f"model.name={name} stays, as it is written; left out, images get {OF_IMAGES} "
            "(docs/auto.md compares)"
        ),
    )


def _given(config: Config) -> list[str]:
    """What the user gave of the algorithm, as the first lines show it."""
    train, privacy = config.train, config.privacy
    named: list[tuple[str, Any]] = []
    if "mechanism" in privacy.model_fields_set:
        named.append(("mechanism", privacy.mechanism))
    named += [(name, getattr(train, name)) for name in SHOWN if name in train.model_fields_set]
    if (clip := _given_clip(config)) is not None:
        named.append(("max_grad_norm", clip))
    return [f"{name} {_short(value)}" for name, value in named]


def _short(value: Any) -> str:
    if isinstance(value, Section):
        value = value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return " ".join(_short(part) for part in value.values())
    return f"{value:.3g}" if isinstance(value, float) else str(value)
