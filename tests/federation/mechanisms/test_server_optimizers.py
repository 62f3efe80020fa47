"""Server optimisers against the update rules of Reddi et al. 2021, written out by hand."""

import pytest
import torch

from homo_dp.config.schema import ServerOptimizerConfig
from homo_dp.federation.mechanisms.server_optimizers import ServerOptimizer

CURRENT = {"w": torch.tensor([1.0, 2.0])}
MEAN = {"w": torch.tensor([2.0, 0.0])}


def test_fedavg_takes_the_mean() -> None:
    moved = ServerOptimizer(ServerOptimizerConfig()).step(CURRENT, MEAN)
    assert torch.equal(moved["w"], MEAN["w"])


def test_fedavg_with_a_rate_goes_part_of_the_way() -> None:
    moved = ServerOptimizer(ServerOptimizerConfig(learning_rate=0.5)).step(CURRENT, MEAN)
    assert torch.allclose(moved["w"], torch.tensor([1.5, 1.0]))


def test_fedavgm_keeps_its_velocity() -> None:
    optimizer = ServerOptimizer(ServerOptimizerConfig(name="fedavgm", momentum=0.5))
    first = optimizer.step(CURRENT, MEAN)
    second = optimizer.step(first, first)
    assert torch.allclose(first["w"], MEAN["w"])
    assert torch.allclose(second["w"], first["w"] + 0.5 * (MEAN["w"] - CURRENT["w"]))


def test_fedadam_first_step() -> None:
    config = ServerOptimizerConfig(
        name="fedadam", learning_rate=0.1, beta1=0.9, beta2=0.99, tau=0.001
    )
    moved = ServerOptimizer(config).step(CURRENT, MEAN)
    delta = MEAN["w"] - CURRENT["w"]
    second_moment = 0.99 * 0.001**2 + 0.01 * delta**2
    expected = CURRENT["w"] + 0.1 * (0.1 * delta) / (second_moment.sqrt() + 0.001)
    assert torch.allclose(moved["w"], expected)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_state_continues_where_it_stopped(name: str) -> None:
    config = ServerOptimizerConfig.model_validate({"name": name})
    optimizer = ServerOptimizer(config)
    optimizer.step(CURRENT, MEAN)
    resumed = ServerOptimizer(config)
    resumed.restore(optimizer.state())
    assert torch.equal(optimizer.step(MEAN, CURRENT)["w"], resumed.step(MEAN, CURRENT)["w"])


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam"])
def test_tensors_that_are_no_numbers_to_move_stay_as_they_are(name: str) -> None:
    """Declared public buffers of integers or flags: a moved one would have another type and be
    refused by parties.
    """
    fixed = {"steps": torch.tensor(7), "flags": torch.tensor([True, False])}
    optimizer = ServerOptimizer(
        ServerOptimizerConfig.model_validate({"name": name, "learning_rate": 0.5})
    )
    moved = optimizer.step({"w": torch.zeros(2), **fixed}, {"w": torch.ones(2), **fixed})
    assert moved["w"].any()
    assert all(
        moved[key].dtype == tensor.dtype and moved[key].equal(tensor)
        for key, tensor in fixed.items()
    )
