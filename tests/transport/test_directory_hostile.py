"""What others put into an exchange folder: it is skipped, said once, bounded, and nobody else
waits for it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from homo_dp.core.errors import Undeliverable
from homo_dp.federation.protocol.messages import AGGREGATOR, Limits
from homo_dp.transport import sealing
from homo_dp.transport.directory import DirectoryTransport
from tests.processes.permissions import bound_by_permissions
from tests.transport.parts import join, sealer, update, weights

TAG = "0" * 32


def end(root: Path, name: str, limits: Limits | None = None) -> DirectoryTransport:
    return DirectoryTransport(root, "demo", sealer(name, limits))


def in_child(check: Callable[[], int]) -> int:
    """The exit code of `check` in a child for which file modes count, also where the tests run
    as root.
    """
    child = os.fork()
    if child == 0:
        try:
            os._exit(check() if bound_by_permissions() else 0)
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_file_without_read_permission_is_left_alone_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the aggregator at every start."""
    monkeypatch.setattr("homo_dp.transport.directory._AGAIN", 0.0)
    end(tmp_path, "bank_a").send(update(round=1))
    (name,) = os.listdir(tmp_path / "demo" / AGGREGATOR)
    (tmp_path / "demo" / AGGREGATOR / name).chmod(0)
    end(tmp_path, "bank_b").send(update("bank_b", round=2))

    def receive() -> int:
        aggregator = end(tmp_path, AGGREGATOR)
        first = aggregator.receive(0)
        if first is None or first.sender != "bank_b" or aggregator.receive(0) is not None:
            return 1
        if aggregator.refusals.counts != {"strangers": 1}:  # said once, though it was tried twice
            return 2
        os.chmod(tmp_path / "demo" / AGGREGATOR / name, 0o600)
        again = aggregator.receive(0)
        return 0 if again is not None and again.sender == "bank_a" else 3

    assert in_child(receive) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_recipient_whose_folder_is_closed_is_the_only_one_who_gets_nothing() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for party in ("bank_a", "bank_b"):
            end(root, party)
        (root / "demo" / "bank_b").chmod(0)

        def send() -> int:
            aggregator = end(root, AGGREGATOR)
            aggregator.send(weights("bank_a"))
            try:
                aggregator.send(weights("bank_b"))
            except Undeliverable:
                return 0
            return 1

        assert in_child(send) == 0
        (root / "demo" / "bank_b").chmod(0o700)
        shutil.rmtree(root / "demo" / "bank_b")
        (root / "demo" / "bank_b").write_text("a file in place of a folder")
        with pytest.raises(Undeliverable):
            end(root, AGGREGATOR).send(weights("bank_b"))


@pytest.mark.parametrize("place", ["shared", "own"])
def test_a_flood_of_one_sender_delays_nobody_and_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    aggregator = end(tmp_path, AGGREGATOR)
    shared = tmp_path / "demo" / AGGREGATOR
    folder = shared / "from" / "bank_b" if place == "own" else shared
    for number in range(2000):
        (folder / f"{number}-update-bank_b-{TAG}.msg").write_bytes(b"x")
        if number < 500:
            (shared / f"{number}-update-nobody{number}-{TAG}.msg").write_bytes(b"x")
    party = end(tmp_path, "bank_a")
    for number in range(1, 6):
        party.send(update(round=number))
        message = aggregator.receive(0)  # one look
        assert message is not None
        assert (message.sender, message.round) == ("bank_a", number)
        aggregator.done(message)
    for _ in range(1000):
        assert aggregator.receive(0.01) is None
        if not messages_in(shared):
            break
    assert messages_in(shared) == []
    assert aggregator.refusals.counts == {"strangers": 2500}  # bank_b has signed none of them
    assert len(caplog.records) < 40


def messages_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.msg"))


