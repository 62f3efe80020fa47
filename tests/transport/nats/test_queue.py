"""The queue transport against a real server with the documented permissions, also killed and
started again.
"""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
import torch

from homo_dp.core.errors import InputError, MessageError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, Limits, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.nats.queue import NatsTransport
from tests.transport.nats.ends import LEAVES_NOTHING, Ends, eventually, stored
from tests.transport.nats_server import NatsServer
from tests.transport.parts import PARTIES, WAIT, got, join, sealer, update, weights

pytestmark = LEAVES_NOTHING


def test_messages_go_both_ways_and_leave_nothing_behind(ends: Ends) -> None:
    aggregator, parties = ends(AGGREGATOR), {name: ends(name) for name in PARTIES}
    assert isinstance(aggregator, Transport)
    for number in (1, 2):
        for name in PARTIES:
            aggregator.send(weights(name, number, ends.run))
        for name, party in parties.items():
            asked = got(party)
            assert (asked.round, asked.recipient) == (number, name)
            party.send(update(name, number, ends.run))
            party.done(asked)
        answers = [got(aggregator) for _ in PARTIES]
        assert {answer.sender for answer in answers} == set(PARTIES)
        for answer in answers:
            assert torch.equal(answer.tensors["w"], torch.full((3,), float(number)))
            aggregator.done(answer)
    assert aggregator.receive(0) is None
    assert eventually(lambda: stored(ends.server, ends.run) == [])


def test_a_message_comes_again_after_a_crash_until_it_is_done(ends: Ends) -> None:
    aggregator, party = ends(AGGREGATOR), ends("bank_a")
    aggregator.send(weights(run=ends.run))
    got(party)
    # in hand: not again while the process lives, though ack_wait has passed
    assert party.receive(1.5) is None
    party.close()
    party = ends("bank_a")
    party.done(got(party))
    party.close()
    assert ends("bank_a").receive(1.5) is None


def test_a_process_that_sends_once_more_after_a_crash_changes_nothing(ends: Ends) -> None:
    aggregator, message = ends(AGGREGATOR), update(run=ends.run)
    for _ in range(3):
        ends("bank_a").send(message)
    aggregator.done(got(aggregator))
    assert aggregator.receive(0.5) is None


def test_sending_on_purpose_again_is_delivered_again(ends: Ends) -> None:
    aggregator, party = ends(AGGREGATOR), ends("bank_a")
    message = weights(run=ends.run)
    for _ in range(2):
        aggregator.send(message)
        party.done(got(party))


def test_a_party_that_is_back_at_once_is_heard_although_it_says_the_same(ends: Ends) -> None:
    aggregator = ends(AGGREGATOR)
    for _ in range(2):
        party = ends("bank_a")
        party.send(join(run=ends.run))
        party.close()
        aggregator.done(got(aggregator))


