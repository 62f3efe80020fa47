"""Every solver that a config can name has an object, with privacy and without."""

from typing import get_args

from homo_dp.config.train import TrainConfig
from homo_dp.solvers.registry import PLAIN_SOLVERS, SOLVERS


def test_every_name_has_a_solver() -> None:
    names = set(get_args(TrainConfig.model_fields["solver"].annotation))
    assert set(SOLVERS) == set(PLAIN_SOLVERS) == names
