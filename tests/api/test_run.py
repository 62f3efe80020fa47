"""Hooks of a run made in Python: called at every trigger, and unable to take privacy away."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import homo_dp
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.train_hooks import TRIGGERS, HookContext
from homo_dp.privacy.errors import PrivacyError

SETTINGS: dict[str, Any] = {
    "train.auto": False,
    "train.rounds": 2,
    "train.local_steps": 4,
    "train.sample_rate": 0.5,
}
WITHOUT = SETTINGS | {"privacy.mechanism": "none"}
NBAFL = SETTINGS | {"privacy.mechanism": "nbafl", "nbafl.clip_norm": 1.0}


def run_with(settings: Mapping[str, Any], epsilon: float | None = None) -> homo_dp.Run:
    return homo_dp.Run(settings=dict(settings), epsilon=epsilon, progress=False)


def huge(context: HookContext) -> None:
    """What a hook that wants a record to be seen would do."""
    with torch.no_grad():
        for parameter in context.model.parameters():
            parameter.fill_(1000.0)


def largest(result: homo_dp.Result) -> float:
    return max(float(tensor.abs().max()) for tensor in result.model.module.state_dict().values())


@pytest.mark.parametrize(("settings", "epsilon"), [(SETTINGS, 4.0), (WITHOUT, None), (NBAFL, None)])
def test_every_trigger_is_called_in_the_order_of_training(
    settings: Mapping[str, Any], epsilon: float | None
) -> None:
    run = run_with(settings, epsilon)
    calls: list[tuple[str, int, str, int, int]] = []
    for trigger in TRIGGERS:

        def note(context: HookContext, trigger: str = trigger) -> None:
            calls.append(
                (context.party, context.round, trigger, context.cur_epoch_i, context.cur_batch_i)
            )

        run.register_hook_in_train(note, trigger)
    run.train()
    batch = ["on_batch_start", "on_batch_forward", "on_batch_backward", "on_batch_end"]
    epoch = ["on_epoch_start", *batch, *batch, "on_epoch_end"]  # a rate of 0.5: two batches
    first = [call[2] for call in calls if call[:2] == ("party_1", 1)]
    assert first == ["on_fit_start", *epoch, *epoch, "on_fit_end"]
    assert {call[:2] for call in calls} == {
        (f"party_{n}", number) for n in (1, 2, 3) for number in (1, 2)
    }


def test_hooks_are_called_in_the_order_that_insert_pos_gives() -> None:
    run, order = run_with(WITHOUT), list[str]()
    run.register_hook_in_train(lambda ctx: order.append("b"), "on_fit_start")
    run.register_hook_in_train(lambda ctx: order.append("a"), "on_fit_start", 0)
    run.register_hook_in_train(lambda ctx: order.append("c"), "on_fit_start", -1)
    run.train()
    assert order[:3] == ["a", "b", "c"]


@pytest.mark.parametrize("trigger", ["on_batch_end", "on_batch_start", "on_fit_end"])
def test_a_hook_cannot_change_what_a_private_step_releases(trigger: str) -> None:
    run = run_with(SETTINGS, 4.0)
    run.register_hook_in_train(huge, trigger)
    assert largest(run.train()) < 100


def test_a_mechanism_of_ones_own_gets_copies_too() -> None:
    from homo_dp.federation.mechanisms.nbafl import Nbafl

    class Mine(Nbafl):
        """Whether it still clips is its author's affair."""

    run = homo_dp.Run(
        settings=NBAFL | {"privacy.mechanism": "nbafl"}, mechanism=Mine, progress=False
    )
    seen: list[bool] = []
    run.register_hook_in_train(lambda ctx: seen.append(ctx.frozen), "on_fit_start")
    run.train()
    assert set(seen) == {True}


def test_what_a_hook_does_before_the_clip_is_clipped() -> None:
    run = run_with(NBAFL | {"nbafl.epsilon": 1e6})  # hardly any noise, to see the clip
    run.register_hook_in_train(huge, "on_fit_end")
    weights = torch.cat(
        [tensor.reshape(-1) for tensor in run.train().model.module.state_dict().values()]
    )
    assert float(weights.norm()) == pytest.approx(1.0, abs=0.01)


def test_without_privacy_a_hook_may_do_what_it_likes() -> None:
    run = run_with(WITHOUT)
    run.register_hook_in_train(huge, "on_fit_end")
    assert largest(run.train()) == 1000.0


def test_the_context_holds_no_rows() -> None:
    run, found = run_with(SETTINGS, 4.0), set[str]()
    run.register_hook_in_train(lambda ctx: found.update(vars(ctx)), "on_batch_end")
    run.register_hook_in_train(
        lambda ctx: found.update(
            ["grad"] if any(p.grad is not None for p in ctx.model.parameters()) else []
        ),
        "on_batch_end",
    )
    run.train()
    assert not found & {"features", "labels", "data", "grad", "loss"}


def test_evaluation_has_hooks_and_its_numbers() -> None:
    run, seen = run_with(SETTINGS, 4.0), list[float | None]()
    run.register_hook_in_eval(huge, "on_fit_start")
    run.register_hook_in_eval(lambda ctx: seen.append(ctx.eval_metrics["test_acc"]), "on_fit_end")
    result = run.train()
    assert seen == list(result.rounds["test_acc"])
    assert largest(result) < 100


def test_a_noise_injector_adds_to_noised_weights_and_costs_nothing() -> None:
    plain, run = run_with(SETTINGS, 4.0).train(), run_with(SETTINGS, 4.0)
    rounds: list[int] = []

    def inject(number: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        rounds.append(number)
        return {name: tensor + 500.0 for name, tensor in weights.items()}

    run.register_noise_injector(inject)
    result = run.train()
    assert rounds == [1, 2]
    assert largest(result) > 400
    assert result.epsilon == plain.epsilon
    # the mechanism's own noise is as before
    assert result.privacy["parties"] == plain.privacy["parties"]


@pytest.mark.parametrize(
    "bad",
    [
        lambda n, w: {},
        lambda n, w: {k: v * math.nan for k, v in w.items()},
        lambda n, w: {k: v[:0] for k, v in w.items()},
    ],
)
def test_an_injector_that_breaks_the_model_is_refused(bad: Any) -> None:
    run = run_with(SETTINGS, 4.0)
    run.register_noise_injector(bad)
    with pytest.raises(PrivacyError, match="register_noise_injector"):
        run.train()


def test_what_cannot_be_a_hook_is_refused() -> None:
    run = run_with(SETTINGS, 4.0)
    with pytest.raises(ConfigError, match="trigger=on_end: must be one of on_fit_start"):
        run.register_hook_in_train(huge, "on_end")
    with pytest.raises(ConfigError, match="insert_pos=3"):
        run.register_hook_in_eval(huge, "on_fit_end", 3)
    with pytest.raises(ConfigError, match="is not a function"):
        run.register_noise_injector(3)  # type: ignore[arg-type]
