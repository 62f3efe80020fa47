"""The queue transport against a real server with the documented permissions, also killed and started again."""

import asyncio
import base64
import datetime
import gc
import importlib.util
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import nats
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from homo_dp.config.federation import NatsConfig
from homo_dp.errors import InputError, MessageError, TransportError
from homo_dp.federation.messages import AGGREGATOR, Limits, Message
from homo_dp.federation.protocol import Transport
from homo_dp.transport.nats import NatsTransport
from tests.transport.nats_server import NatsServer, aggregator_permissions, party_permissions
from tests.transport.parts import PARTIES, join, sealer, update, weights

WAIT = 30.0  # seconds, generous: tests end as soon as the message is there
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # no end leaves tasks behind


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()  # tasks that were left behind complain in the test that left them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), PARTIES) as running:
        yield running


class Ends:
    """Opens ends of one run, and closes them after the test."""

    def __init__(self, server: NatsServer, run: str) -> None:
        self.server, self.run = server, run
        self.opened: list[NatsTransport] = []

    def __call__(self, name: str, limits: Limits | None = None, **options: Any) -> NatsTransport:
        values = {"patience": WAIT, "ack_wait": 0.6} | options
        end = NatsTransport(self.server.config(name), self.run, sealer(name, limits), **values)
        self.opened.append(end)
        return end


