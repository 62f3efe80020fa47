"""Continuing a saved model: what its weights tell already is carried into everything that the
new run states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from homo_dp.core.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

    from homo_dp.config.schema import Config
    from homo_dp.models.architecture import Architecture

Ancestor = dict[str, Any]  # data, private, epsilon, delta, unit, neighbouring_relation


@dataclass(frozen=True)
class Earlier:
    """The model that a run starts from, and the runs that it came out of, oldest first."""

    weights: dict[str, Tensor]
    ancestors: Sequence[Ancestor] = ()


def earlier_model(
    config: Config,
    architecture: Architecture,
    encoding: Mapping[str, Any],
    *,
    private: bool,
    same_split: bool = False,
) -> Earlier | None:
    """The model of ``train.init_from``, if one is given and fits this run.

    Args:
        config: the run that starts from the model.
        architecture: that of the run.
        encoding: the columns of the run.
        private: whether the run gives a guarantee.
        same_split: refuse a model whose training held out other rows of the same data; for runs
            that split the rows themselves.

    Returns:
        The weights and what they cost already; None without ``train.init_from``.

    Guarantees:
        - a private run never starts from a model that was trained without privacy on the same data
          (``data.name``).
    """
    path = config.train.init_from
    if path is None:
        return None
    from homo_dp.federation.sessions.plan import encoding_digest
    from homo_dp.models.files import load_model

    saved = load_model(path, trust_factory=config.model.factory)
    if bool(saved.card.encoding.get("curves")) != bool(encoding.get("curves")):
        has = "with" if saved.card.encoding.get("curves") else "without"
        raise ModelFileError(
            f"train.init_from={path}: was trained {has} data.curves; leave data.curves out to "
            "follow it"
        )
    if saved.card.architecture != architecture:
        raise ModelFileError(
            f"train.init_from={path}: has another architecture than the model section"
        )
    if encoding_digest(saved.card.encoding) != encoding_digest(encoding):
        raise ModelFileError(
            f"train.init_from={path}: was trained on other columns than data describes"
        )
    ancestors = ancestors_of(saved.card.privacy)
    if private and not all(one["private"] for one in _same_data(ancestors, config.data.dataset)):
        raise ConfigError(
            f"train.init_from={path}: was trained without privacy on the same data "
            f"(data.name={config.data.dataset}), and its weights tell it already; start from "
            "another model, or write privacy.not_private: true to have the result marked NOT "
            "PRIVATE"
        )
    if same_split:
        from homo_dp.data.recorded_split import check_continued_split

        check_continued_split(config, saved.card.split, path)
    return Earlier(
        {name: tensor.clone() for name, tensor in saved.module.state_dict().items()}, ancestors
    )


def ancestors_of(privacy: Mapping[str, Any]) -> list[Ancestor]:
    """The runs that a model came out of, by the statement in its file; what cannot be read counts
    as not private.

    >>> ancestors_of({"data": "clinic", "private": True, "epsilon": 2.0, "delta": 1e-5})[0]["epsilon"]
    2.0
    >>> ancestors_of({"data": "clinic", "private": True, "epsilon": "none"})[0]["private"]
    False
    """
    before = privacy.get("continues")
    listed = (
        before if isinstance(before, list) and all(isinstance(one, dict) for one in before) else []
    )
    damaged = before is not None and listed is not before
    return [*map(_ancestor, listed), *([_ancestor({})] if damaged else []), _ancestor(privacy)]


def continued_statement(
    statement: Mapping[str, Any], earlier: Earlier | None, data: str
) -> dict[str, Any]:
    """The statement of a run with what its first weights add to it."""
    if earlier is None:
        return dict(statement)
    same = _same_data(earlier.ancestors, data)
    others = sorted({str(one["data"]) for one in earlier.ancestors if one not in same})
    sentence, notes = str(statement["statement"]), list(statement.get("notes", ()))
    if same and statement["private"]:
        sentence += f" {_together(statement, same)}"
    if others:
        names = ", ".join(others)
        notes.append(
            f"The first weights come from a model of other data ({names}), whose rows this run "
            "does not protect."
        )
    return {
        **statement,
        "statement": sentence,
        "notes": notes,
        "continues": list(earlier.ancestors),
    }


def _together(statement: Mapping[str, Any], same: Sequence[Ancestor]) -> str:
    start = "The first weights come from the same data, which costs more:"
    alike = all(
        one[key] == statement.get(key) for one in same for key in ("unit", "neighbouring_relation")
    )
    spent = [one["epsilon"] for one in (*same, statement)]
    if not alike or None in spent:
        return f"{start} the epsilons of all these runs add up."
    deltas = [one["delta"] for one in (*same, statement)]
    added = " + ".join(f"{delta:g}" for delta in deltas)
    return (
        f"{start} together at most epsilon {math.fsum(spent):.4g} at delta "
        f"{math.fsum(deltas):g} = {added}."
    )


def _same_data(ancestors: Sequence[Ancestor], data: str) -> list[Ancestor]:
    # a file that does not say may be of these rows
    return [one for one in ancestors if one["data"] in (None, data)]


def _ancestor(privacy: Mapping[str, Any]) -> Ancestor:
    epsilon, delta = (_number(privacy.get(key)) for key in ("epsilon", "delta"))
    texts = {key: value if isinstance(value := privacy.get(key), str) else None for key in _TEXTS}
    # null: the parties keep it to themselves
    known = epsilon is not None or privacy.get("epsilon", 0) is None
    private = privacy.get("private") is True and known and delta is not None
    return {**texts, "private": private, "epsilon": epsilon if private else None, "delta": delta}


_TEXTS = ("data", "unit", "neighbouring_relation")


def _number(value: object) -> float | None:
    usable = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
    return float(value) if usable and isinstance(value, int | float) else None
