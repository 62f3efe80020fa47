"""The aggregator's end and the party's: sealed bytes only, at least once; a node is whose signature came from it."""

import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from homo_dp.core.errors import ConfigError, MessageError
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.flower import grid, node, serving_socket
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion, receive_letter, send_letter, tag_of
from homo_dp.transport.flower.grid import GridTransport
from homo_dp.transport.flower.node import NodeTransport
from homo_dp.transport.flower.relay import PartyPlace, carry
from homo_dp.transport.flower.unix_sockets import connect, has_ended
from tests.transport.flower.fleets import SocketFleet
from tests.transport.parts import WAIT, got, join, sealer, update, weights


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_LAST_WORDS", 0.2)
    monkeypatch.setattr(node, "ANSWERS_WITHIN", 2.0)
    monkeypatch.setattr(grid, "_TROUBLE", 0.05)
    monkeypatch.setattr(grid, "_UNKNOWN", 0.05)
    monkeypatch.setattr(grid, "_LOOK_FOR_NODES", 0.05)


@contextmanager
def party(folder: Path, name: str = "bank_a") -> Iterator[NodeTransport]:
    made = NodeTransport(folder / f"{name}.sock", "demo", sealer(name))
    try:
        yield made
    finally:
        made.close()


class Echo(threading.Thread):
    """A session as a party runs it: joins, answers weights with an update, joins again when it hears nothing."""

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
        aggregator = GridTransport(SocketFleet({1: tmp_path / "bank_a.sock"}), "demo", sealer(AGGREGATOR))
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


