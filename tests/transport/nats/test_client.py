"""Bytes that others chose neither stop the client nor get its password."""

from pathlib import Path

import pytest

from homo_dp.config.federation import NatsConfig
from homo_dp.core.errors import InputError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR
from homo_dp.transport.nats.queue import NatsTransport
from tests.transport.nats.ends import LEAVES_NOTHING, Ends, eventually, stored
from tests.transport.parts import got, sealer, update
from tests.transport.raw_nats import RawPublisher, fake_server

pytestmark = LEAVES_NOTHING


HEADERS = {
    "no line end": b"NATS/1.0",
    "status that is no text": b"NATS/1.0 \xff\xfe\r\n\r\n",
    "description that is no text": b"NATS/1.0 408 \xff\xfe\xfd\r\n\r\n",
    "a false status": b"NATS/1.0 408 Request Timeout\r\n\r\n",
    "colons": b"NATS/1.0\r\n:::\r\n: :\r\n\r\n",
    "names that are not text": b"NATS/1.0\r\n\xff: \xff\r\n\r\n",
    "many": b"NATS/1.0\r\n" + b"".join(b"a%d: b\r\n" % number for number in range(2000)) + b"\r\n",
    "numbers": b"NATS/1.0\r\nHomo-Part: \xc2\xb2\r\nHomo-Parts: 1e9\r\nHomo-Size: -1\r\n\r\n",
}


LAST_TOKENS = {
    "no text": b"\xff\xfe",
    "form feed": b"up\x0cdate",
    "vertical tab": b"\x0b",
    "escape": b"\x1b[2J\x1b]0;mine\x07",
    "deeper": b"update.a.b.c",
}


def test_no_headers_stop_the_receiver(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    """One header block without a line end ended the client's read loop, again after every
    reconnect.
    """
    aggregator = ends(AGGREGATOR)
    subject = f"homo_dp.{ends.run}.from.bank_b.update".encode()
    with RawPublisher(ends.server, "bank_b") as raw:
        for headers in HEADERS.values():
            raw.publish(subject, headers, b"data")
        raw.publish(subject, None, b"no headers at all")
        raw.flush()
    ends("bank_a").send(update(run=ends.run))
    message = got(aggregator)
    assert message.sender == "bank_a"
    aggregator.done(message)
    # all are acknowledged: none comes again
    assert eventually(lambda: stored(ends.server, ends.run) == [])
    assert aggregator.refusals.counts["bank_b"] == len(HEADERS) + 1
    assert "lost" not in caplog.text


def test_no_subject_stops_the_receiver_or_reaches_the_log_raw(
    ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of an earlier homo_dp takes every subject below a party's name."""
    monkeypatch.setattr(
        "homo_dp.transport.nats.names.Names.subjects", lambda names, kinds: [f"{names.base}.>"]
    )
    aggregator = ends(AGGREGATOR)
    with RawPublisher(ends.server, "bank_b") as raw:
        for token in LAST_TOKENS.values():
            raw.publish(
                f"homo_dp.{ends.run}.from.bank_b.".encode() + token, b"NATS/1.0\r\n\r\n", b"data"
            )
        raw.flush()
    ends("bank_a").send(update(run=ends.run))
    assert got(aggregator).sender == "bank_a"
    assert eventually(lambda: aggregator.refusals.counts["bank_b"] >= len(LAST_TOKENS) - 1)
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert "lost" not in caplog.text


def test_a_server_that_talks_tls_down_gets_no_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse")
    with fake_server(tls_required=False, auth_required=True) as server:
        address = f"127.0.0.1:{server.port}"
        for changes in (
            {"servers": f"tls://{address}"},
            {"servers": f"nats://{address}", "tls": {}},
        ):
            values = {"user": "bank_a", "password_file": str(tmp_path / "password")} | changes
            with pytest.raises(TransportError):
                NatsTransport(
                    NatsConfig.model_validate(values), "demo", sealer("bank_a"), connect_timeout=0.1
                )
        assert server.told
        assert b"CONNECT" not in server.told
        assert b"horse" not in server.told
    with pytest.raises(InputError, match="wss"):
        NatsTransport(NatsConfig(servers=("tls://a", "ws://b")), "demo", sealer("bank_a"))
