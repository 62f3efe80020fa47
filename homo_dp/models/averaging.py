"""The mean of the weights over rounds: free under DP (it only looks at released models) and less
noisy than the last.

``tail`` is the plain mean of the last part of the rounds, ``ema`` an exponential mean that forgets
the first rounds.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from homo_dp.core.errors import ConfigError

Kind = Literal["none", "tail", "ema"]


class WeightAverage:
    """Give it the global weights after each round; ask it for the model to publish.

    >>> average = WeightAverage("tail", rounds=4, tail=0.5)
    >>> for value in (9.0, 9.0, 1.0, 3.0):
    ...     average.add({"w": torch.tensor([value])})
    >>> average.value({"w": torch.tensor([3.0])})
    {'w': tensor([2.])}
    """

    def __init__(
        self, kind: Kind = "none", rounds: int = 1, tail: float = 0.5, decay: float = 0.9
    ) -> None:
        if kind not in ("none", "tail", "ema"):
            raise ConfigError(f"train.averaging={kind}: unknown; choose none, tail or ema")
        if not 0.0 < tail <= 1.0:
            raise ConfigError(
                f"train.averaging tail={tail}: must be above 0 and at most 1, the share of rounds "
                "to average"
            )
        if not 0.0 <= decay < 1.0:
            raise ConfigError(f"train.averaging decay={decay}: must be from 0 to below 1")
        self.kind = kind
        self.decay = decay
        self.skipped = rounds - math.ceil(rounds * tail) if kind == "tail" else 0
        self.added = 0
        # total weight of the rounds in the sum, which also corrects the start of an ema
        self._mass = 0.0
        self._sum: dict[str, Tensor] = {}

    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Take in the weights after one more round."""
        self.added += 1
        if self.kind == "none" or self.added <= self.skipped:
            return
        keep, take = (self.decay, 1.0 - self.decay) if self.kind == "ema" else (1.0, 1.0)
        self._mass = keep * self._mass + take
        for name, value in weights.items():
            if value.is_floating_point():
                old = self._sum.get(name)
                new = value.detach().to(torch.float64) * take
                self._sum[name] = new if old is None else old.mul_(keep).add_(new)

    def forget(self) -> None:
        """Leave out all rounds so far: the next model is taken as it is."""
        self._mass, self._sum = 0.0, {}

    def value(self, last: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The averaged weights; ``last`` gives types, what cannot be averaged, and the answer
        before any average.
        """
        if not self._mass:
            return dict(last)
        return {
            name: (self._sum[name] / self._mass).to(value.dtype) if name in self._sum else value
            for name, value in last.items()
        }

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep to go on after a crash."""
        counters = torch.tensor([float(self.added), self._mass], dtype=torch.float64)
        return {
            "counters": counters,
            **{f"sum.{name}": value for name, value in self._sum.items()},
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        added, self._mass = state["counters"].tolist()
        self.added = int(added)
        self._sum = {
            name.removeprefix("sum."): value.clone()
            for name, value in state.items()
            if name != "counters"
        }
