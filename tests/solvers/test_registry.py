"""Every solver that a mechanism's record names has an object, with privacy and without."""

from typing import get_args

from homo_dp.config.mechanisms import DP_FEDSGD, NONE
from homo_dp.config.train import TrainConfig
from homo_dp.solvers.plain import TrainedWeights
from homo_dp.solvers.registry import PLAIN_SOLVERS, SOLVERS, plain_solver_class, solver_class
from homo_dp.solvers.solver import Solver


def test_every_name_has_a_solver() -> None:
    assert set(SOLVERS) == set(get_args(TrainConfig.model_fields["solver"].annotation))
    assert set(SOLVERS) == {"auto", *DP_FEDSGD.solvers}
    assert set(PLAIN_SOLVERS) == {"auto", *NONE.solvers}
    assert all(issubclass(solver_class(name), Solver) for name in SOLVERS)
    assert all(issubclass(plain_solver_class(name), TrainedWeights) for name in PLAIN_SOLVERS)
