"""The shared folder: whole files only, tidy, resumable, indifferent to strangers' files."""

import contextlib
import errno
import importlib
import logging
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from homo_dp.core import crash_points
from homo_dp.core.errors import MessageError, TransportError, Undeliverable
from homo_dp.federation.protocol.messages import AGGREGATOR, Limits, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.directory import DirectoryTransport
from tests.transport.parts import PARTIES, join, sealer, update, weights


def end(
    root: Path, name: str, run: str = "demo", limits: Limits | None = None
) -> DirectoryTransport:
    return DirectoryTransport(root, run, sealer(name, limits))


def files(root: Path, name: str, run: str = "demo") -> list[str]:
    """Names of the files in the folder of `name`, and in those of its senders."""
    return sorted(path.name for path in (root / run / name).rglob("*") if not path.is_dir())


def test_messages_go_both_ways_and_leave_nothing_behind(tmp_path: Path) -> None:
    aggregator, parties = end(tmp_path, AGGREGATOR), {name: end(tmp_path, name) for name in PARTIES}
    assert isinstance(aggregator, Transport)
    for number in (1, 2):
        for name in PARTIES:
            aggregator.send(weights(name, number))
        for name, party in parties.items():
            asked = party.receive(5)
            assert asked is not None
            assert asked.round == number
            party.send(update(name, number))
            party.done(asked)
        answers = [aggregator.receive(5) for _ in PARTIES]
        assert {answer.sender for answer in answers if answer} == set(PARTIES)
        for answer in answers:
            assert answer is not None
            assert torch.equal(answer.tensors["w"], torch.full((3,), float(number)))
            aggregator.done(answer)
    assert aggregator.receive(0) is None
    assert all(files(tmp_path, name) == [] for name in (AGGREGATOR, *PARTIES))


def test_a_message_comes_again_after_a_crash_until_it_is_done(tmp_path: Path) -> None:
    end(tmp_path, AGGREGATOR).send(weights())
    party = end(tmp_path, "bank_a")
    assert party.receive(0) is not None
    assert party.receive(0) is None  # once in a life of the process
    party = end(tmp_path, "bank_a")
    again = party.receive(0)
    assert again is not None
    party.done(again)
    party.done(again)
    assert end(tmp_path, "bank_a").receive(0) is None


def test_sending_again_is_one_message_until_it_was_done(tmp_path: Path) -> None:
    party, aggregator = end(tmp_path, "bank_a"), end(tmp_path, AGGREGATOR)
    message = update()
    party.send(message)
    party.send(message)
    assert len(files(tmp_path, AGGREGATOR)) == 1
    first = aggregator.receive(0)
    assert first is not None
    party.send(message)
    assert aggregator.receive(0) is None
    aggregator.done(first)
    party.send(message)  # a resend after that is delivered: the receiver's Inbox knows it
    assert aggregator.receive(0) is not None


def test_earliest_round_first_and_older_ones_of_a_sender_are_superseded(tmp_path: Path) -> None:
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_a")
    for number in (1, 2, 10, 11):
        aggregator.send(weights(round=number))
    assert [name.split("-")[:2] for name in files(tmp_path, "bank_a")] == [["11", "weights"]]
    aggregator.send(weights(round=11, kind="finished"))
    assert [name.split("-")[:2] for name in files(tmp_path, "bank_a")] == [["11", "finished"]]
    party.send(update(round=10))
    end(tmp_path, "bank_b").send(update("bank_b", round=9))
    party.send(join(count=1))
    party.send(join(count=2))
    received = [aggregator.receive(0) for _ in range(4)]
    assert [(m.kind, m.round, m.sender) for m in received if m] == [
        ("join", 0, "bank_a"),
        ("update", 9, "bank_b"),
        ("update", 10, "bank_a"),
    ]
    assert received[0] is not None
    assert received[0].info["ledger_head"] == {"count": 2, "hash": f"{2:064x}"}


