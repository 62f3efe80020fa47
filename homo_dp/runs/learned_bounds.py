"""The first phase of a training with ``data.scaling: private``: working bounds are learnt, then
public.

Outer bounds in, a run of statistics with its share of the budget, a config with working bounds out;
levels and row counts that are ``private`` likewise. The config says what that has cost
(``data.learnt``), so the training's noise is solved together with it, and scoring uses the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from homo_dp.config.data import LearntConfig
from homo_dp.config.load import config_from
from homo_dp.config.schema import Config
from homo_dp.config.train import TrainConfig
from homo_dp.core.errors import DataError
from homo_dp.data.columns import LATER, Numeric
from homo_dp.data.declared import is_pattern
from homo_dp.data.encoding import Encoding
from homo_dp.data.parties import encoding_of, load_federation
from homo_dp.data.public_encoding import public_encoding
from homo_dp.federation.mechanisms.base import Mechanism
from homo_dp.federation.protocol.round_sums import noise_of_share
from homo_dp.federation.sessions.members import MOST_ROWS
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.checks import most_rows
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.runs.statistics import ask_in_process
from homo_dp.runs.statistics_outputs import Results
from homo_dp.statistics.private_levels import LEVEL_NAMES, TAIL

# How what is learnt shares the statistics' budget.
WEIGHTS = {"levels": 0.8, "counts": 0.2, "bounds": 0.8}
_MASKED = ("secure_aggregation", "tolerated_dropouts", "tolerated_colluders")


def learns(config: Config) -> bool:
    """Whether a config asks for bounds, counts or levels to be learnt, and they have not been
    yet.
    """
    return (
        bool(parts_of(config))
        and config.data.learnt is None
        and config.privacy.mechanism != "statistics"
    )


def with_what_is_learnt(config: Config) -> Config:
    """The config with the levels, row counts and bounds that were found; as it is where nothing
    is asked.
    """
    if not learns(config):
        return config
    steps = {
        "levels": with_released_levels,
        "counts": with_noisy_counts,
        "bounds": with_working_bounds,
    }
    for name, part in parts_of(config).items():
        config = steps[name](config, part)
    return config


def parts_of(config: Config) -> dict[str, float]:
    """What is to be learnt, in this order, and its part of the statistics' budget."""
    data = config.data
    asked = {
        "levels": bool(data.private_levels),
        "counts": data.counts == "private",
        "bounds": data.scaling == "private",
    }
    whole = sum(WEIGHTS[name] for name, wanted in asked.items() if wanted)
    return {name: WEIGHTS[name] / whole for name, wanted in asked.items() if wanted}


def with_released_levels(config: Config, part: float = 1.0) -> Config:
    """The config with the levels whose noisy counts passed the threshold at a party."""
    names: list[str] = []
    if config.data.counts == "private":
        names = list(load_federation(phase_of(config, [LEVEL_NAMES])).parties)
    return with_levels(config, ask_in_process(levels_phase(config, names, part)))


def levels_phase(config: Config, names: Sequence[str] = (), part: float = 1.0) -> Config:
    """The statistics that ask for the names of levels: never under masks, which a list of names
    cannot have.

    Guarantees:
        - where the counts of ``names`` are private, nothing depends on them: every party stands
          with one row.
    """
    _with_levels_later(config)  # refuses what cannot be learnt
    tree = phase_of(config, [LEVEL_NAMES], part).model_dump(mode="json")
    tree["privacy"] = {
        name: value for name, value in tree["privacy"].items() if name not in _MASKED
    }
    if config.data.counts == "private":
        tree["data"] |= {"rows": dict.fromkeys(names, 1) | config.data.rows, "counts": None}
    return config_from(tree)


