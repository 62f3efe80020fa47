"""Work on rows that was not charged leaves no trace and no word: hostile weights, repeated rounds, failing fits."""

from __future__ import annotations

from pathlib import Path

import opacus  # noqa: F401  (takes seconds that no round of these tests should wait for)
import pytest
import torch

from homo_dp.federation.ids import AGGREGATOR
from homo_dp.federation.local_fit import LocalFit
from homo_dp.federation.mechanism import Weights
from homo_dp.federation.messages import Message
from homo_dp.federation.party_session import PartySession
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config, zeros

DEAD = 3.3e38  # a finite float32; one step of weight decay takes it over the largest


def asked(number: int, bias: float = 0.0, kind: str = "weights") -> Message:
    tensors: Weights = zeros() | {"linear.bias": torch.tensor([bias])}
    return Message(RUN, number, AGGREGATOR, "a", kind, tensors)


def started(run: SmallRun) -> PartySession:
    """A session that has agreed to the plan, and counts its fits in ``fits``."""
    session = run.party_session("a")
    session._take(Message(RUN, 0, AGGREGATOR, "a", "plan", {}, {"plan": run.plan()}))
    return session


def test_weights_that_overflow_buy_no_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: a dead weight makes each update overflow, so that 1,000 fits end in one momentum under one charge."""
    fits: list[int] = []
    fit = LocalFit.fit

    def counted(self: LocalFit, *arguments: object) -> object:
        fits.append(1)
        return fit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalFit, "fit", counted)
    run = SmallRun(tmp_path, small_config(train__momentum=0.9, train__weight_decay=0.9), "a")
    session = started(run)
    for _ in range(20):
        session._take(asked(1, DEAD))
    assert fits == []
    session._take(asked(1))
    assert session.duty.ledger is not None
    assert len(fits) == len(session.duty.ledger.rows()) == 1