def test_a_look_reads_few_names_of_a_sender_with_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of 100,000 files, listed whole at each look, left 4 to 8 rounds a second to the
    others.
    """
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_a")
    for number in range(3000):
        (
            tmp_path / "demo" / AGGREGATOR / "from" / "bank_b" / f"{number}-update-bank_b-{TAG}.msg"
        ).write_bytes(b"x")
    names = 0
    real = os.scandir

    class Counted:
        def __init__(self, path: Path) -> None:
            self.entries = real(path)

        def close(self) -> None:
            self.entries.close()

        def __iter__(self) -> "Counted":
            return self

        def __next__(self) -> "os.DirEntry[str]":
            nonlocal names
            names += 1
            return next(self.entries)

    party.send(update())
    monkeypatch.setattr("homo_dp.transport.directory.os.scandir", Counted)
    message = aggregator.receive(0)
    monkeypatch.undo()
    assert message is not None
    assert message.sender == "bank_a"
    assert names < 600


def test_a_file_in_the_folder_of_another_sender_is_removed(tmp_path: Path) -> None:
    aggregator = end(tmp_path, AGGREGATOR)
    folder = tmp_path / "demo" / AGGREGATOR
    end(tmp_path, "bank_b").send(update("bank_b"))
    (file,) = messages_in(folder)
    os.rename(file, folder / "from" / "bank_a" / file.name)
    assert aggregator.receive(0) is None
    assert messages_in(folder) == []
    assert aggregator.refusals.counts == {"strangers": 1}


@pytest.mark.parametrize("entries", [300, 3000])
def test_directories_in_a_box_do_not_silence_a_party(tmp_path: Path, entries: int) -> None:
    """300 of them did: its messages were removed as too many."""
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_a")
    box = tmp_path / "demo" / AGGREGATOR / "from" / "bank_a"
    for number in range(entries):
        (box / f"0-update-bank_a-{number:032x}.msg").mkdir()
    for number in range(1, 4):
        party.send(update(round=number))
        message = aggregator.receive(10)
        assert message is not None
        assert message.round == number
        aggregator.done(message)
    assert aggregator.refusals.counts == {}


def test_real_messages_behind_a_flood_of_foreign_files_are_read(tmp_path: Path) -> None:
    """What was not opened was removed as too much."""
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_a")
    box = tmp_path / "demo" / AGGREGATOR / "from" / "bank_a"
    for number in range(1000):
        (box / f"{number}-update-bank_a-{TAG}.msg").write_bytes(b"x")
    party.send(update(round=2000))
    message = next(found for _ in range(100) if (found := aggregator.receive(0.05)) is not None)
    assert (message.sender, message.round) == ("bank_a", 2000)


def test_a_recipient_that_was_not_started_yet_finds_what_was_sent(tmp_path: Path) -> None:
    """Senders find no folder of their own there, as at a recipient of before: both read the
    shared one.
    """
    party = end(tmp_path, "bank_a")
    party.send(update(round=1))
    (before,) = messages_in(tmp_path / "demo" / AGGREGATOR)
    assert before.parent.name == AGGREGATOR
    aggregator = end(tmp_path, AGGREGATOR)
    party.send(update(round=2))
    (after,) = messages_in(tmp_path / "demo" / AGGREGATOR)  # the older one is superseded
    assert after.parent.name == "bank_a"
    message = aggregator.receive(0)
    assert message is not None
    assert message.round == 2


def test_signed_messages_of_one_sender_wait_their_turn(tmp_path: Path) -> None:
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_a")
    # `send` would remove the older ones: a flooder does not keep to our rules
    for number in range(20):
        sealed = sealer("bank_b").seal(join("bank_b", count=number))
        name = f"0-join-bank_b-{sealed.tag}.msg"
        (tmp_path / "demo" / AGGREGATOR / name).write_bytes(b"".join(sealed.pieces))
    party.send(update(round=7))
    heard = [message.sender for message in (aggregator.receive(0) for _ in range(3)) if message]
    assert "bank_a" in heard


def test_large_foreign_files_delay_nobody_and_are_removed(tmp_path: Path) -> None:
    aggregator = end(tmp_path, AGGREGATOR, Limits(bytes=10_000))
    folder = tmp_path / "demo" / AGGREGATOR
    for number in range(50):
        with open(folder / f"{number}-update-bank_b-{TAG}.msg", "wb") as file:
            file.truncate(10_000)
    end(tmp_path, "bank_a").send(update(round=60))
    message = aggregator.receive(0)
    assert message is not None
    assert message.sender == "bank_a"
    aggregator.done(message)
    for _ in range(100):
        assert aggregator.receive(0.01) is None
    assert messages_in(folder) == []


def test_a_message_that_raises_what_nobody_foresaw_is_put_aside_and_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads = []

    def broken(*arguments: object) -> None:
        reads.append(arguments)
        raise RuntimeError("Stride calculation overflowed\x1b[2J")

    end(tmp_path, "bank_b").send(update("bank_b"))
    monkeypatch.setattr(sealing, "decode", broken)
    for _ in range(2):  # a start, and a second one
        assert end(tmp_path, AGGREGATOR).receive(0) is None
    monkeypatch.undo()
    assert len(reads) == 1
    assert len(os.listdir(tmp_path / "demo" / AGGREGATOR / "aside")) == 1
    end(tmp_path, "bank_a").send(update())
    message = end(tmp_path, AGGREGATOR).receive(0)
    assert message is not None
    assert message.sender == "bank_a"
    assert "RuntimeError" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)
