"""Masked sums over messages: both sides, with every message encoded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, Message, decode, encode
from homo_dp.federation.protocol.round_sums import RoundSum
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.secure_sums import agreement
from homo_dp.federation.secure_sums.party import SecureSumParty
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_messages import SumsOfRounds, as_bytes, findings_digest
from homo_dp.federation.sessions.secure_rounds import AggregatorSums, simulated_sums
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum

RUN = "run-1"


class _Masked:
    """Stands for a mechanism, of which only the masked sum is asked for."""

    def __init__(self, found: PrivateSum) -> None:
        self.masked_sum = found
        self.run = self
        self.sums: dict[int, RoundSum] = {}
        self.count = 3


@dataclass
class Room:
    """Parties and an aggregator, with every message through its bytes; some messages of parties
    are lost.
    """

    sums: AggregatorSums
    parties: dict[str, PartySums]
    found: PrivateSum
    mute: Callable[[Message], bool]
    bend: Callable[[Message], Message] = lambda message: message

    def ask(self, questions: Sequence[Message], heard: Mapping[str, Message]) -> Waiting[None]:
        for question in questions:
            answer = self.bend(self.parties[question.recipient].handle(decode(encode(question))))
            if not self.mute(answer):
                with contextlib.suppress(MessageError):  # the session notes it and goes on
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
    bend: Callable[[Message], Message] = lambda message: message,
) -> Room:
    """Parties that have met."""
    found = PrivateSum(50, 1.0, 2.0, rows, share=NoiseShare(parties, dropouts))
    made = simulated_sums(RUN, [f"p{number}" for number in range(parties)], _Masked(found))  # type: ignore[arg-type]
    assert made is not None
    room = Room(*made, found, mute, bend)
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


FOUND = {"rows": {"p0": 1000}, "settings": {"privacy.max_grad_norm": 1.0}}
OTHER = {"rows": {"p0": 1000}, "settings": {"privacy.max_grad_norm": 1.9}}


@pytest.mark.parametrize("dropouts", [0, 1])
@pytest.mark.parametrize("told", [FOUND, OTHER])
def test_parties_that_were_told_other_findings_cannot_be_unmasked_together(
    told: dict[str, object], dropouts: int
) -> None:
    """Findings set clip norms, and so how much noise others add: one told otherwise had half."""
    room, digest = started(5, dropouts), findings_digest(FOUND)
    sums, found = room.sums.asking(room.found, {}, digest), room.found
    values = vectors(found, room.parties)
    for name, party in room.parties.items():
        own = digest if name != "p0" else findings_digest(told)
        room.parties[name] = party.asking(found, {}, own)
        sums.take(update(name, room.parties[name], values[name]))
    room.sums = sums
    room.open()
    assert sums.total is not None
    whole = plain(found, values, room.parties)
    assert torch.equal(sums.total, whole) == (told is FOUND)
    assert told is FOUND or (sums.total - whole).abs().median() > 1000 * found.sigma


def test_words_of_another_size_or_grid_are_masked_by_other_terms() -> None:
    share = NoiseShare(5)
    sums = [
        PrivateSum(50, 1.0, 2.0, 100, share=share),
        PrivateSum(50, 1.0, 2.0, 10**10, share=share),  # 64 bits
        PrivateSum(50, 8.0, 2.0, 100, share=share),  # a coarser grid
        PrivateSum(49, 1.0, 2.0, 100, share=share),
    ]
    assert len({SumsOfRounds(found, {}).terms(1) for found in sums}) == 4


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


@pytest.mark.parametrize("missing", [0, 1])
def test_a_party_that_alters_the_shares_that_it_opens_costs_nobody_the_sum(missing: int) -> None:
    """Every round was paid for by all and discarded."""

    def bend(message: Message) -> Message:
        if (message.sender, message.kind) != ("p3", "opening"):
            return message
        return replace(message, tensors={"opening": 255 - message.tensors["opening"]})

    room = started(8, 2, bend=bend)
    summed(room, list(room.parties)[missing:])


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
            # another set
            Message(RUN, 1, AGGREGATOR, "p0", "survivors", {"shares": rows}, {"survivors": names})
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


MEETING = ("sum_keys", "sum_sealed", "sum_ready", "sum_kept")


def summed(room: Room, names: Collection[str]) -> Tensor | None:
    """The total of round 1 in which these parties send an update, checked against their sum."""
    values = vectors(room.found, room.parties)
    for name in names:
        room.sums.take(update(name, room.parties[name], values[name]))
    room.open()
    assert room.sums.total is not None, room.sums.discarded
    assert torch.equal(room.sums.total, plain(room.found, values, names))
    return room.sums.total


@pytest.mark.parametrize("kind", MEETING)
@pytest.mark.parametrize(("parties", "dropouts"), [(5, 1), (7, 2)])
def test_a_party_that_goes_missing_at_the_meeting_is_a_dropout(
    kind: str, parties: int, dropouts: int
) -> None:
    """The meeting tolerated nobody, whatever tolerated_dropouts said."""
    room = started(
        parties, dropouts, mute=lambda message: message.sender == "p2" and message.kind == kind
    )
    if (kind, dropouts) == ("sum_kept", 1):  # nobody may be missing any more, so nothing is kept
        assert room.sums.roster.dropouts == 0
    there = [name for name in room.parties if name != "p2"]
    assert room.sums.roster.names == tuple(there)
    assert room.sums.roster.noise_sharers == parties - dropouts - 1
    summed(room, there[dropouts - 1 :])  # what is left of the tolerance is used up in the round


def test_a_transport_that_carries_each_message_once_carries_every_answer_of_a_second_meeting() -> (
    None
):
    """The last party has nothing to seal: its answer was the same, byte for byte, when the others met
    once more, and it was taken for missing.
    """
    carried = set[bytes]()

    def mute(message: Message) -> bool:
        text = encode(message)
        if text in carried or (message.sender, message.kind) == ("p2", "sum_ready"):
            return True
        carried.add(text)
        return False

    room = started(5, 1, mute=mute)
    assert room.sums.roster.names == ("p0", "p1", "p3", "p4")


def test_more_missing_at_the_meeting_than_are_tolerated_end_it() -> None:
    with pytest.raises(TransportError, match=r"p1, p2 did not meet .* at most 1 may be missing"):
        started(6, 1, mute=lambda message: message.sender in ("p1", "p2"))


def bent(message: Message) -> Message:
    """The message with its first tensor cut or, where it has none, with one too many."""
    first = next(iter(message.tensors), "keys")
    tensor = message.tensors.get(first, torch.zeros(9, dtype=torch.uint8))[:-1]
    return replace(message, tensors={**message.tensors, first: tensor})


@pytest.mark.parametrize("kind", MEETING)
def test_a_party_whose_answer_is_bent_once_is_asked_again(kind: str) -> None:
    """One bent answer ended the aggregator."""
    answers: list[str] = []

    def bend(message: Message) -> Message:
        if message.sender != "p2" or message.kind != kind:
            return message
        answers.append(kind)
        return bent(message) if len(answers) == 1 else message

    room = started(5, 1, bend=bend)
    assert len(answers) == 2
    assert room.sums.roster.dropouts == 1
    summed(room, room.parties)


@pytest.mark.parametrize("kind", MEETING)
def test_a_party_whose_answers_stay_bent_is_left_out(kind: str) -> None:
    def bend(message: Message) -> Message:
        return bent(message) if (message.sender, message.kind) == ("p2", kind) else message

    room = started(5, 1, bend=bend)
    assert "p2" not in room.sums.roster.names
    summed(room, room.sums.roster.names)


def test_keys_that_are_signed_and_of_no_use_are_those_of_their_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All others refused to go on, and nobody could say with whom."""
    low_order = bytes(32)

    def bend(message: Message) -> Message:
        if (message.sender, message.kind) != ("p2", "sum_keys"):
            return message
        party = room_parties["p2"]._party
        text = agreement.signed(party._sign, party.roster, "p2", "keys", low_order)
        return replace(message, tensors={"keys": as_bytes(text)})

    found = PrivateSum(50, 1.0, 2.0, 100, share=NoiseShare(5, 1))
    made = simulated_sums(RUN, [f"p{number}" for number in range(5)], _Masked(found))  # type: ignore[arg-type]
    assert made is not None
    room_parties = made[1]
    room = Room(*made, found, lambda _: False, bend)
    room.meet()
    assert "p2" not in room.sums.roster.names
    summed(room, room.sums.roster.names)


