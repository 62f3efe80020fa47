"""Functions of one's own around local training and evaluation, under FederatedScope's names and
triggers.

Where a mechanism bounds the *result* of local training (`none`, `nbafl`, `dp_fedavg`), a hook may
change the model: what it does is clipped and noised like everything else. Where each step is
private already (`dp_sgd`, `dp_fedsgd`) or a mechanism is somebody's own, a hook gets copies: a
change made with rows in sight would leave the party without noise.

Hooks belong to a run made in Python, in this process; no plan and no config can name one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from homo_dp.core.errors import ConfigError
from homo_dp.privacy.errors import PrivacyError

TRIGGERS = (
    "on_fit_start",
    "on_epoch_start",
    "on_batch_start",
    "on_batch_forward",
    "on_batch_backward",
    "on_batch_end",
    "on_epoch_end",
    "on_fit_end",
)


@dataclass
class HookContext:
    """What a hook is given: where training is, and the model.

    Guarantees:
        - rows, labels and gradients are not in it;
        - with ``frozen``, ``model`` is a copy: changing it changes nothing.
    """

    mode: Literal["train", "test"]
    party: str
    round: int
    frozen: bool
    _module: nn.Module = field(repr=False)
    cur_epoch_i: int = 0
    cur_batch_i: int = 0
    num_train_batch: int = 0
    eval_metrics: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def model(self) -> nn.Module:
        """The model, or a copy of it."""
        if not self.frozen:
            return self._module
        made = copy.deepcopy(self._module)
        for parameter in made.parameters():
            parameter.grad = None
        return made


Hook = Callable[[HookContext], object]
NoiseInjector = Callable[[int, dict[str, Tensor]], Mapping[str, Tensor] | None]


class Hooks:
    """The hooks of one run, by trigger, in the order in which they are called."""

    def __init__(self) -> None:
        self.in_train: dict[str, list[Hook]] = {trigger: [] for trigger in TRIGGERS}
        self.in_eval: dict[str, list[Hook]] = {trigger: [] for trigger in TRIGGERS}
        self.injectors: list[NoiseInjector] = []

    def register(
        self, mode: Literal["train", "test"], hook: Hook, trigger: str, insert_pos: int | None
    ) -> None:
        """Add a hook at a trigger; ``insert_pos`` counts from 0, None and -1 are the end."""
        if trigger not in TRIGGERS:
            raise ConfigError(f"trigger={trigger}: must be one of {', '.join(TRIGGERS)}")
        if not callable(hook):
            raise ConfigError(f"hook={hook!r}: is not a function; give one that takes the context")
        there = (self.in_train if mode == "train" else self.in_eval)[trigger]
        if insert_pos is not None and not -1 <= insert_pos <= len(there):
            raise ConfigError(
                f"insert_pos={insert_pos}: must be -1 (the end) or from 0 to {len(there)}"
            )
        there.insert(len(there) if insert_pos in (None, -1) else int(insert_pos or 0), hook)

    def call(self, trigger: str, context: HookContext) -> None:
        """Call the hooks of a trigger."""
        for hook in (self.in_train if context.mode == "train" else self.in_eval)[trigger]:
            hook(context)

    def injected(self, round_number: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The global weights of a round after every noise injector.

        Guarantees:
            - an injector sees what was clipped and noised, and nothing else: what it adds is extra,
              and can only post-process;
            - names, shapes and types stay; a number that is not finite is refused.
        """
        found = {name: tensor.clone() for name, tensor in weights.items()}
        for injector in self.injectors:
            returned = injector(round_number, found)
            found = found if returned is None else dict(returned)
        for name, tensor in weights.items():
            given = found.get(name)
            if (
                not isinstance(given, Tensor)
                or given.shape != tensor.shape
                or len(found) != len(weights)
            ):
                raise PrivacyError(
                    f"register_noise_injector: {name} has another shape than before, or is gone"
                )
            if not torch.isfinite(given).all():
                raise PrivacyError(
                    f"register_noise_injector: {name} is not finite; add finite noise"
                )
        return {name: found[name].to(tensor.dtype) for name, tensor in weights.items()}


_active: ContextVar[Hooks | None] = ContextVar("hooks", default=None)


def active_hooks() -> Hooks | None:
    """The hooks of the run that is being built or run in this context, None where there are
    none.
    """
    return _active.get()


@contextmanager
def with_hooks(hooks: Hooks) -> Iterator[None]:
    """Let the run inside of the block have these hooks."""
    token = _active.set(hooks)
    try:
        yield
    finally:
        _active.reset(token)


class HookedSteps:
    """Calls the hooks of one fit: batches and epochs in order, whoever takes the steps."""

    def __init__(self, hooks: Hooks, context: HookContext, epoch: int) -> None:
        self.hooks, self.context, self.epoch = hooks, context, max(1, epoch)
        self._shown = False

    def start(self) -> None:
        """Before the first step."""
        self.hooks.call("on_fit_start", self.context)
        if self.context.num_train_batch:
            self._open()

    def gradient_is_there(self) -> None:
        """Between the gradient of a batch and its step; private training shows no gradient, and
        never calls it.
        """
        self._shown = True
        self.hooks.call("on_batch_forward", self.context)
        self.hooks.call("on_batch_backward", self.context)

    def end_of_batch(self) -> None:
        """After a step."""
        if not self._shown:
            self.gradient_is_there()
        self._shown = False
        self.hooks.call("on_batch_end", self.context)
        self.context.cur_batch_i += 1
        last = self.context.cur_batch_i >= self.context.num_train_batch
        if last or self.context.cur_batch_i % self.epoch == 0:
            self.hooks.call("on_epoch_end", self.context)
            self.context.cur_epoch_i += 1
        if not last:
            self._open()

    def end(self) -> None:
        """After the last step."""
        self.hooks.call("on_fit_end", self.context)

    def _open(self) -> None:
        if self.context.cur_batch_i % self.epoch == 0:
            self.hooks.call("on_epoch_start", self.context)
        self.hooks.call("on_batch_start", self.context)