def test_an_altered_message_is_refused_and_moves_no_route(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Altering(SocketFleet):
        def pull(self, tickets: object) -> list[tuple[str, Answer | None]]:
            found = super().pull(tickets)  # type: ignore[arg-type]
            bad = [
                None if answer is None else Answer("running", tuple(s[:-1] + b"x" for s in answer.sealed))
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
        assert all(not question.sealed for _, question in fleet.pushed)  # nobody is known to be behind that node


def test_a_node_that_moves_gets_what_its_party_has_not_dealt_with(tmp_path: Path) -> None:
    with party(tmp_path) as end:
        Echo(end, "bank_a")
        fleet = SocketFleet({1: tmp_path / "bank_a.sock"})
        aggregator = GridTransport(fleet, "demo", sealer(AGGREGATOR))
        assert got(aggregator).kind == "join"
        fleet.places = {2: tmp_path / "bank_a.sock"}  # the SuperNode was killed and came back under another number
        aggregator.send(weights())
        kinds = [got(aggregator).kind, got(aggregator).kind]
        assert "update" in kinds
        assert [number for number, question in fleet.pushed if question.sealed][-1] == 2


def test_work_that_takes_long_is_in_hand_and_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ANSWERS_WITHIN", 0.1)
    with party(tmp_path) as end:
        place = PartyPlace(tmp_path / "bank_a.sock")
        sealed = b"".join(sealer(AGGREGATOR).seal(weights()).pieces)
        first = carry(SealedQuestion("demo", (sealed,)), place)
        assert first == Answer("running", (), (), (tag_of(sealed),))
        message = got(end)
        assert carry(SealedQuestion("demo"), place).held == (tag_of(sealed),)
        end.send(update())
        end.done(message)
        last = carry(SealedQuestion("demo"), place)
        assert (last.done, last.held, len(last.sealed)) == ((tag_of(sealed),), (), 1)


def test_a_newer_message_takes_the_place_of_one_that_nobody_fetched(tmp_path: Path) -> None:
    aggregator = GridTransport(SocketFleet({}), "demo", sealer(AGGREGATOR))
    for number in (1, 2, 3):
        aggregator.send(weights(round=number))
    assert [item.message.round for item in aggregator._queues["bank_a"].values()] == [3]


def test_the_socket_is_of_this_user_alone_and_a_long_path_does(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True)
    with party(deep) as end:
        end.send(join())
        assert stat.S_IMODE((deep / "bank_a.sock").stat().st_mode) == 0o600
        assert len(carry(SealedQuestion("demo"), PartyPlace(deep / "bank_a.sock")).sealed) == 1
    assert not (deep / "bank_a.sock").exists()
    with pytest.raises(ConfigError, match=r"transport\.flower\.socket"):
        NodeTransport(tmp_path / "not-there" / "p.sock", "demo", sealer("bank_a"))


def test_a_letter_that_is_none_ends_nothing(tmp_path: Path) -> None:
    with party(tmp_path) as end:
        end.send(join())
        for nonsense in (b"", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b'\x00\x00\x00\x09{"sizes":'):
            with connect(tmp_path / "bank_a.sock", 5) as connection:
                connection.sendall(nonsense)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(10) == b""
        assert carry(SealedQuestion("another"), PartyPlace(tmp_path / "bank_a.sock")) == Answer("other_run")
        assert len(carry(SealedQuestion("demo"), PartyPlace(tmp_path / "bank_a.sock")).sealed) == 1


def test_a_party_that_ended_with_an_error_says_so_and_is_not_started_again(tmp_path: Path) -> None:
    place = tmp_path / "bank_a.sock"
    end = NodeTransport(place, "demo", sealer("bank_a"))
    carry(SealedQuestion("demo", (), "7"), PartyPlace(place))
    refusal = Message("demo", 0, "bank_a", AGGREGATOR, "refused", {}, {"reason": "budget", "ledger_head": None})
    end.send(refusal)
    try:
        raise ValueError("no budget")
    except ValueError:
        end.close()
    assert has_ended(place, "7")
    assert not has_ended(place, "8")
    assert carry(SealedQuestion("demo", (), "7"), PartyPlace(place, ("false",))) == Answer("ended")
    assert carry(SealedQuestion("demo", (), "7"), PartyPlace(place)) == Answer("failed")


def test_a_party_that_serves_is_started_for_its_askers_only_and_no_more_runs_than_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "bank_a.yaml"
    askers = [{"aggregator_key": "one.pub", "runs": "loans-*"}, {"aggregator_key": "other.pub", "runs": "cards-*"}]
    party = {"name": "bank_a", "state_dir": str(tmp_path / "state"), "serve": {"askers": askers}}
    path.write_text(yaml.safe_dump({"party": party}))
    place = PartyPlace.of(str(path), "cards-7")
    assert yaml.safe_load(place.layer or b"")["party"] == {"aggregator_key": "other.pub"}
    with pytest.raises(ConfigError, match=r"none of them may start run made-up"):
        PartyPlace.of(str(path), "made-up")
    assert not (tmp_path / "state").exists()  # a name that somebody made up leaves nothing
    busy = tmp_path / "state" / "loans-1" / "party.pid"
    busy.parent.mkdir(parents=True)
    runs = [sys.executable, "-c", "print(flush=True); input()", "homo_dp.party"]
    with subprocess.Popen(runs, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"  # it is there
        busy.write_text(str(process.pid))
        assert carry(SealedQuestion("cards-7"), place) == Answer("other_run")
        process.communicate(b"\n")
    assert not (tmp_path / "state" / "cards-7").exists()
    ends = replace(place, command=(sys.executable, "-c", "raise SystemExit(2)"))
    assert carry(SealedQuestion("cards-7", (), "7"), ends) == Answer("ended")
    assert (tmp_path / "state" / "cards-7" / "served.yaml").read_bytes() == place.layer
    assert stat.S_IMODE((tmp_path / "state" / "cards-7").stat().st_mode) == 0o700


def test_one_door_leads_to_the_process_of_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_socket, "_STARTS_WITHIN", 0.5)
    words, asked, started = (
        {"loans": "starting", "old": "over", "cards": "other_run"},
        list[str](),
        list[NodeTransport](),
    )

    def without_process(run: str) -> str:
        asked.append(run)
        if run == "loans" and asked.count("loans") == 3:  # as a server starts it
            started.append(NodeTransport(tmp_path / "loans.sock", "loans", sealer("bank_a")))
            started[0].send(replace(join(), run="loans"))
        return words.get(run, "failed")

    made = serving_socket.Door(
        tmp_path / "door.sock", None, 1 << 20, lambda run: tmp_path / f"{run}.sock", without_process
    )
    place = PartyPlace(tmp_path / "door.sock")
    try:
        assert stat.S_IMODE((tmp_path / "door.sock").stat().st_mode) == 0o600
        first = carry(SealedQuestion("loans"), place)
        assert (first.state, len(first.sealed)) == ("running", 1)
        assert sealer(AGGREGATOR).open_bytes(first.sealed[0]).run == "loans"
        assert [carry(SealedQuestion(run), place).state for run in ("old", "cards", "made-up")] == [
            *("over", "other_run", "failed")
        ]
        started[0].close()
        assert carry(SealedQuestion("loans"), place).state == "starting"
        with connect(tmp_path / "door.sock", 5) as connection:
            connection.sendall(b"\xff\xff\xff\xff")
            assert connection.recv(10) == b""
    finally:
        made.close()
    assert not (tmp_path / "door.sock").exists()
    assert carry(SealedQuestion("loans"), place) == Answer("failed")


def test_close_does_not_wait_for_parties_that_are_not_there(tmp_path: Path) -> None:
    aggregator = GridTransport(SocketFleet({}), "demo", sealer(AGGREGATOR))
    aggregator.send(weights(kind="finished"))
    aggregator.last_words = 0.3
    started = time.monotonic()
    aggregator.close()
    assert time.monotonic() - started < WAIT
    aggregator.send(weights(kind="finished"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"version": 2, "run": "demo", "job": "", "sealed": []},
        {"version": 1, "run": "../x", "job": "", "sealed": []},
        {"version": 1, "run": "demo", "job": "", "sealed": ["text"]},
        {"version": 1, "run": "demo", "job": "", "sealed": [b""] * 257},
    ],
)
def test_questions_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        SealedQuestion.of(fields)


def test_letters_survive_a_socket_and_too_large_ones_are_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        answer = Answer("running", (b"a" * 10, b""), ("0" * 32,), ("1" * 32,))
        send_letter(left, answer)
        assert Answer.of(receive_letter(right, 10)) == answer
        send_letter(left, answer)
        with pytest.raises(MessageError, match="allowed"):
            receive_letter(right, 9)