def start_with(party: PartySums, names: Sequence[str]) -> Message:
    return party.handle(Message(RUN, 0, AGGREGATOR, "p0", "sum_start", {}, {"parties": [*names]}))


def test_a_party_meets_no_fewer_than_its_config_tolerates_and_no_others_once_it_has_masked() -> (
    None
):
    """Else an aggregator could take the noise of honest parties out of a sum."""
    room = started(6, 2)
    party = room.parties["p0"]
    for names in (["p0", "p1", "p2"], ["p1", "p2", "p3", "p4"], ["p0", "p1", "p2", "p9"]):
        with pytest.raises(MessageError):
            start_with(party, names)
    start_with(party, ["p0", "p1", "p2", "p3", "p4"])
    assert not party.ready  # nothing of the meeting before is of use now
    room = started(6, 2)
    party = room.parties["p0"]
    party.masked(1, {"sum": vectors(room.found, ["p0"])["p0"]})
    with pytest.raises(MessageError, match="once a sum was masked"):
        start_with(party, ["p0", "p1", "p2", "p3", "p4"])


def test_started_again_both_sides_know_who_has_met() -> None:
    room = started(5, 1, mute=lambda message: message.sender == "p2")
    whole, sums = room.sums._whole, room.sums
    again = AggregatorSums(RUN, whole, room.found, sums.keep, rounds=3)
    assert again.roster == sums.roster
    party = room.parties["p0"]._party
    restarted = SecureSumParty(whole, "p0", party._sign, party._root)
    assert restarted.roster == sums.roster
    # it refused its own plan: the noise was planned for more parties than had met
    assert PartySums(RUN, restarted, room.found, rounds=3).ready
