"""What a round gives: a party's release, its update as the aggregator sees it, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from homo_dp.federation.protocol.round_sums import SUM, RoundSum
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.privacy.accounting.dp_event import DpEvent


@dataclass(frozen=True)
class Release:
    """Tensors that may leave, with the event that covers them and the noise that was applied.

    ``event`` is None only where the noise is added later by a trusted aggregator, or in a run
    marked NOT PRIVATE.
    """

    tensors: Weights
    event: DpEvent | None
    sigma: float
    relation: str
    info: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_sum(cls, asked: RoundSum, released: Tensor) -> Self:
        """The noised part of a sum that a round asked."""
        found = asked.private_sum
        return cls({SUM: released}, asked.event, found.party_sigma, found.relation)


@dataclass(frozen=True)
class Update:
    """One party's checked reply as the aggregator sees it."""

    party: str
    tensors: Weights
    weight: float
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Combined:
    """The outcome of a round at the aggregator; ``event`` and ``sigma`` where the aggregator's
    ledger pays for it.

    A ``discarded`` round is paid for and moves nothing. Weights that are ``whole`` are no step from
    those before: they are the model, of which no mean over rounds is taken.
    """

    weights: Weights
    event: DpEvent | None = None
    sigma: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    discarded: bool = False
    whole: bool = False
    curves: Mapping[str, Any] = field(default_factory=dict)  # of released metrics
    # released metrics of each party alone
    by_party: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
