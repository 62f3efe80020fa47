"""Which runs call a party: only those in which a listed asker's signature waits, under a name it
may use.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from homo_dp.core.errors import TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.transport import waiting_runs
from homo_dp.transport.directory import DirectoryTransport
from homo_dp.transport.keys import new_key_pair
from homo_dp.transport.nats import waiting_runs as runs_of_nats
from homo_dp.transport.nats.client import SafeClient
from homo_dp.transport.nats.queue import NatsTransport
from homo_dp.transport.nats.waiting_runs import NatsCalls
from homo_dp.transport.sealing import Sealer
from homo_dp.transport.waiting_runs import Call, FolderCalls, Sealers
from tests.transport.nats_server import NatsServer, aggregator_permissions, party_permissions
from tests.transport.parts import PAIRS, PARTIES, sealer
from tests.transport.test_nats_login import certificate


def status(party: str, run: str) -> Message:
    return Message(run, 0, AGGREGATOR, party, "status", {}, {"state": "waiting"})


def nothing(run: str) -> bool:
    return False


def calls_in(root: Path, sealers: Sealers, party: str = "bank_a") -> list[Call]:
    """What a first look finds."""
    return FolderCalls(root, party, sealers).look(nothing)


def one_asker(*runs: str) -> Sealers:
    return {"asker": (runs or ("*",), sealer("bank_a"))}


def test_a_signed_word_in_the_folder_is_a_call_and_stays_there(tmp_path: Path) -> None:
    DirectoryTransport(tmp_path, "loans-1", sealer(AGGREGATOR)).send(status("bank_a", "loans-1"))
    DirectoryTransport(tmp_path, "loans-2", sealer(AGGREGATOR)).send(status("bank_b", "loans-2"))
    for _ in range(2):
        assert calls_in(tmp_path, one_asker()) == [Call("loans-1", "asker")]
    assert not calls_in(tmp_path, one_asker("cards-*"))
    assert not FolderCalls(tmp_path, "bank_a", one_asker()).look(lambda run: True)


def test_a_party_that_was_there_before_is_called_where_its_messages_wait_now(
    tmp_path: Path,
) -> None:
    # makes the folders of its senders
    DirectoryTransport(tmp_path, "loans-1", sealer("bank_a")).close()
    DirectoryTransport(tmp_path, "loans-1", sealer(AGGREGATOR)).send(status("bank_a", "loans-1"))
    assert not list((tmp_path / "loans-1" / "bank_a").glob("*.msg"))
    assert calls_in(tmp_path, one_asker()) == [Call("loans-1", "asker")]


def plant(root: Path, run: str, count: int) -> None:
    """Put files under the names of messages into the folder of a run, before any other there."""
    folder = root / run / "bank_a"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"0-plan-aggregator-{number:032x}.msg").write_bytes(b"nonsense")


def test_a_run_is_noticed_among_more_old_or_planted_ones_than_a_look_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names were looked at from the first on: after 1,000 runs in a folder a party that served
    was deaf.
    """
    # time for one run in a look, and one file
    monkeypatch.setattr(waiting_runs, "LOOK", 0.0)
    monkeypatch.setattr(waiting_runs, "RUN", 0.0)
    for number in range(4):
        plant(tmp_path, f"a-{number}", 1)
    DirectoryTransport(tmp_path, "loans-1", sealer(AGGREGATOR)).send(status("bank_a", "loans-1"))
    plant(tmp_path, "loans-1", 6)
    calls = FolderCalls(tmp_path, "bank_a", one_asker())
    heard = [calls.look(nothing) for _ in range(5 * 7)]
    assert heard.index([Call("loans-1", "asker")]) == 5 * 7 - 1  # each file of each run once


def test_thousands_of_planted_files_in_the_folder_of_a_run_delay_it_by_few_looks(
    tmp_path: Path,
) -> None:
    """16 of them were opened in a look, and a look came each second: 20,000 took 20 minutes."""
    DirectoryTransport(tmp_path, "loans-1", sealer(AGGREGATOR)).send(status("bank_a", "loans-1"))
    plant(tmp_path, "loans-1", 3_000)
    calls = FolderCalls(tmp_path, "bank_a", one_asker())
    assert any(calls.look(nothing) == [Call("loans-1", "asker")] for _ in range(100))


