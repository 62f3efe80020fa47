"""Masked sums over messages: both sides, with every message encoded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.mechanisms.round_sums import RoundSum
from homo_dp.federation.protocol.messages import AGGREGATOR, Message, decode, encode
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_rounds import AggregatorSums, simulated_sums
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum

RUN = "run-1"


class _Masked:
    """Stands for a mechanism, of which only the masked sum is asked for."""

    def __init__(self, found: PrivateSum) -> None:
        self.masked_sum = found
        self.sums: dict[int, RoundSum] = {}
        self.rounds = 3


@dataclass
class Room:
    """Parties and an aggregator, with every message through its bytes; some messages of parties are lost."""

    sums: AggregatorSums
    parties: dict[str, PartySums]
    found: PrivateSum
    mute: Callable[[Message], bool]

    def ask(self, questions: Sequence[Message], heard: Mapping[str, Message]) -> Waiting[None]:
        for question in questions:
            answer = self.parties[question.recipient].handle(decode(encode(question)))
            if not self.mute(answer):
                self.sums.hear(decode(encode(answer)), question.round)
        yield from ()

    def meet(self) -> None:
        assert list(self.sums.meeting(self.ask)) == []

    def open(self, number: int = 1) -> None:
        assert list(self.sums.opening(number, self.ask)) == []


def started(
    parties: int = 4,
    dropouts: int = 0,
    rows: int = 100,
    mute: Callable[[Message], bool] = lambda _: False,
) -> Room:
    """Parties that have met."""
    found = PrivateSum(50, 1.0, 2.0, rows, share=NoiseShare(parties, dropouts))
    made = simulated_sums(RUN, [f"p{number}" for number in range(parties)], _Masked(found))  # type: ignore[arg-type]
    assert made is not None
    room = Room(*made, found, mute)
    room.meet()
    return room


def vectors(found: PrivateSum, names: Collection[str]) -> dict[str, Tensor]:
    total = torch.full((50,), -3.0, dtype=torch.float64)
    return {name: found.release(total, SeededNoise(seed)) for seed, name in enumerate(names)}


def update(name: str, party: PartySums, values: Tensor, number: int = 1) -> Message:
    return Message(RUN, number, name, AGGREGATOR, "update", party.masked(number, {"sum": values}))


def plain(found: PrivateSum, values: dict[str, Tensor], names: Collection[str]) -> Tensor:
    return torch.stack([values[name] for name in names]).sum(0).double() * found.grid.step


@pytest.mark.parametrize("rows", [100, 10**10])  # words of 32 and of 64 bits
def test_the_total_is_bit_for_bit_the_sum(rows: int) -> None:
    room = started(rows=rows)
    sums, parties, found = room.sums, room.parties, room.found
    values = vectors(found, parties)
    for number in (1, 2):
        for name, party in parties.items():
            message = update(name, party, values[name], number)
            assert not torch.equal(message.tensors["sum"].long(), values[name])
            sums.take(message)
        room.open(number)
        assert sums.total is not None
        assert torch.equal(sums.total, plain(found, values, parties))


@pytest.mark.parametrize("lost", ["update", "signature", "opening"])
def test_an_allowed_dropout_at_any_message_leaves_the_survivors_sum(lost: str) -> None:
    room = started(5, 1, mute=lambda m: m.sender == "p1" and m.kind == lost)
    sums, parties, found = room.sums, room.parties, room.found
    values = vectors(found, parties)
    there = [name for name in parties if not (lost == "update" and name == "p1")]
    for name in there:
        sums.take(update(name, parties[name], values[name]))
    room.open()
    assert sums.discarded is None
    assert sums.total is not None
    assert sums.survivors == tuple(there)
    assert torch.equal(sums.total, plain(found, values, there))


def test_too_few_vectors_discard_the_round() -> None:
    room = started(5, 1)
    sums, parties, found = room.sums, room.parties, room.found
    values = vectors(found, parties)
    for name in ("p0", "p1", "p2"):
        sums.take(update(name, parties[name], values[name]))
    room.open()
    assert sums.total is None
    assert sums.discarded is not None


def test_a_party_signs_no_second_set_of_survivors() -> None:
    room = started(5, 1)
    sums, parties, found = room.sums, room.parties, room.found
    values = vectors(found, parties)
    for name, party in parties.items():
        sums.take(update(name, party, values[name]))
    room.open()
    names = ["p0", "p1", "p2", "p3"]
    rows = torch.zeros((3, 1), dtype=torch.uint8)
    with pytest.raises(MessageError, match="second set"):
        parties["p0"].handle(
            Message(
                RUN, 1, AGGREGATOR, "p0", "survivors", {"shares": rows}, {"survivors": names}
            )  # another set
        )


def test_an_update_that_does_not_fit_the_plan_is_refused() -> None:
    room = started()
    sums, parties, found = room.sums, room.parties, room.found
    whole = update("p0", parties["p0"], vectors(found, parties)["p0"])
    for name in whole.tensors:
        cut = {**whole.tensors, name: whole.tensors[name][:-1]}
        with pytest.raises(MessageError):
            sums.take(Message(RUN, 1, "p0", AGGREGATOR, "update", cut))
    with pytest.raises(PrivacyError):
        parties["p0"].masked(2, {"sum": torch.zeros(3, dtype=torch.int64)})


def test_a_party_that_never_comes_ends_the_meeting() -> None:
    with pytest.raises(TransportError, match="p2"):
        started(mute=lambda message: message.sender == "p2")


def test_keys_swapped_by_the_aggregator_are_refused() -> None:
    parties = started().parties
    keys = {
        f"keys.{name}": party.handle(Message(RUN, 0, AGGREGATOR, name, "sum_start")).tensors["keys"]
        for name, party in parties.items()
    }
    keys["keys.p1"] = keys["keys.p2"]
    with pytest.raises(MessageError, match="p1"):
        parties["p0"].handle(Message(RUN, 0, AGGREGATOR, "p0", "sum_peers", keys))
