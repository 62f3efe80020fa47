"""Optimiser state through named tensors: training goes on as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from homo_dp.privacy.engine.optimizer_state import pack_optimizer, unpack_optimizer
from homo_dp.privacy.errors import PrivacyError

KINDS: list[Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.Adam(parameters, lr=0.1),
]


def _steps(weight: nn.Parameter, optimizer: torch.optim.Optimizer, count: int) -> None:
    for number in range(count):
        weight.grad = torch.full_like(weight, 0.5 + number)
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_optimiser_steps_on(
    kind: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    whole = nn.Parameter(torch.ones(3))
    optimizer = kind([whole])
    _steps(whole, optimizer, 4)
    packed, again = pack_optimizer(optimizer), nn.Parameter(whole.detach().clone())
    restored = kind([again])
    unpack_optimizer(restored, packed)
    _steps(whole, optimizer, 3)
    _steps(again, restored, 3)
    torch.testing.assert_close(whole, again)


def test_the_packed_state_is_a_copy() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    _steps(weight, optimizer, 1)
    packed = pack_optimizer(optimizer)
    before = {name: tensor.clone() for name, tensor in packed.items()}
    _steps(weight, optimizer, 2)
    assert all(torch.equal(packed[name], before[name]) for name in before)


def test_a_state_of_another_model_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    rate = pack_optimizer(optimizer)
    with pytest.raises(PrivacyError, match="has shape"):
        unpack_optimizer(optimizer, {**rate, "optimizer.state.0.momentum_buffer": torch.ones(4)})
    with pytest.raises(PrivacyError, match="belongs to no parameter"):
        unpack_optimizer(optimizer, {**rate, "optimizer.state.7.momentum_buffer": torch.ones(3)})
    with pytest.raises(PrivacyError, match="is missing"):
        unpack_optimizer(optimizer, {})
