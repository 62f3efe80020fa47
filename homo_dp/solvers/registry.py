"""The solvers by the name that ``train.solver`` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from homo_dp.solvers.exact_second_moment import ExactSecondMoment
from homo_dp.solvers.gradient import BoundedGradient
from homo_dp.solvers.plain import TrainedWeights
from homo_dp.solvers.second_moment import SecondMoment
from homo_dp.solvers.solver import Solver

# `auto` without train.auto is `sgd`: it is for any model.
SOLVERS: Mapping[str, type[Solver]] = {
    "auto": Solver,
    "sgd": Solver,
    "gradient": BoundedGradient,
    "second_moment": SecondMoment,
}
PLAIN_SOLVERS: Mapping[str, type[TrainedWeights]] = {
    "auto": TrainedWeights,
    "sgd": TrainedWeights,
    "gradient": TrainedWeights,
    "second_moment": ExactSecondMoment,
}
"""Those of runs that are marked NOT PRIVATE."""
