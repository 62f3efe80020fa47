"""The aggregator's end and the party's: sealed bytes only, at least once; a node is whose
signature came from it.
"""

import threading
import time
from pathlib import Path

import pytest

from homo_dp.federation.protocol.messages import AGGREGATOR
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.flower.envelopes import Answer
from homo_dp.transport.flower.grid import GridTransport
from homo_dp.transport.flower.node import NodeTransport
from tests.transport.flower.fleets import SocketFleet, party
from tests.transport.parts import WAIT, got, join, sealer, update, weights


class Echo(threading.Thread):
    """A session as a party runs it: joins, answers weights with an update, joins again when it
    hears nothing.
    """

    def __init__(self, end: NodeTransport, name: str) -> None:
        super().__init__(daemon=True)
        self.end, self.party, self.taken = end, name, list[int]()
        self.start()

    def run(self) -> None:
        self.end.send(join(self.party))
        while True:
            message = self.end.receive(5)
            if message is None:
                self.end.send(join(self.party))
                continue
            self.taken.append(message.round)
            if message.kind == "weights":
                self.end.send(update(self.party, message.round))
            self.end.done(message)
            if message.kind == "finished":
                return


def test_rounds_go_through_and_both_ends_are_transports(tmp_path: Path) -> None:
    with party(tmp_path) as end:
        session = Echo(end, "bank_a")
        aggregator = GridTransport(
            SocketFleet({1: tmp_path / "bank_a.sock"}), "demo", sealer(AGGREGATOR)
        )
        assert isinstance(aggregator, Transport)
        assert isinstance(end, Transport)
        assert got(aggregator).kind == "join"
        for number in (1, 2):
            aggregator.send(weights(round=number))
            assert (message := got(aggregator)).kind == "update"
            assert message.round == number
        aggregator.send(weights(round=2, kind="finished"))
        aggregator.close()
        session.join(WAIT)
        assert session.taken == [1, 2, 2]


def test_a_fleet_that_loses_half_of_everything_still_gets_every_update(tmp_path: Path) -> None:
    with party(tmp_path) as one, party(tmp_path, "bank_b") as other:
        for end, name in ((one, "bank_a"), (other, "bank_b")):
            Echo(end, name)
        nodes = {1: tmp_path / "bank_a.sock", 2: tmp_path / "bank_b.sock"}
        aggregator = GridTransport(SocketFleet(nodes, lose=0.3, seed=1), "demo", sealer(AGGREGATOR))
        for number in range(1, 6):
            for name in ("bank_a", "bank_b"):
                aggregator.send(weights(name, number))
            missing = {"bank_a", "bank_b"}
            while missing:
                message = got(aggregator)
                if message.kind == "update" and message.round == number:
                    missing.discard(message.sender)


def test_nothing_of_an_update_can_be_read_on_the_way(tmp_path: Path) -> None:
    with party(tmp_path) as end:
        Echo(end, "bank_a")
        fleet = SocketFleet({1: tmp_path / "bank_a.sock"})
        aggregator = GridTransport(fleet, "demo", sealer(AGGREGATOR))
        got(aggregator)
        aggregator.send(weights(size=1000))
        got(aggregator)
        seen = [piece for answer in fleet.answers for piece in answer.sealed]
        seen += [piece for _, question in fleet.pushed for piece in question.sealed]
        body = update(size=1000).tensors["w"].numpy().tobytes()[:64]
        assert any(len(piece) > 1000 for piece in seen)
        assert not any(body in piece for piece in seen)


def test_an_altered_message_is_refused_and_moves_no_route(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Altering(SocketFleet):
        def pull(self, tickets: object) -> list[tuple[str, Answer | None]]:
            found = super().pull(tickets)  # type: ignore[arg-type]
            bad = [
                None
                if answer is None
                else Answer("running", tuple(s[:-1] + bytes([s[-1] ^ 1]) for s in answer.sealed))
                for _, answer in found
            ]
            return [(ticket, answer) for (ticket, _), answer in zip(found, bad, strict=True)]

    with party(tmp_path) as end:
        Echo(end, "bank_a")
        fleet = Altering({1: tmp_path / "bank_a.sock"})
        aggregator = GridTransport(fleet, "demo", sealer(AGGREGATOR))
        aggregator.send(weights())
        assert aggregator.receive(0.6) is None
        assert "altered" in caplog.text
        # nobody is known to be behind that node
        assert all(not question.sealed for _, question in fleet.pushed)


def test_a_node_that_moves_gets_what_its_party_has_not_dealt_with(tmp_path: Path) -> None:
    with party(tmp_path) as end:
        Echo(end, "bank_a")
        fleet = SocketFleet({1: tmp_path / "bank_a.sock"})
        aggregator = GridTransport(fleet, "demo", sealer(AGGREGATOR))
        assert got(aggregator).kind == "join"
        # the SuperNode was killed and came back under another number
        fleet.places = {2: tmp_path / "bank_a.sock"}
        aggregator.send(weights())
        kinds = [got(aggregator).kind, got(aggregator).kind]
        assert "update" in kinds
        assert [number for number, question in fleet.pushed if question.sealed][-1] == 2


def test_a_newer_message_takes_the_place_of_one_that_nobody_fetched(tmp_path: Path) -> None:
    aggregator = GridTransport(SocketFleet({}), "demo", sealer(AGGREGATOR))
    for number in (1, 2, 3):
        aggregator.send(weights(round=number))
    assert [item.message.round for item in aggregator._queues["bank_a"].values()] == [3]


def test_close_does_not_wait_for_parties_that_are_not_there(tmp_path: Path) -> None:
    aggregator = GridTransport(SocketFleet({}), "demo", sealer(AGGREGATOR))
    aggregator.send(weights(kind="finished"))
    aggregator.last_words = 0.3
    started = time.monotonic()
    aggregator.close()
    assert time.monotonic() - started < WAIT
    aggregator.send(weights(kind="finished"))