def test_a_party_may_come_before_the_aggregator_and_says_what_it_waits_for(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    party = ends("bank_a")
    assert party.receive(0.2) is None
    sending = threading.Thread(target=party.send, args=(join(run=ends.run),))
    sending.start()
    assert eventually(lambda: "start the aggregator" in caplog.text)
    aggregator = ends(AGGREGATOR)
    assert got(aggregator).kind == "join"
    sending.join()
    aggregator.send(weights(run=ends.run))
    assert got(party).kind == "weights"


def test_a_party_that_was_away_finds_only_the_newest(ends: Ends) -> None:
    aggregator = ends(AGGREGATOR)
    aggregator.send(Message(ends.run, 0, AGGREGATOR, "bank_a", "plan", info={"plan": {}}))
    for number in (1, 2, 3):
        aggregator.send(weights(round=number, run=ends.run, size=300_000))
    base = f"homo_dp.{ends.run}.to.bank_a"
    assert eventually(
        lambda: sorted(stored(ends.server, ends.run)) == [f"{base}.plan"] + [f"{base}.weights"] * 3
    )
    party = ends("bank_a")
    assert [(m.kind, m.round) for m in (got(party), got(party))] == [("plan", 0), ("weights", 3)]
    aggregator.send(weights(round=3, run=ends.run, kind="finished"))
    assert eventually(
        lambda: sorted(stored(ends.server, ends.run)) == [f"{base}.finished", f"{base}.plan"]
    )


def test_large_messages_pass_in_parts_side_by_side(ends: Ends) -> None:
    aggregator = ends(AGGREGATOR)
    size = 1_000_000  # 4 MB, 8 parts
    senders = [
        threading.Thread(target=ends(name).send, args=(update(name, 7, ends.run, size=size),))
        for name in PARTIES
    ]
    for sender in senders:
        sender.start()
    messages = [got(aggregator) for _ in PARTIES]
    for sender in senders:
        sender.join()
    assert {message.sender for message in messages} == set(PARTIES)
    for message in messages:
        assert torch.equal(message.tensors["w"], torch.full((size,), 7.0))
        aggregator.done(message)
    assert eventually(lambda: stored(ends.server, ends.run) == [])


def test_two_runs_do_not_mix(server: NatsServer) -> None:
    one, two = Ends(server, "run_one"), Ends(server, "run_two")
    aggregators = [one(AGGREGATOR), two(AGGREGATOR)]
    one("bank_a").send(update(run="run_one"))
    two("bank_a").send(update(run="run_two", round=2))
    assert [got(end).run for end in aggregators] == ["run_one", "run_two"]
    with pytest.raises(MessageError, match="which this transport serves"):
        aggregators[0].send(weights(run="run_two"))
    assert [end.receive(0) for end in aggregators] == [None, None]
    for end in one.opened + two.opened:
        end.close()


def as_party(server: NatsServer, name: str, work: Callable[[Any], Any]) -> list[str]:
    """Do something with `name`'s password and a client of its own; the server's complaints."""
    complaints: list[str] = []

    async def on_error(error: Exception) -> None:
        complaints.append(str(error))

    async def act() -> None:
        options = {
            "user": name,
            "password": f"pw-{name}",
            "inbox_prefix": f"_INBOX_homo_dp.{name}",
            "error_cb": on_error,
        }
        client = await nats.connect(f"nats://127.0.0.1:{server.port}", **options)
        await work(client)
        await client.flush()
        await asyncio.sleep(0.05)
        await client.close()

    asyncio.run(act())
    return complaints


def test_a_party_can_neither_listen_in_nor_speak_for_another(ends: Ends) -> None:
    aggregator = ends(AGGREGATOR)
    aggregator.send(weights("bank_a", run=ends.run))
    stream, sent = (
        f"homo_dp-{ends.run}",
        b"".join(sealer("bank_a").seal(update(run=ends.run)).pieces),
    )

    async def trespass(client: Any) -> None:
        inbox = client.new_inbox()
        heard = await client.subscribe(inbox)
        for subject in (
            f"homo_dp.{ends.run}.from.bank_a.update",
            f"homo_dp.{ends.run}.to.bank_a.weights",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.to-bank_a",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.to-{AGGREGATOR}",
            f"$JS.API.CONSUMER.CREATE.{stream}",
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.STREAM.PURGE.{stream}",
            f"$JS.API.STREAM.DELETE.{stream}",
            f"$JS.ACK.{stream}.to-bank_a.1.1.1.1.0",
            f"_INBOX_homo_dp.{AGGREGATOR}.x",
        ):
            await client.publish(subject, sent, reply=inbox)
        for subject in (
            ">",
            f"homo_dp.{ends.run}.>",
            "_INBOX_homo_dp.bank_a.>",
            "_INBOX_homo_dp.>",
        ):
            await client.subscribe(subject)
        await client.flush()
        assert heard.pending_msgs == 0

    complaints = as_party(ends.server, "bank_b", trespass)
    assert len([text for text in complaints if "ermissions" in text]) == 15
    assert aggregator.receive(0.2) is None
    assert got(ends("bank_a")).kind == "weights"


def test_bad_messages_are_logged_dropped_and_do_not_hold_up_the_rest(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = ends(AGGREGATOR, limits=Limits(bytes=5000))
    subject = f"homo_dp.{ends.run}.from.bank_b.update"
    whole = {"Homo-Tag": "t", "Homo-Attempt": "1", "Homo-Part": "0", "Homo-Parts": "1"}
    for_another = b"".join(sealer("bank_a").seal(update(run=ends.run)).pieces)

    async def misbehave(client: Any) -> None:
        for data, headers in (
            (b"garbage", {}),
            (b"garbage", whole | {"Homo-Size": "7"}),
            (for_another, whole | {"Homo-Size": str(len(for_another))}),
            (b"x" * 9000, whole | {"Homo-Size": "9000"}),
            (b"", {"Status": "408"}),
        ):
            await client.publish(subject, data, headers=headers)

    with caplog.at_level(logging.WARNING):
        assert as_party(ends.server, "bank_b", misbehave) == []
        ends("bank_a").send(update(run=ends.run))
        message = got(aggregator)
        assert aggregator.receive(0.3) is None
    assert message.sender == "bank_a"
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 5
    aggregator.done(message)
    assert eventually(lambda: stored(ends.server, ends.run) == [])


def test_the_server_may_be_killed_and_started_again_in_mid_run(tmp_path: Path) -> None:
    """Rounds go on over three deaths of the server; what was sent, half-handled or on its way is
    not lost.
    """
    with NatsServer(tmp_path, PARTIES) as server:
        ends = Ends(server, "demo")
        aggregator = ends(AGGREGATOR)
        rounds, kill_at = range(1, 10), {2, 5, 8}

        def take_part(name: str) -> None:
            party = ends(name)
            last = 0
            # an acknowledgement may be lost with the server: a message can come twice
            while last < rounds[-1]:
                asked = got(party)
                party.send(update(name, asked.round, size=200_000))
                party.done(asked)
                last = asked.round
            party.close()

        parties = [threading.Thread(target=take_part, args=(name,)) for name in PARTIES]
        for party in parties:
            party.start()
        heard: set[tuple[int, str]] = set()
        for number in rounds:
            for name in PARTIES:
                aggregator.send(weights(name, number, size=200_000))
            if number in kill_at:
                server.kill()
                restart = threading.Timer(0.3, server.start)
                restart.start()
            while len([key for key in heard if key[0] == number]) < len(PARTIES):
                answer = got(aggregator)
                heard.add((answer.round, answer.sender))
                aggregator.done(answer)
            if number in kill_at:
                restart.join()
        for party in parties:
            party.join()
        aggregator.close()
        assert len(heard) == len(rounds) * len(PARTIES)


def test_sending_waits_for_a_server_that_is_away_and_then_says_so(tmp_path: Path) -> None:
    with NatsServer(tmp_path, PARTIES) as server:
        ends = Ends(server, "demo")
        aggregator, party = ends(AGGREGATOR), ends("bank_a", patience=0.5)
        server.kill()
        with pytest.raises(TransportError, match="sending again is safe") as failure:
            party.send(update())
        assert "\n" not in str(failure.value)
        restart = threading.Timer(0.5, server.start)
        restart.start()
        aggregator.send(weights(round=2))
        restart.join()
        assert got(party).round == 2
        for end in ends.opened:
            end.close()


def test_what_cannot_connect_is_one_line(server: NatsServer) -> None:
    bad = server.config("bank_a", user="bank_b")
    with pytest.raises(TransportError, match="Authorization") as failure:
        NatsTransport(bad, "demo", sealer("bank_a"))
    assert "\n" not in str(failure.value)
    nobody = server.config("bank_a", servers=("nats://127.0.0.1:1",))
    with pytest.raises(TransportError, match="cannot be used"):
        NatsTransport(nobody, "demo", sealer("bank_a"), connect_timeout=0.3)
    for changes in (
        {"password_file": "/nowhere"},
        {"credentials": __file__},
        {"tls": {"ca_file": __file__}},
    ):
        with pytest.raises(InputError):
            NatsTransport(server.config("bank_a", **changes), "demo", sealer("bank_a"))
    with pytest.raises(MessageError):
        NatsTransport(server.config("bank_a"), "a.*.b", sealer("bank_a"))


def test_a_missing_permission_stops_with_one_line(server: NatsServer, ends: Ends) -> None:
    """Waiting would not help: neither can it send, nor may it hear the answer."""
    ends(AGGREGATOR)
    wrong = NatsTransport(server.config("bank_b"), ends.run, sealer("bank_a"), patience=WAIT)
    ends.opened.append(wrong)
    with pytest.raises(
        TransportError, match=r"(?i)permissions violation.*docs/transports.md"
    ) as failure:
        wrong.send(join(run=ends.run))
    assert "\n" not in str(failure.value)
    with pytest.raises(TransportError, match=r"(?i)permissions violation"):
        wrong.receive(0.1)


def test_a_full_store_is_said_and_sending_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = {"store_dir": str(tmp_path / "store"), "max_file_store": 2 << 20}
    with NatsServer(tmp_path, PARTIES, settings={"jetstream": room}) as server:
        ends = Ends(server, "demo")
        aggregator, party = ends(AGGREGATOR), ends("bank_a", patience=1.0)

        def fill() -> None:
            for number in range(1, 9):
                party.send(update(round=number, size=100_000))  # 400 KB each

        with pytest.raises(TransportError, match="sending again is safe") as failure:
            fill()
        assert "\n" not in str(failure.value)
        assert "trying on" in caplog.text
        aggregator.done(got(aggregator))
        while (message := aggregator.receive(1.0)) is not None:
            aggregator.done(message)
        party.send(update(round=9, size=100_000))
        assert got(aggregator).round == 9
        for end in ends.opened:
            end.close()


def test_a_missing_extra_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['nats'] = None\n"
        "from homo_dp.transport.nats.queue import NatsTransport\n"
        "from homo_dp.config.federation import NatsConfig\n"
        "try: NatsTransport(NatsConfig(), 'demo', None)\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        run.stdout.strip()
        == "InputError transport.kind=nats needs nats-py: run `pip install homo_dp[nats]`"
    )
