"""The plain solver asks nothing first, and a table of weights comes back as it was."""

import pytest
import torch

from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.protocol.round_sums import RoundSum
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.solvers.solver import Solver, as_table, as_weights
from tests.federation.small import (
    small_config,
    small_mechanism,
)


def test_the_plain_solver_asks_no_sum_and_steps_along_the_gradient() -> None:
    config = small_config(
        privacy__mechanism="dp_fedsgd",
        train__local_steps=None,
        train__sample_rate=1.0,
        train__learning_rate=0.5,
        train__weight_decay=0.1,
    )
    mechanism = small_mechanism(config, {"a": 20})
    assert isinstance(mechanism, DpFedSgd)
    solver = mechanism.solver
    assert type(solver) is Solver
    assert (solver.sums, solver.state(), solver.tensors({}, 1, 1), solver.signature(1)) == (
        {},
        {},
        {},
        {},
    )
    current = {"w": torch.tensor([2.0])}
    step = solver.step({"w": torch.tensor([40.0])}, 20.0, current, 1)
    assert step.weights["w"].tolist() == pytest.approx([2.0 - 0.5 * (40 / 20 + 0.1 * 2)])
    assert not step.whole


def test_a_sum_that_no_solver_asked_is_refused() -> None:
    config = small_config(privacy__mechanism="dp_fedsgd", train__local_steps=None)
    mechanism = small_mechanism(config, {"a": 20})
    assert isinstance(mechanism, DpFedSgd)
    asked = RoundSum("second_moment", PrivateSum(3, 1.0, 1.0, 20), "")
    with pytest.raises(PrivacyError, match="second_moment"):
        mechanism.solver.row_sum(None, asked)  # type: ignore[arg-type]


def test_a_table_of_weights_comes_back() -> None:
    weights = {"b": torch.tensor([1.0, 2.0]), "w": torch.arange(6.0).reshape(2, 3)}
    table = as_table(weights)
    assert table.tolist() == [[0.0, 1.0, 2.0, 1.0], [3.0, 4.0, 5.0, 2.0]]
    found = as_weights(table, weights)
    assert all(torch.equal(found[name], weights[name]) for name in weights)