def with_levels(config: Config, found: Results) -> Config:
    """The config with the levels that statistics found."""
    answer, run = found["questions"][LEVEL_NAMES], found["run"]
    tree = _tree(config)
    for name, levels in answer["values"].items():
        if not levels:
            raise DataError(
                f"data.columns.{name}.levels=private: no value passed the threshold of "
                f"{answer['threshold']:.0f} rows of a party; list the levels, drop the column, or "
                "raise privacy.statistics_share or target_epsilon"
            )
        tree["data"]["columns"][name] |= {
            "levels": levels,
            "source": f"learnt under privacy in run {run}",
        }
    tree["data"]["learnt"] = _learnt(config, run, [answer["noise_multiplier"]], answer["delta"])
    return config_from(tree)


def _with_levels_later(config: Config) -> Config:
    """The config with one level in the place of those that are still to be learnt."""
    tree = _tree(config)
    for name in config.data.private_levels:
        if is_pattern(name):
            raise DataError(
                f"data.columns.{name}.levels=private: is a pattern; name each column whose levels "
                "are learnt"
            )
        tree["data"]["columns"][name]["levels"] = [LATER]
    later = config_from(tree)
    known = _known_encoding(later).names
    if unused := [name for name in config.data.private_levels if name not in known]:
        raise DataError(
            f"data.columns.{unused[0]}.levels=private: the column is not used; leave its "
            "description out"
        )
    return later


def with_noisy_counts(config: Config, part: float = 1.0) -> Config:
    """The config with noisy row counts as the declared ones."""
    names = list(load_federation(config).parties)
    return with_counts(config, ask_in_process(counts_phase(config, names, part)), names)


def counts_phase(config: Config, names: Sequence[str], part: float = 1.0) -> Config:
    """The statistics that ask for row counts.

    Guarantees:
        - until they are released nothing depends on the true counts: every party stands with one
          row.
    """
    tree = phase_of(config, ["rows"], part).model_dump(mode="json")
    tree["data"] |= {"rows": dict.fromkeys(names, 1), "counts": None}
    return config_from(tree)


def with_counts(config: Config, found: Results, names: Sequence[str]) -> Config:
    """The config with the counts that statistics found; where only the total was seen, its equal
    parts.

    Equal parts are all that masked sums need: parties sample with one rate, and only the total is
    divided by.
    """
    answer = found["questions"]["rows"]
    equal = {name: {"values": {"rows": answer["values"]["rows"] / len(names)}} for name in names}
    seen = answer.get("parties") or equal
    # a party may answer anything, and no plan can have more
    most = MOST_ROWS if config.privacy.delta is None else most_rows(config.delta)
    rows = {name: min(most, max(1, round(each["values"]["rows"]))) for name, each in seen.items()}
    tree = _tree(config)
    tree["data"] |= {
        "rows": (
            config.data.rows
            | {name: count for name, count in rows.items() if name not in config.data.rows}
        ),
        "learnt": _learnt(config, found["run"], [answer["noise_multiplier"]]),
    }
    return config_from(tree)


def with_working_bounds(config: Config, part: float = 1.0) -> Config:
    """The config with the bounds that a run of statistics found."""
    described = with_all_columns(config)
    return with_bounds(described, ask_in_process(bounds_phase(described, part)))


def bounds_phase(described: Config, part: float = 1.0) -> Config:
    """The statistics that ask for working bounds."""
    return phase_of(described, ["bounds"], part)


def with_bounds(described: Config, found: Results) -> Config:
    """The config, with all columns written out, and the bounds that statistics found."""
    answer = found["questions"]["bounds"]
    tree = _tree(described)
    for name, ends in answer["values"].items():
        tree["data"]["columns"][name]["bounds"] = [ends["low"], ends["high"]]
        tree["data"]["columns"][name]["source"] = f"learnt under privacy in run {found['run']}"
    tree["data"] |= {
        "bounds_source": "private",
        "learnt": _learnt(described, found["run"], answer["noise_multipliers"]),
    }
    return config_from(tree)


def _learnt(config: Config, run: str, noise: Sequence[float], delta: float = 0.0) -> dict[str, Any]:
    """What has been spent so far, and now."""
    before = config.data.learnt or LearntConfig()
    return {
        "run": run,
        "noise_multipliers": [*before.noise_multipliers, *noise],
        "delta": before.delta + delta,
    }