def test_two_runs_in_one_folder_do_not_mix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = end(tmp_path, "bank_a", "one"), end(tmp_path, "bank_a", "two")
    one.send(update(run="one"))
    with pytest.raises(MessageError, match="which this transport serves"):
        one.send(update(run="two"))
    assert end(tmp_path, AGGREGATOR, "two").receive(0) is None
    two.send(update(run="two"))
    (moved,) = files(tmp_path, AGGREGATOR, "one")
    os.rename(tmp_path / "one" / AGGREGATOR / moved, tmp_path / "two" / AGGREGATOR / moved)
    received = end(tmp_path, AGGREGATOR, "two").receive(0)
    assert received is not None
    assert received.run == "two"


def sealed(message: Message) -> bytes:
    return b"".join(sealer(message.sender).seal(message).pieces)


TAG = "0" * 32


def test_bad_files_are_logged_once_removed_and_do_not_hold_up_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = end(tmp_path, AGGREGATOR, limits=Limits(bytes=10_000))
    folder = tmp_path / "demo" / AGGREGATOR
    bad = {
        f"1-update-bank_a-{TAG}.msg": b"garbage",
        f"1-update-bank_b-{TAG}.msg": sealed(update("bank_a")),  # another's name on the envelope
        f"2-update-bank_a-{TAG}.msg": sealed(update("bank_a")),  # an old message as a new round
        f"3-update-bank_a-{TAG}.msg": sealed(update(round=3))[:-5],
        f"4-update-bank_a-{TAG}.msg": sealed(update(round=4, size=100_000)),
        f"5-update-stranger-{TAG}.msg": b"HDS\x01",
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    os.mkfifo(folder / f"6-update-bank_a-{TAG}.msg")
    (folder / f"7-update-bank_a-{TAG}.msg").symlink_to("/dev/zero")
    (folder / f"8-update-bank_a-{TAG}.msg").mkdir()
    (folder / "notes.txt").write_text("left alone")
    end(tmp_path, "bank.c-3").send(update("bank.c-3", round=9))
    with caplog.at_level(logging.WARNING):
        received = aggregator.receive(0)
        assert aggregator.receive(0) is None
    assert received is not None
    assert received.sender == "bank.c-3"
    # the pipe, the link and the directory share one line
    assert len(caplog.records) == len(bad) + 1
    assert aggregator.refusals.counts == {"strangers": len(bad)}  # none of them is signed
    assert all("\n" not in record.getMessage() for record in caplog.records)
    known = len(caplog.records)
    assert aggregator.receive(0.05) is None
    assert len(caplog.records) == known
    assert [name for name in files(tmp_path, AGGREGATOR) if name in bad] == []
    assert "notes.txt" in files(tmp_path, AGGREGATOR)


def test_names_come_from_checked_ids_only(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="run="):
        end(tmp_path, "bank_a", "../elsewhere")
    with pytest.raises(MessageError):
        end(tmp_path, AGGREGATOR).send(weights("../bank_a"))


def test_waiting_returns_when_a_message_comes(tmp_path: Path) -> None:
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_a")
    timer = threading.Timer(0.2, lambda: party.send(update()))
    timer.start()
    assert aggregator.receive(30) is not None
    timer.join()


def test_an_unfinished_file_is_never_read_and_a_restart_removes_it(tmp_path: Path) -> None:
    aggregator = end(tmp_path, AGGREGATOR)
    leftover = tmp_path / "demo" / AGGREGATOR / ".bank_a~0123456789abcdef.tmp"
    leftover.write_bytes(sealed(update()))
    assert aggregator.receive(0) is None
    end(tmp_path, "bank_b")
    assert leftover.exists()
    end(tmp_path, "bank_a")
    assert not leftover.exists()


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A full disk, as far as writes can tell: they fail with an OSError part of the way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def test_a_write_that_fails_part_way_leaves_nothing_and_works_later(tmp_path: Path) -> None:
    party, aggregator = end(tmp_path, "bank_a"), end(tmp_path, AGGREGATOR)
    message = update(size=100_000)
    with file_size_limit(50_000), pytest.raises(TransportError) as failure:
        party.send(message)
    assert "start again" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert files(tmp_path, AGGREGATOR) == []
    party.send(message)
    assert aggregator.receive(0) is not None


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransportError, match="file"):
        end(tmp_path / "file", "bank_a")


