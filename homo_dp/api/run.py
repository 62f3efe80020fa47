"""A run made in Python before it starts, so that functions of one's own can be put around its
training.
"""

from __future__ import annotations

from typing import Any

from homo_dp.api.result import Result
from homo_dp.api.training import fit
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.train_hooks import Hook, Hooks, NoiseInjector, with_hooks


class Run:
    """A training with hooks; takes what ``homo_dp.fit`` takes.

    The names and triggers are FederatedScope's: ``on_fit_start``, ``on_epoch_start``,
    ``on_batch_start``, ``on_batch_forward``, ``on_batch_backward``, ``on_batch_end``,
    ``on_epoch_end``, ``on_fit_end``.

    Guarantees:
        - a hook changes what leaves a party only where that is clipped and noised afterwards
          (``dp_fedavg``, ``nbafl``) or nothing is private (``none``); elsewhere it works on copies;
        - a noise injector adds to weights that are noised and charged already, never instead of
          that.

    >>> run = Run(epsilon=4, settings={"train.rounds": 2}, progress=False)
    >>> seen = []
    >>> run.register_hook_in_train(lambda ctx: seen.append((ctx.party, ctx.round)), "on_fit_end")
    >>> run.train().epsilon <= 4, seen[:3]
    (True, [('party_1', 1), ('party_2', 1), ('party_3', 1)])
    """

    def __init__(self, parties: Any = None, **arguments: Any) -> None:
        self._parties, self._arguments = parties, arguments
        self._hooks = Hooks()

    def register_hook_in_train(
        self, new_hook: Hook, trigger: str, insert_pos: int | None = None
    ) -> None:
        """Call ``new_hook(ctx)`` at a trigger of every party's local training."""
        self._hooks.register("train", new_hook, trigger, insert_pos)

    def register_hook_in_eval(
        self, new_hook: Hook, trigger: str, insert_pos: int | None = None
    ) -> None:
        """Call ``new_hook(ctx)`` at a trigger of the scoring after each round; its end has
        ``ctx.eval_metrics``.
        """
        self._hooks.register("test", new_hook, trigger, insert_pos)

    def register_noise_injector(self, func: NoiseInjector) -> None:
        """Let ``func(round, weights)`` change the new global weights of each round, in place or by
        what it returns.

        It sees what is published anyway, so it costs nothing and counts for nothing: the guarantee
        is the mechanism's.
        """
        if not callable(func):
            raise ConfigError(
                f"func={func!r}: is not a function; give one that takes the round and the weights"
            )
        self._hooks.injectors.append(func)

    def train(self) -> Result:
        """Train, as ``homo_dp.fit`` does."""
        with with_hooks(self._hooks):
            return fit(self._parties, **self._arguments)
