"""Hooks around training: order, copies where the result is private, and injectors that only
post-process.
"""

import math

import pytest
import torch
from torch import nn

from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.train_hooks import (
    TRIGGERS,
    HookContext,
    HookedSteps,
    Hooks,
    active_hooks,
    with_hooks,
)
from homo_dp.privacy.errors import PrivacyError


def context(*, frozen: bool = False, batches: int = 0) -> HookContext:
    return HookContext("train", "a", 1, frozen, nn.Linear(2, 1), num_train_batch=batches)


def test_steps_call_every_trigger_in_order() -> None:
    hooks, called = Hooks(), []  # type: tuple[Hooks, list[str]]
    for trigger in TRIGGERS:
        hooks.register("train", lambda where, name=trigger: called.append(name), trigger, None)  # type: ignore[misc]
    steps = HookedSteps(hooks, context(batches=3), epoch=2)
    steps.start()
    for _ in range(3):
        steps.end_of_batch()
    steps.end()
    batch = ["on_batch_start", "on_batch_forward", "on_batch_backward", "on_batch_end"]
    assert called == [
        "on_fit_start",
        *("on_epoch_start", *batch, *batch, "on_epoch_end"),
        *("on_epoch_start", *batch, "on_epoch_end"),
        "on_fit_end",
    ]
    assert (steps.context.cur_batch_i, steps.context.cur_epoch_i) == (3, 2)


def test_a_gradient_that_was_shown_is_not_shown_again() -> None:
    hooks, called = Hooks(), []  # type: tuple[Hooks, list[str]]
    hooks.register("train", lambda where: called.append("backward"), "on_batch_backward", None)
    steps = HookedSteps(hooks, context(batches=1), epoch=1)
    steps.start()
    steps.gradient_is_there()
    steps.end_of_batch()
    assert called == ["backward"]


def test_positions_and_what_is_refused() -> None:
    hooks, called = Hooks(), []  # type: tuple[Hooks, list[int]]
    for number, place in ((1, None), (2, 0), (3, -1)):
        hooks.register(
            "test",
            lambda where, number=number: called.append(number),  # type: ignore[misc]
            "on_fit_end",
            place,
        )
    hooks.call("on_fit_end", HookContext("test", "a", 1, True, nn.Linear(1, 1)))
    assert called == [2, 1, 3]
    for trigger, place, words in [
        ("on_lunch", None, "trigger=on_lunch"),
        ("on_fit_end", 9, "insert_pos=9"),
    ]:
        with pytest.raises(ConfigError, match=words):
            hooks.register("test", print, trigger, place)


def test_a_frozen_model_is_a_copy_without_gradients() -> None:
    found = context(frozen=True)
    found._module(torch.ones(1, 2)).sum().backward()
    shown = found.model
    assert all(parameter.grad is None for parameter in shown.parameters())
    with torch.no_grad():
        next(shown.parameters()).fill_(7.0)
    assert not (next(found._module.parameters()) == 7.0).any()
    assert context().model is not shown


def test_injectors_see_a_copy_and_may_change_numbers_only() -> None:
    weights, hooks = {"w": torch.zeros(2)}, Hooks()
    hooks.injectors.append(lambda number, found: {"w": found["w"].double() + number})
    changed = hooks.injected(3, weights)
    assert (changed["w"].tolist(), changed["w"].dtype, weights["w"].tolist()) == (
        [3.0, 3.0],
        torch.float32,
        [0.0, 0.0],
    )
    for broken in ({"w": torch.zeros(3)}, {}, {"w": torch.zeros(2), "v": torch.zeros(1)}):
        hooks.injectors[:] = [lambda number, found, broken=broken: broken]  # type: ignore[misc]
        with pytest.raises(PrivacyError, match="another shape than before, or is gone"):
            hooks.injected(1, weights)
    hooks.injectors[:] = [lambda number, found: {"w": torch.tensor([0.0, math.nan])}]
    with pytest.raises(PrivacyError, match="w is not finite"):
        hooks.injected(1, weights)


def test_hooks_belong_to_one_block() -> None:
    hooks = Hooks()
    with with_hooks(hooks):
        assert active_hooks() is hooks
    assert active_hooks() is None