def test_a_share_that_is_away_for_a_while_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One I/O error took a served party out for ten minutes, while the others paid for rounds."""
    party, aggregator = end(tmp_path / "root", "bank_a"), end(tmp_path / "root", AGGREGATOR)
    os.rename(tmp_path / "root", tmp_path / "unmounted")
    assert party.receive(0.1) is None
    back = threading.Timer(0.5, lambda: os.rename(tmp_path / "unmounted", tmp_path / "root"))
    back.start()
    party.send(update())  # waits for the share
    back.join()
    message = aggregator.receive(0)
    assert message is not None
    aggregator.done(message)
    assert files(tmp_path / "root", AGGREGATOR) == []
    assert caplog.text.count("trying again") == 1
    assert caplog.text.count("can be used again") == 1


def test_a_share_that_stays_away_is_one_line_after_the_patience(tmp_path: Path) -> None:
    party = DirectoryTransport(tmp_path / "root", "demo", sealer("bank_a"), patience=0.2)
    os.rename(tmp_path / "root", tmp_path / "unmounted")
    with pytest.raises(TransportError, match="mount the folder"):
        party.send(update())
    with pytest.raises(TransportError, match="mount the folder"):
        party.receive(10)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["open", "rename", "scandir", "unlink"])
def test_an_io_error_that_passes_costs_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    party, aggregator = end(tmp_path, "bank_a"), end(tmp_path, AGGREGATOR)
    real, failures = getattr(os, call), [OSError(number, os.strerror(number))] * 2

    def failing(*arguments: object, **named: object) -> object:
        if failures:
            raise failures.pop()
        return real(*arguments, **named)

    monkeypatch.setattr(f"homo_dp.transport.directory.os.{call}", failing)
    party.send(update())
    message = aggregator.receive(10)
    assert message is not None
    aggregator.done(message)
    assert aggregator.receive(0.1) is None
    assert not failures
    assert files(tmp_path, AGGREGATOR) == []


def test_an_io_error_at_the_start_of_a_process_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the process, and a serving party left the run alone for up to ten minutes."""
    real, failures = os.mkdir, [errno.ESTALE, errno.EIO]

    def failing(path: object, *arguments: int) -> None:
        if failures and "demo" in str(path):
            number = failures.pop()
            raise OSError(number, os.strerror(number), str(path))
        real(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("homo_dp.transport.directory.os.mkdir", failing)
    end(tmp_path, AGGREGATOR)
    assert not failures
    failures.extend([errno.ESTALE] * 100)
    with pytest.raises(TransportError, match="mount the folder"):
        DirectoryTransport(tmp_path, "demo-2", sealer(AGGREGATOR), patience=0.2)


def test_a_permission_that_cannot_be_asked_for_is_not_taken_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.access` answers any I/O error by no, which ended a party's process."""
    aggregator = end(tmp_path, AGGREGATOR)
    monkeypatch.setattr("homo_dp.transport.directory.os.access", lambda *_: False)
    end(tmp_path, "bank_a").send(update())
    assert aggregator.receive(0) is not None


def test_an_entry_of_which_the_type_cannot_be_read_costs_no_other_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that gives no types, one damaged entry made every look fail."""

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self._entry = entry.name, entry

        def is_file(self, *, follow_symlinks: bool) -> bool:
            if self.name.startswith("1-"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
            return self._entry.is_file(follow_symlinks=follow_symlinks)

    aggregator = end(tmp_path, AGGREGATOR)
    end(tmp_path, "bank_a").send(update(round=1))
    end(tmp_path, "bank_b").send(update("bank_b", round=2))
    real = os.scandir

    class Entries:
        def __init__(self, path: Path) -> None:
            self._real = real(path)
            self.close = self._real.close

        def __iter__(self) -> Iterator[Entry]:
            return map(Entry, self._real)

    monkeypatch.setattr("homo_dp.transport.directory.os.scandir", Entries)
    message = aggregator.receive(0)
    assert message is not None
    assert message.sender == "bank_b"


def test_one_recipient_whose_folder_fails_does_not_stop_the_aggregator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homo_dp.transport.directory._BRIEF", 0.2)
    aggregator, party = end(tmp_path, AGGREGATOR), end(tmp_path, "bank_b")
    real = os.open

    def failing(path: object, *arguments: int) -> int:
        if "bank_a" in str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("homo_dp.transport.directory.os.open", failing)
    with pytest.raises(Undeliverable, match="bank_a"):
        aggregator.send(weights("bank_a"))
    aggregator.send(weights("bank_b"))
    assert party.receive(0) is not None


def test_a_folder_that_is_made_is_not_open_to_everybody(tmp_path: Path) -> None:
    """It had mode 0777 where the umask was 000."""
    previous = os.umask(0)
    try:
        end(tmp_path / "above" / "share", "bank_a")
    finally:
        os.umask(previous)
    for path in (tmp_path / "above").rglob("*"):
        assert not path.stat().st_mode & 0o002, path


def test_a_folder_that_had_to_be_made_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a share is not mounted, a process would wait beside an empty folder and nobody would
    know.
    """
    end(tmp_path / "share", "bank_a")
    end(tmp_path / "share", AGGREGATOR)
    assert caplog.text.count("if it is a share, mount it") == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_missing_permission_is_one_line_and_the_rest_works_once_it_is_given() -> None:
    # not tmp_path, whose parents are closed to the user nobody
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        aggregator = end(root, AGGREGATOR)
        (root / "demo" / AGGREGATOR).chmod(0o555)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                end(root, AGGREGATOR).send(weights("bank_b"))
            except TransportError as refusal:
                os._exit(
                    7 if "Permission denied" in str(refusal) and "\n" not in str(refusal) else 8
                )
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        aggregator.send(weights("bank_b"))
        assert len(files(root, "bank_b")) == 1
        (root / "demo" / AGGREGATOR).chmod(0o755)


def test_folders_take_the_mode_of_the_root_so_that_a_group_can_share_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    end(tmp_path, "bank_a").send(update())
    folder = tmp_path / "demo" / AGGREGATOR
    assert folder.stat().st_mode & 0o7777 == 0o2770
    previous = os.umask(0o002)
    end(tmp_path, "bank_a").send(update(round=2))
    os.umask(previous)
    (name,) = files(tmp_path, AGGREGATOR)
    assert (folder / name).stat().st_mode & 0o060 == 0o060


def send_and_die(root: Path, message: Message, point: str | None) -> int:
    """Send from a child of this process, killed at a crash point; its exit code, minus the
    signal.
    """
    child = os.fork()
    if child == 0:
        os.environ["HOMO_DP_CRASH_AT"] = f"directory.{point}" if point else ""
        importlib.reload(crash_points)
        end(root, message.sender).send(message)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_sender_killed_at_any_point_sends_nothing_or_all_and_once(tmp_path: Path) -> None:
    aggregator, message = end(tmp_path, AGGREGATOR), update(size=1000)
    for point in ("before_write", "before_fsync", "before_rename"):
        assert send_and_die(tmp_path, message, point) == -signal.SIGKILL
        assert aggregator.receive(0) is None
    for point in ("after_rename", "after_sync"):
        assert send_and_die(tmp_path, message, point) == -signal.SIGKILL
        assert len([name for name in files(tmp_path, AGGREGATOR) if name.endswith(".msg")]) == 1
    assert send_and_die(tmp_path, message, None) == 0
    assert len(files(tmp_path, AGGREGATOR)) == 1
    received = aggregator.receive(0)
    assert received is not None
    assert torch.equal(received.tensors["w"], message.tensors["w"])
    aggregator.done(received)
    assert files(tmp_path, AGGREGATOR) == []