def test_a_new_run_is_noticed_at_the_next_look_however_many_old_ones_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 old runs or files delayed it by up to 43 s."""
    monkeypatch.setattr(waiting_runs, "LOOK", 0.0)
    for number in range(200):
        (tmp_path / f"a-{number:03}" / "bank_a").mkdir(parents=True)
        (tmp_path / f"m-{number:03}").touch()
    calls = FolderCalls(tmp_path, "bank_a", one_asker())
    assert calls.look(nothing) == []
    DirectoryTransport(tmp_path, "loans-1", sealer(AGGREGATOR)).send(status("bank_a", "loans-1"))
    for number in range(200):
        (tmp_path / "loans-1" / "bank_a" / f"0-{number}.msg").touch()
    assert calls.look(nothing) == [Call("loans-1", "asker")]


def test_what_is_no_regular_file_neither_ends_a_look_nor_keeps_a_descriptor(
    tmp_path: Path,
) -> None:
    """A directory named like a message ended a serving party, and 16 of them its descriptors."""
    DirectoryTransport(tmp_path, "loans-1", sealer(AGGREGATOR)).send(status("bank_a", "loans-1"))
    folder = tmp_path / "loans-1" / "bank_a"
    for number in range(20):
        (folder / f"0-status-aggregator-{number:032x}.msg").mkdir()
    os.mkfifo(folder / f"0-status-aggregator-{'a' * 32}.msg")
    held_open = os.open(folder / f"0-status-aggregator-{'a' * 32}.msg", os.O_RDWR)
    calls = FolderCalls(tmp_path, "bank_a", one_asker())
    before = len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(20):
            assert calls.look(nothing) == [Call("loans-1", "asker")]
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(held_open)


def test_folders_files_and_signatures_of_strangers_are_no_calls(tmp_path: Path) -> None:
    stranger = new_key_pair(AGGREGATOR)
    theirs = Sealer(stranger, {"bank_a": PAIRS["bank_a"].public})
    DirectoryTransport(tmp_path, "loans-1", theirs).send(status("bank_a", "loans-1"))
    DirectoryTransport(tmp_path, "loans-2", sealer(AGGREGATOR)).send(status("bank_a", "loans-2"))
    (tmp_path / "loans-2").rename(tmp_path / "loans-3")  # signed for another run
    (tmp_path / "loans-4" / "bank_a").mkdir(parents=True)
    (tmp_path / "loans-4" / "bank_a" / "0-status-aggregator-x.msg").write_bytes(b"nonsense")
    (tmp_path / "loans-5" / "bank_a").mkdir(parents=True)
    (tmp_path / "loans-5" / "bank_a" / "0.msg").symlink_to("/dev/zero")
    (tmp_path / "..hidden").mkdir()
    assert not calls_in(tmp_path, one_asker())
    assert not calls_in(tmp_path / "not-there", one_asker())


def users() -> dict[str, object]:
    """An aggregator, a party that may look for runs, and one that may not."""
    allowed = party_permissions("homo_dp", "bank_a")
    allowed["publish"]["allow"] += [
        "$JS.API.STREAM.NAMES",
        "$JS.API.DIRECT.GET.*.homo_dp.*.to.bank_a.>",
    ]
    listed = [
        {
            "user": AGGREGATOR,
            "password": "pw-aggregator",
            "permissions": aggregator_permissions("homo_dp"),
        },
        {"user": "bank_a", "password": "pw-bank_a", "permissions": allowed},
        {
            "user": "bank_b",
            "password": "pw-bank_b",
            "permissions": party_permissions("homo_dp", "bank_b"),
        },
    ]
    return {"authorization": {"users": listed}}


def test_a_server_lists_the_runs_and_shows_a_party_only_its_own_messages(
    tmp_path: Path, collected: None
) -> None:
    with NatsServer(tmp_path, PARTIES, settings=users()) as server:
        aggregator = NatsTransport(server.config(AGGREGATOR), "loans.1", sealer(AGGREGATOR))
        ends = [
            NatsCalls(server.config(name), name, one_asker("loans.*"))
            for name in ("bank_a", "bank_b")
        ]
        try:
            assert ends[0].look(nothing) == []
            aggregator.send(status("bank_a", "loans.1"))
            for _ in range(2):
                assert ends[0].look(nothing) == [Call("loans.1", "asker")]
            with pytest.raises(TransportError, match=r"STREAM\.NAMES"):
                ends[1].look(nothing)
        finally:
            aggregator.close()
            for end in ends:
                end.close()


def test_a_server_with_more_runs_than_a_look_takes_is_gone_through(
    tmp_path: Path, collected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_runs, "LOOK", 0.0)  # time for one run in a look
    with NatsServer(tmp_path, PARTIES, settings=users()) as server:
        names = ["a-1", "a-2", "a-3", "loans-1"]
        aggregators = [
            NatsTransport(server.config(AGGREGATOR), name, sealer(AGGREGATOR)) for name in names
        ]
        calls = NatsCalls(server.config("bank_a"), "bank_a", one_asker())
        try:
            aggregators[-1].send(status("bank_a", "loans-1"))
            heard = [calls.look(nothing) for _ in range(8)]
            assert heard.count([Call("loans-1", "asker")]) == 2  # every fourth look
        finally:
            calls.close()
            for aggregator in aggregators:
                aggregator.close()


def test_one_connection_serves_all_looks_and_is_made_again_without_a_word(
    tmp_path: Path,
    collected: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # an old connection is known to be gone when no answer comes
    monkeypatch.setattr(runs_of_nats, "_ANSWER", 2.0)
    certificate(tmp_path, "server", certificate(tmp_path, "ca", None))
    tls = {"cert_file": str(tmp_path / "server.pem"), "key_file": str(tmp_path / "server-key.pem")}
    with NatsServer(tmp_path / "server", [], settings={"tls": tls, "authorization": {}}) as server:
        own = server.config(
            "bank_a",
            servers=(f"tls://127.0.0.1:{server.port}",),
            tls={"ca_file": str(tmp_path / "ca.pem")},
        )
        calls = NatsCalls(own, "bank_a", one_asker())
        try:
            assert calls.look(nothing) == []
            kept = calls._client
            assert calls.look(nothing) == []
            assert calls._client is kept
            server.kill()
            with pytest.raises(TransportError, match="does the server run"):
                calls.look(nothing)
            server.start()
            assert calls.look(nothing) == []
            server.kill()
            server.start()
            assert calls.look(nothing) == []  # the old connection is gone, and nobody hears of it
        finally:
            calls.close()
    assert not caplog.records


def test_a_client_is_given_up_also_where_asyncio_has_forgotten_its_connection() -> None:
    class Ended:
        # as asyncio of Python 3.11.2 does after a TLS connection has ended
        def abort(self) -> None:
            raise AttributeError("'NoneType' object has no attribute '_abort'")

    client = SafeClient(encrypted=True)
    client._transport = SimpleNamespace(_io_writer=SimpleNamespace(transport=Ended()))
    client.abandon()
