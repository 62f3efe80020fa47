"""The short way to step plain SGD does what torch's own step does, and leaves everything else to
torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from homo_dp.privacy.engine.sgd import is_plain_sgd, plain_sgd_step, views


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"nesterov": True, "momentum": 0.5}]
)
def test_steps_are_torch_s(count: int, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(3, 2, generator=generator) for _ in range(count)]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    one, other = (
        torch.optim.SGD(ours, lr=0.3, **options),
        torch.optim.SGD(theirs, lr=0.3, **options),
    )
    for _ in range(3):
        for mine, yours in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(3, 2, generator=generator)
            yours.grad = mine.grad.clone()
        gradients = [parameter.grad for parameter in ours if parameter.grad is not None]
        if not plain_sgd_step(one, ours, gradients):
            one.step()
        other.step()
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours)


def test_only_plain_sgd_is_plain() -> None:
    weight = nn.Parameter(torch.ones(1))
    assert is_plain_sgd(torch.optim.SGD([weight], lr=0.1))
    assert not is_plain_sgd(torch.optim.Adam([weight], lr=0.1))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    hooked = torch.optim.SGD([weight], lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    assert not is_plain_sgd(hooked)


def test_views_share_memory() -> None:
    flat = torch.zeros(6)
    first, second = views(flat, [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))])
    first.fill_(1)
    second.fill_(2)
    assert flat.tolist() == [1, 1, 1, 1, 2, 2]


def test_plain_sgd_is_told_from_sgd_that_does_more() -> None:
    weight = nn.Parameter(torch.ones(3))
    assert is_plain_sgd(torch.optim.SGD([weight], lr=0.1))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=0.1, weight_decay=0.1))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=torch.tensor(0.1)))
    assert not is_plain_sgd(torch.optim.Adam([weight], lr=0.1))
    watched = torch.optim.SGD([weight], lr=0.1)
    calls: list[int] = []
    watched.register_step_post_hook(lambda *_: calls.append(1))
    assert not is_plain_sgd(watched)
    weight.grad = torch.ones(3)
    assert not plain_sgd_step(watched, [weight], [weight.grad])
    assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("count", [1, 40])
def test_a_hook_before_steps_may_replace_or_remove_gradients_as_in_torch(count: int) -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(count + 1)]
    optimizer = torch.optim.SGD(weights, lr=0.5)

    def replace(*_: Any) -> None:
        for weight in weights:
            weight.grad = torch.full((2,), 4.0)
        weights[-1].grad = None

    optimizer.register_step_pre_hook(replace)
    gradients = [torch.ones(2) for _ in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    assert plain_sgd_step(optimizer, weights, gradients)
    assert [weight.tolist() for weight in weights] == [[-1, -1]] * count + [[1, 1]]


@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook]
)
def test_hooks_on_all_optimizers_are_called(register: Any) -> None:
    weight = nn.Parameter(torch.ones(1))
    handle = register(lambda *_: None)
    try:
        assert not is_plain_sgd(torch.optim.SGD([weight], lr=0.1))
    finally:
        handle.remove()
