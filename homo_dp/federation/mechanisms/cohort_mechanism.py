"""A mechanism over sums: users send bounded rows, the aggregator adds them up and combines the sum.

A mechanism that is such a sum has its users trained together, thousands in one process, where the
data have a user column; between parties it works as every other mechanism.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from homo_dp.federation.mechanisms.base import (
    Combined,
    Mechanism,
    PartyPlan,
    Release,
    Update,
    Weights,
)
from homo_dp.federation.mechanisms.flat_weights import Layout
from homo_dp.federation.protocol.messages import COUNT, NUMBER, Kinds, Signature, extended
from homo_dp.federation.protocol.round_sums import RoundSum

Hook = TypeVar("Hook", bound=Callable[..., Any])


def batched(hook: Hook) -> Hook:
    """Mark a hook of local training that users who are trained together can do without.

    That training clips to the clip norm after every step where ``privacy.clip_each_step`` says so,
    and hands the differences to ``contributions``; a mechanism with a hook that does anything else
    has its users trained one by one.
    """
    hook.batched = True  # type: ignore[attr-defined]
    return hook


@dataclass(frozen=True)
class Contributions:
    """What users send: one clipped row each, and one centred bit; with the parties' noise where
    they add it.
    """

    rows: Tensor
    bits: Tensor


@dataclass
class CohortSum:
    """What has come in of a round so far, and the clip norm that all of it was clipped to."""

    clip_norm: float
    updates: Tensor
    bits: float = 0.0
    replies: int = 0

    def add(self, sent: Contributions) -> None:
        """Take in some users."""
        self.updates += sent.rows.sum(0, dtype=torch.float64)
        self.bits += float(sent.bits.sum())
        self.replies += len(sent.rows)


class CohortMechanism(Mechanism):
    """Bounds the row of every user, draws who takes part, and combines the sum of what they sent.

    Guarantees every subclass must keep, beside those of a mechanism:
        - ``contributions`` bounds each row by the clip norm it is given, whatever the row holds;
        - ``combine`` divides by a number that was fixed before anyone replied.
    """

    clip_norm: float  # of the round that is open

    @abstractmethod
    def draw(self) -> Tensor:
        """The numbers of the users of one round, out of the declared population."""

    def draw_of(self, users: int) -> tuple[Tensor, int]:
        """Who takes part of the users that one party holds, and how many are to be trained whoever
        they are.

        More are trained than were drawn where the time that it takes could tell who was.
        """
        drawn = self.draw()
        return drawn, len(drawn)

    def open_round(self, broadcast: Mapping[str, float]) -> None:
        """Called at a party that holds many users with the numbers that came with the weights."""

    @abstractmethod
    def contributions(self, rows: Tensor, clip_norm: float, within: Tensor) -> Contributions:
        """Clip one row a user, make its bit, and add the party's noise where it is added there.

        ``within`` is false for users whom a projection between batches has clipped already.
        """

    @abstractmethod
    def received(self, update: Update, layout: Layout, clip_norm: float) -> Contributions:
        """The reply of one party, as a sum takes it in."""

    @abstractmethod
    def combine(self, total: CohortSum, current: Weights, round_number: int) -> Combined:
        """The weights that follow from the sum of a round."""

    @abstractmethod
    def party_sigma(self, clip_norm: float) -> float:
        """The standard deviation of the noise that each party adds itself; 0 where the
        aggregator adds it.
        """

    @property
    def trains_together(self) -> bool:
        """Whether users may be trained together, past the hooks of local training."""
        hooks = [(getattr(type(self), name), getattr(Mechanism, name)) for name in _HOOKS]
        return all(own is empty or getattr(own, "batched", False) for own, empty in hooks)

    def layout(self, weights: Weights) -> Layout:
        """How the weights that are trained lie in one vector: by their names, which no file or
        message changes.
        """
        return Layout.of(
            {name: weights[name] for name in sorted(weights)}, self.config.privacy.public_tensors
        )

    def open_sum(self, current: Weights) -> CohortSum:
        """An empty sum for a round with the clip norm of now."""
        return CohortSum(
            self.clip_norm, torch.zeros(self.layout(current).size, dtype=torch.float64)
        )

    def release(self, total: CohortSum, plan: PartyPlan) -> Release:
        """The answer of a party that holds all users: the sum over its cohort, with whatever
        noise the users added.
        """
        event = plan.events["aggregator"] if self.ledger_keeper == "party" else None
        info = {"bits": total.bits, "replies": total.replies}
        return Release(
            {_SUM: total.updates}, event, self.party_sigma(total.clip_norm), plan.relation, info
        )

    @property
    def kinds(self) -> Kinds:
        table = super().kinds
        return extended(table, {"update": _SUM_FIELDS}) if self.one_party_holds_all else table

    def signature_of(self, weights: Weights, asked: RoundSum | None) -> Signature:
        if not self.one_party_holds_all or asked is not None:
            return super().signature_of(weights, asked)
        return {_SUM: ((self.layout(weights).size,), torch.float64)}

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        total, layout = self.open_sum(current), self.layout(current)
        for update in updates:
            if self.one_party_holds_all:
                sums, replies = update.tensors[_SUM], int(update.info["replies"])
                total = CohortSum(total.clip_norm, sums, update.info["bits"], replies)
            else:
                total.add(self.received(update, layout, total.clip_norm))
        return self.combine(total, current, round_number)


_SUM = "cohort_sum"
_SUM_FIELDS = {"bits": NUMBER, "replies": COUNT}
_HOOKS = ("before_fit", "after_batch", "after_fit")