@pytest.fixture
def ends(server: NatsServer, request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(server, request.node.name[:60].lower().strip("_"))
    yield made
    for end in made.opened:
        end.close()


def got(end: NatsTransport) -> Message:
    message = end.receive(WAIT)
    assert message is not None
    return message


def stored(server: NatsServer, run: str) -> list[str]:
    """Subjects of all messages that the server holds for a run, as the aggregator may ask."""

    async def ask() -> list[str]:
        options = {"user": AGGREGATOR, "password": "pw-aggregator", "inbox_prefix": f"_INBOX_homo_dp.{AGGREGATOR}"}
        client = await nats.connect(f"nats://127.0.0.1:{server.port}", **options)
        info = await client.jsm().stream_info(f"homo_dp-{run}", subjects_filter=">")
        await client.close()
        return [name for name, count in (info.state.subjects or {}).items() for _ in range(count)]

    return asyncio.run(ask())


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return False


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
    assert party.receive(1.5) is None  # in hand: not again while the process lives, though ack_wait has passed
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
    assert eventually(lambda: sorted(stored(ends.server, ends.run)) == [f"{base}.plan"] + [f"{base}.weights"] * 3)
    party = ends("bank_a")
    assert [(m.kind, m.round) for m in (got(party), got(party))] == [("plan", 0), ("weights", 3)]
    aggregator.send(weights(round=3, run=ends.run, kind="finished"))
    assert eventually(lambda: sorted(stored(ends.server, ends.run)) == [f"{base}.finished", f"{base}.plan"])


def test_large_messages_pass_in_parts_side_by_side(ends: Ends) -> None:
    aggregator = ends(AGGREGATOR)
    size = 1_000_000  # 4 MB, 8 parts
    senders = [
        threading.Thread(target=ends(name).send, args=(update(name, 7, ends.run, size=size),)) for name in PARTIES
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
    stream, sent = f"homo_dp-{ends.run}", b"".join(sealer("bank_a").seal(update(run=ends.run)).pieces)

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
        for subject in (">", f"homo_dp.{ends.run}.>", "_INBOX_homo_dp.bank_a.>", "_INBOX_homo_dp.>"):
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
    assert message.sender == "bank_a"
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 5
    aggregator.done(message)
    assert eventually(lambda: stored(ends.server, ends.run) == [])


def test_the_server_may_be_killed_and_started_again_in_mid_run(tmp_path: Path) -> None:
    """Rounds go on over three deaths of the server; what was sent, half-handled or on its way is not lost."""
    with NatsServer(tmp_path, PARTIES) as server:
        ends = Ends(server, "demo")
        aggregator = ends(AGGREGATOR)
        rounds, kill_at = range(1, 10), {2, 5, 8}

        def take_part(name: str) -> None:
            party = ends(name)
            last = 0
            while last < rounds[-1]:  # an acknowledgement may be lost with the server: a message can come twice
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
    for changes in ({"password_file": "/nowhere"}, {"credentials": __file__}, {"tls": {"ca_file": __file__}}):
        with pytest.raises(InputError):
            NatsTransport(server.config("bank_a", **changes), "demo", sealer("bank_a"))
    with pytest.raises(MessageError):
        NatsTransport(server.config("bank_a"), "a.*.b", sealer("bank_a"))


def test_a_missing_permission_stops_with_one_line(server: NatsServer, ends: Ends) -> None:
    """Waiting would not help: neither can it send, nor may it hear the answer."""
    ends(AGGREGATOR)
    wrong = NatsTransport(server.config("bank_b"), ends.run, sealer("bank_a"), patience=WAIT)
    ends.opened.append(wrong)
    with pytest.raises(TransportError, match=r"(?i)permissions violation.*docs/transports.md") as failure:
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
        "from homo_dp.transport.nats import NatsTransport\n"
        "from homo_dp.config.federation import NatsConfig\n"
        "try: NatsTransport(NatsConfig(), 'demo', None)\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "InputError transport.kind=nats needs nats-py: run `pip install homo_dp[nats]`"


def certificate(directory: Path, name: str, issuer: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """A certificate for loopback, signed by `issuer` or by itself; written to name.pem and name-key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer[1] if issuer else key).public_key()), False
        )
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    (directory / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / f"{name}-key.pem").write_bytes(private)
    return made, key


TLS_FILES = {"ca_file": "ca.pem", "cert_file": "party.pem", "key_file": "party-key.pem"}


def test_tls_with_certificates_on_both_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = certificate(tmp_path, "ca", None)
    certificate(tmp_path, "server", authority)
    certificate(tmp_path, "party", authority)
    certificate(tmp_path, "other", None)
    path = {
        name: str(tmp_path / f"{name}.pem") for name in ("ca", "server", "server-key", "party", "party-key", "other")
    }
    tls = {"cert_file": path["server"], "key_file": path["server-key"], "ca_file": path["ca"], "verify": True}
    own = {"ca_file": path["ca"], "cert_file": path["party"], "key_file": path["party-key"]}
    with NatsServer(tmp_path / "server", PARTIES, settings={"tls": tls}) as server:
        address = (f"tls://127.0.0.1:{server.port}",)
        ends = [
            NatsTransport(server.config(name, servers=address, tls=own), "demo", sealer(name))
            for name in (AGGREGATOR, "bank_a")
        ]
        ends[1].send(update())
        assert got(ends[0]).sender == "bank_a"
        for end in ends:
            end.close()
        assert not caplog.records
        for wrong in ({"ca_file": path["other"]}, {"ca_file": path["ca"]}, own | {"hostname": "elsewhere"}):
            config = server.config("bank_a", servers=address, tls=wrong)
            with pytest.raises(TransportError):
                NatsTransport(config, "demo", sealer("bank_a"), connect_timeout=0.5)


def test_the_documented_server_config_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = certificate(tmp_path, "ca", None)
    for name in ("server", "party"):
        certificate(tmp_path, name, authority)
    text = (Path(__file__).parents[2] / "docs" / "transports.md").read_text()
    block = text.split("```conf\n")[1].split("```")[0]
    server = NatsServer(tmp_path / "server", ["bank_a"])
    block = block.replace("/etc/nats/", f"{tmp_path}/").replace("/var/lib/nats", str(tmp_path / "store"))
    block = block.replace("0.0.0.0:4222", f"127.0.0.1:{server.port}").replace("50GB", "1GB")
    (tmp_path / "server" / "server.conf").write_text(block)
    for name in ("aggregator", "bank_a"):
        monkeypatch.setenv(f"{name.upper()}_PASSWORD", f"pw-{name}")
    wanted = [aggregator_permissions("homo_dp"), party_permissions("homo_dp", "bank_a")]
    subjects = [subject for rights in wanted for side in rights.values() for subject in side["allow"]]
    assert all(f'"{subject}"' in block for subject in subjects)
    assert block.count('"homo_dp.') + block.count('"$JS.') + block.count('"_INBOX') == len(subjects)
    tls = {name: str(tmp_path / file) for name, file in TLS_FILES.items()}
    with server:
        address = (f"tls://127.0.0.1:{server.port}",)
        aggregator, party = (
            NatsTransport(server.config(name, servers=address, tls=tls), "demo", sealer(name))
            for name in (AGGREGATOR, "bank_a")
        )
        aggregator.send(weights())
        party.send(update())
        party.done(got(party))
        aggregator.done(got(aggregator))
        for end in (aggregator, party):
            end.close()


class Nkey:
    """An nkey as NATS writes it: base32 of a prefix, 32 bytes and a CRC-16."""

    def __init__(self, prefix: int) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.public = self._text(bytes([prefix]) + self.key.public_key().public_bytes_raw())
        self.seed = self._text(bytes([144 | prefix >> 5, (prefix & 31) << 3]) + self.key.private_bytes_raw())

    @staticmethod
    def _text(data: bytes) -> str:
        crc = 0
        for byte in data:
            crc ^= byte << 8
            for _ in range(8):
                crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
        return base64.b32encode(data + crc.to_bytes(2, "little")).decode().rstrip("=")

    def token(self, subject: "Nkey", name: str, claims: dict[str, object]) -> str:
        """A JWT about `subject`, signed by this key."""
        body = {"jti": name, "iat": 1, "iss": self.public, "name": name, "sub": subject.public}
        fields = ({"typ": "JWT", "alg": "ed25519-nkey"}, body | {"nats": claims | {"version": 2}})
        text = ".".join(base64.urlsafe_b64encode(json.dumps(field).encode()).decode().rstrip("=") for field in fields)
        signed = base64.urlsafe_b64encode(self.key.sign(text.encode())).decode().rstrip("=")
        return f"{text}.{signed}"


@pytest.mark.skipif(importlib.util.find_spec("nkeys") is not None, reason="nkeys is installed")
def test_a_bare_nkey_without_its_package_says_what_to_install(server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "seed").write_text(Nkey(20 << 3).seed + "\n")
    with pytest.raises(InputError, match="pip install nkeys"):
        NatsTransport(server.config("bank_a", credentials=str(tmp_path / "seed")), "demo", sealer("bank_a"))


def test_credentials_files_of_an_operator(tmp_path: Path) -> None:
    operator, system, account = Nkey(14 << 3), Nkey(0), Nkey(0)
    free = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    storage: dict[str, object] = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    settings: dict[str, object] = {
        "authorization": {},
        "operator": operator.token(operator, "operator", {"type": "operator"}),
        "system_account": system.public,
        "resolver": "MEMORY",
        "resolver_preload": {
            system.public: operator.token(system, "SYS", {"type": "account", "limits": free}),
            account.public: operator.token(account, "homo", {"type": "account", "limits": free | storage}),
        },
    }

    def credentials(name: str, allowed: dict[str, Any]) -> str:
        user = Nkey(20 << 3)
        limits = {"subs": -1, "data": -1, "payload": -1}
        jwt = account.token(
            user, name, limits | {"type": "user", "pub": allowed["publish"], "sub": allowed["subscribe"]}
        )
        path = tmp_path / f"{name}.creds"
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        return str(path)

    with NatsServer(tmp_path / "server", PARTIES, settings=settings) as server:

        def end(name: str, path: str) -> NatsTransport:
            address = f"nats://127.0.0.1:{server.port}"
            return NatsTransport(NatsConfig(servers=(address,), credentials=path), "demo", sealer(name))

        aggregator = end(AGGREGATOR, credentials(AGGREGATOR, aggregator_permissions("homo_dp")))
        party = end("bank_a", credentials("bank_a", party_permissions("homo_dp", "bank_a")))
        party.send(update())
        assert got(aggregator).sender == "bank_a"
        party.close()
        aggregator.close()