def with_planned_learning(
    config: Config, planned: Callable[[Config], tuple[Mechanism, bool]]
) -> Config:
    """The config with the price that learning bounds will have, for a dry run; the bounds are
    still the outer ones.
    """
    if not learns(config):
        return config
    parts, delta = parts_of(config), 0.0
    noise = [_noise(config, part) for name, part in parts.items() if name != "bounds"]
    if "levels" in parts:
        delta = TAIL * min(config.delta, config.lifetime_delta)
        config = _with_levels_later(config)
    if "bounds" in parts:
        mechanism, _ = planned(phase_of(with_all_columns(config), ["bounds"], parts["bounds"]))
        noise += [asked.private_sum.noise_multiplier for asked in mechanism.run.sums.values()]
    tree = _tree(config)
    tree["data"]["learnt"] = {"run": "planned", "noise_multipliers": noise, "delta": delta}
    return config_from(tree)


def with_all_columns(config: Config) -> Config:
    """The config with every column written out, as both phases and whoever reads the resolved
    config need it.
    """
    encoding = _known_encoding(config)
    tree = _tree(config)
    known = tree["data"]["columns"]
    blocks = {}
    for column in encoding.columns:
        if column.name in known:
            blocks[column.name] = known[column.name]
        elif isinstance(column, Numeric):
            blocks[column.name] = {
                "bounds": [column.low, column.high],
                "missing": column.missing,
                "indicator": column.indicator,
            }
        else:  # of a pattern
            blocks[column.name] = config.data.columns[_pattern(config, column.name)].model_dump(
                mode="json"
            )
    tree["data"] |= {"columns": blocks, "columns_from": None, "default_bounds": None}
    if config.data.embedded is None or config.data.files:
        tree["data"]["use"] = list(blocks)
    return config_from(tree)


def _known_encoding(config: Config) -> Encoding:
    """By the names of a table's columns where one is here, else by those that are declared, as
    an aggregator does.
    """
    data = config.data
    return (
        encoding_of(config) if data.files or data.embedded is not None else public_encoding(config)
    )


def _tree(config: Config) -> dict[str, Any]:
    """A config as plain values; what nobody set in these sections stays open for ``train.auto``."""
    given = config.model_dump(mode="json", exclude_unset=True)
    return config.model_dump(mode="json") | {
        name: given.get(name, {}) for name in ("model", "privacy", "train")
    }


def _noise(config: Config, part: float) -> float:
    """The noise multiplier of one sum that takes a part of the statistics' budget."""
    privacy = config.privacy
    return noise_of_share(
        privacy.statistics_share * part, privacy.target_epsilon or 1.0, config.delta
    )


def phase_of(config: Config, ask: Sequence[str], part: float = 1.0) -> Config:
    """The statistics that are asked first, with their part of the budget as a target of their
    own.
    """
    target = epsilon(GaussianDpEvent(_noise(config, part)), config.delta).quoted
    tree = config.model_dump(mode="json")
    kept = (
        "delta",
        "secure_mode",
        "ledger",
        "lifetime_epsilon",
        "lifetime_delta",
        "seeded_noise_for_tests",
    )
    tree["privacy"] = {
        name: tree["privacy"][name] for name in (*kept, *_MASKED) if name in tree["privacy"]
    } | {
        "mechanism": "statistics",
        "target_epsilon": target,
        # by what is declared now: a step that learns may stand in other counts
        "delta": config.delta if config.data.rows else config.privacy.delta,
    }
    tree["statistics"], tree["metrics"] = {"ask": list(ask)}, {}
    tree["train"] = TrainConfig(seed=config.train.seed).model_dump(mode="json")
    tree["data"] |= {
        "scaling": "bounds",
        "counts": "public" if config.data.counts == "public" else None,
        "learnt": None,
    }
    tree["tracking"]["enabled"] = False
    return config_from(tree)


def _pattern(config: Config, name: str) -> str:
    from fnmatch import fnmatchcase

    return next(key for key in config.data.columns if fnmatchcase(name, key))
