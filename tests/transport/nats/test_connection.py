"""One connection under floods, stalls and closing."""

import gc
import logging
import threading

import pytest

from homo_dp.config.federation import NatsConfig
from homo_dp.core.errors import TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR
from homo_dp.transport.nats import connection as nats_link
from homo_dp.transport.nats.queue import NatsTransport
from tests.transport.nats.ends import LEAVES_NOTHING, Ends, eventually, stored
from tests.transport.nats_server import NatsServer
from tests.transport.parts import got, sealer, update
from tests.transport.raw_nats import RawPublisher, fake_server

pytestmark = LEAVES_NOTHING


def test_a_flood_of_one_party_waits_at_the_server_and_delays_only_itself(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 20,000 messages the stream takes a few hundred; the others' messages pass them."""
    aggregator = ends(AGGREGATOR)
    subject = f"homo_dp.{ends.run}.from.bank_b.update".encode()
    with RawPublisher(ends.server, "bank_b") as raw:
        raw.socket.sendall(raw.line(subject, b"NATS/1.0\r\n\r\n", b"x") * 20_000)
        raw.flush()
    held = len(stored(ends.server, ends.run))
    party = ends("bank_a")
    for number in range(1, 21):
        party.send(update(round=number, run=ends.run))
        message = got(aggregator)
        assert (message.sender, message.round) == ("bank_a", number)
        aggregator.done(message)
    assert held <= 2 * 2049 + 256
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) < 20


def test_unfinished_messages_of_a_party_are_given_up(ends: Ends) -> None:
    aggregator = ends(AGGREGATOR)
    subject = f"homo_dp.{ends.run}.from.bank_b.update".encode()
    with RawPublisher(ends.server, "bank_b") as raw:
        for number in range(40):
            fields = {
                "Tag": f"t{number}",
                "Attempt": "1",
                "Part": "0",
                "Parts": "1000",
                "Size": str(500 << 20),
            }
            text = "".join(f"Homo-{name}: {value}\r\n" for name, value in fields.items())
            raw.publish(subject, f"NATS/1.0\r\n{text}\r\n".encode(), bytes(100_000))
        raw.flush()
    assert eventually(lambda: len(stored(ends.server, ends.run)) == 3)
    ends("bank_a").send(update(run=ends.run))
    assert got(aggregator).sender == "bank_a"


def test_a_server_that_stalls_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full disk a server may keep the connection and store nothing."""
    monkeypatch.setattr(nats_link, "_PUBLISH", 0.1)
    with fake_server() as server:
        config = NatsConfig(servers=(f"nats://127.0.0.1:{server.port}",))
        party = NatsTransport(config, "demo", sealer("bank_a"), patience=0.8)
        with pytest.raises(TransportError, match="sending again is safe"):
            party.send(update())
        party.close()
    assert "disk may be full" in caplog.text


def test_closing_in_any_state_says_nothing(
    server: NatsServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Runs under attack ended with asyncio's `Event loop is closed` on the screen."""
    party = NatsTransport(server.config("bank_a"), "closing", sealer("bank_a"), patience=5.0)
    failures: list[Exception] = []

    def send(end: NatsTransport) -> None:
        try:
            end.send(update(run="closing"))
        except TransportError as failure:
            failures.append(failure)

    sending = threading.Thread(target=send, args=(party,))
    sending.start()
    party.close()
    party.close()
    sending.join(10)
    assert len(failures) == 1
    assert party.receive(0) is None
    del party, sending
    gc.collect()
    with caplog.at_level(logging.DEBUG):
        assert "closed" not in capfd.readouterr().err
