"""The solvers by the name that ``train.solver`` gives them; a run loads the one that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homo_dp.solvers.plain import TrainedWeights
    from homo_dp.solvers.solver import Solver

# `auto` without train.auto is `sgd`: it is for any model.
SOLVERS: Mapping[str, str] = {
    "auto": "solver:Solver",
    "sgd": "solver:Solver",
    "gradient": "gradient:BoundedGradient",
    "second_moment": "second_moment:SecondMoment",
}
PLAIN_SOLVERS: Mapping[str, str] = {
    "auto": "plain:TrainedWeights",
    "sgd": "plain:TrainedWeights",
    "second_moment": "exact_second_moment:ExactSecondMoment",
}
"""Those of runs that are marked NOT PRIVATE."""


def solver_class(name: str) -> type[Solver]:
    """The solver of a mechanism whose round is one noisy sum."""
    found: type[Solver] = _loaded(SOLVERS[name])
    return found


def plain_solver_class(name: str) -> type[TrainedWeights]:
    """The solver of a run without privacy."""
    found: type[TrainedWeights] = _loaded(PLAIN_SOLVERS[name])
    return found


def _loaded(where: str) -> Any:
    module, _, kind = where.partition(":")
    return getattr(import_module(f"homo_dp.solvers.{module}"), kind)
