"""Messages as files in a folder that all sides can reach: a disk, NFS, a synced or mounted bucket, a carried stick.

    <root>/<run>/<recipient>/<round>-<kind>-<sender>-<tag>.msg

A file is written under a temporary name in the recipient's folder, synced and renamed, so it is either absent or
whole. There are no locks and no notifications, which shared file systems do not keep: the recipient looks, often
right after something happened and then ever less. File names are for order and tidying; who sent what is in the seal.
"""

import contextlib
import errno
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from weakref import WeakKeyDictionary

from homo_dp.core.crash import crash_point
from homo_dp.core.errors import MessageError, TransportError, Undeliverable, UnreadableMessage
from homo_dp.core.files import sync_directory
from homo_dp.federation.protocol.messages import Message, check_id
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.federation.protocol.transport import superseded_by
from homo_dp.transport.sealing import Sealer, largest_sealed

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.002  # seconds
LAST_PAUSE: Final = 0.25
_GROWTH: Final = 1.1  # looking costs about a tenth of the time waited, in delay
_WAITING: Final = 256  # files of one sender that may wait; a process of ours leaves a handful
_FEW: Final = 8  # files of one sender that are not counted byte by byte
_LARGEST: Final = 4  # messages of the largest size that may wait of one sender
_TIDYING: Final = 1.0  # seconds that one look spends on removing a flood
_AGAIN: Final = 5.0  # seconds until a file that could not be read is tried again
_ASIDE: Final = 20  # messages kept for a look at why they could not be read
_NAME: Final = re.compile(r"([0-9]{1,10})-([a-z_]{1,20})-([A-Za-z0-9_.-]{1,64})-([0-9a-f]{32})\.msg")


class _File(NamedTuple):
    round: int
    kind: str
    sender: str
    name: str


class DirectoryTransport:
    """One process's end of a shared folder, for one run.

    Guarantees:
        - when `send` returns, the message is whole and on disk; a crash before leaves nothing that is ever read;
        - sending the same message again changes nothing;
        - what was sent of earlier rounds and never fetched is removed when newer of its kind is there;
        - what cannot be opened is logged, counted and removed, or put aside, and does not hold up the rest;
        - a file that cannot be read is left alone, said once and tried again later;
        - senders are heard in turn, and of one that floods the folder only so many files are kept.
    """

    def __init__(self, root: Path | str, run: str, sealer: Sealer) -> None:
        self._root = Path(root)
        self._run = check_id("run", run)
        self._sealer = sealer
        self._pause = FIRST_PAUSE
        self._handed: WeakKeyDictionary[Message, str] = WeakKeyDictionary()
        self._skip: set[str] = set()
        self._later: dict[str, float] = {}  # files that could not be read, and when to try again
        self._served: dict[str, int] = {}  # sender -> when it was heard last, counted in messages
        self._count = 0
        self.refusals = Refusals(sealer.allowed)
        with _explained(self._root):
            if not self._root.exists():
                log.warning("transport.directory=%s: was not there, it is made now; if it is a share, mount it", root)
            self._root.mkdir(parents=True, exist_ok=True)
            self._mode = stat.S_IMODE(self._root.stat().st_mode)
            self._own = self._folder(sealer.name)
            self._remove_leftovers()

    def send(self, message: Message) -> None:
        """Seal `message` and put it in its recipient's folder; on disk when this returns."""
        if message.run != self._run:
            raise MessageError(f"run={message.run!r} is not {self._run!r}, which this transport serves")
        sealed = self._sealer.seal(message)
        name = f"{message.round}-{message.kind}-{message.sender}-{sealed.tag}.msg"
        with _explained(self._root):
            folder = self._folder(message.recipient)
            if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
                raise Undeliverable(f"{folder}: this process may not write there: its owner must open it")
            temporary = folder / f".{message.sender}~{secrets.token_hex(8)}.tmp"
            try:
                self._write(temporary, sealed.pieces)
                crash_point("directory.before_rename")
                os.rename(temporary, folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            crash_point("directory.after_rename")
            sync_directory(folder)
            crash_point("directory.after_sync")
            self._remove_superseded(folder, message, name)
        self._pause = FIRST_PAUSE

    def receive(self, timeout: float) -> Message | None:
        """The next message, earliest round first; None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            with _explained(self._root):
                message = self._next()
            if message is not None:
                self._pause = FIRST_PAUSE
                crash_point("directory.after_receive")
                return message
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(self._pause, left))
            self._pause = min(self._pause * _GROWTH, LAST_PAUSE)

    def done(self, message: Message) -> None:
        """Remove the file of a received message."""
        name = self._handed.pop(message, None)
        if name is not None:
            crash_point("directory.before_done")
            with _explained(self._root):
                (self._own / name).unlink(missing_ok=True)
            self._skip.discard(name)
            crash_point("directory.after_done")

    def close(self) -> None:
        """Nothing to let go of."""

    def _next(self) -> Message | None:
        waiting = self._waiting()
        while waiting:
            sender = min(waiting, key=lambda name: (self._served.get(name, 0), waiting[name][-1]))
            file = waiting[sender].pop()
            if not waiting[sender]:
                del waiting[sender]
            self._count += 1
            self._served[sender] = self._count
            message = self._try(file)
            if message is not None:
                return message
        return None

    def _waiting(self) -> dict[str, list[_File]]:
        """Files to read by sender, the earliest last; what is too much of one sender is removed."""
        found = _scan(self._own)
        names = {file.name for file in found}
        self._skip &= names  # a file that went away and came back is news
        now = time.monotonic()
        self._later = {name: then for name, then in self._later.items() if name in names}
        waiting: dict[str, list[_File]] = {}
        for file in reversed(found):
            if file.name not in self._skip and self._later.get(file.name, 0.0) <= now:
                waiting.setdefault(file.sender, []).append(file)
        for sender in list(waiting):
            if sender not in self._sealer.allowed:
                self._remove(waiting.pop(sender), f"{sender!r} is not on the allow-list")
            elif len(waiting[sender]) > _FEW:
                kept = self._kept(waiting[sender])
                if surplus := waiting[sender][:-kept]:
                    self._remove(surplus, f"more than {_WAITING} files, or too many bytes, of {sender} wait")
                    waiting[sender] = waiting[sender][-kept:]
        return waiting

    def _kept(self, files: list[_File]) -> int:
        """How many of a sender's files, the earliest first, are within what may wait; at least one."""
        left, kept = _LARGEST * largest_sealed(self._sealer.limits), 0
        for file in reversed(files[-_WAITING:]):
            with contextlib.suppress(OSError):
                left -= (self._own / file.name).lstat().st_size
            if left < 0 and kept:
                break
            kept += 1
        return kept

    def _remove(self, files: list[_File], why: str) -> None:
        until, folder, removed = time.monotonic() + _TIDYING, f"{self._own}{os.sep}", 0
        for file in files:
            try:
                os.unlink(folder + file.name)
            except OSError:
                self._skip.add(file.name)
            removed += 1
            if removed % 256 == 0 and time.monotonic() > until:
                break
        self.refusals.note(files[0].sender, self._own / files[0].name, why, count=removed)

    def _try(self, file: _File) -> Message | None:
        path = self._own / file.name
        try:
            message = self._open(file)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # those: superseded by its sender since we looked
                if file.name not in self._later:
                    self.refusals.note(file.sender, path, f"{error.strerror or error}; it is left alone")
                self._later[file.name] = time.monotonic() + _AGAIN
            return None
        except MessageError as refusal:
            self.refusals.note(file.sender, path, refusal)
            self._drop(file.name, aside=isinstance(refusal, UnreadableMessage))
            return None
        self._skip.add(file.name)
        self._handed[message] = file.name
        return message

    def _drop(self, name: str, aside: bool = False) -> None:
        """Remove a refused file or put it aside; one that stays is passed over, one that comes again is news."""
        folder = self._own / "aside"
        try:
            if aside:
                folder.mkdir(exist_ok=True)
            if aside and len(os.listdir(folder)) < _ASIDE:
                os.rename(self._own / name, folder / name)
            else:
                (self._own / name).unlink()
        except OSError:
            self._skip.add(name)

    def _open(self, file: _File) -> Message:
        # Neither a link nor a pipe that somebody put there can make us read elsewhere or hang.
        path = self._own / file.name
        if not stat.S_ISREG(path.lstat().st_mode):
            raise MessageError("it is not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as raw:
            status = os.fstat(descriptor)
            if status.st_size > largest_sealed(self._sealer.limits):
                allowed = self._sealer.limits.bytes
                raise MessageError(f"{status.st_size} bytes, allowed {allowed}: raise transport.max_message_bytes")
            message = self._sealer.open(lambda size: _read(raw, size), status.st_size)
        if message.run != self._run or (message.round, message.kind, message.sender) != file[:3]:
            raise MessageError(f"it holds {message.kind!r} of round {message.round} by {message.sender!r}: misplaced")
        return message

    def _write(self, path: Path, pieces: Iterator[bytes]) -> None:
        crash_point("directory.before_write")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode & 0o666 | 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            crash_point("directory.before_fsync")
            os.fsync(descriptor)

    def _folder(self, recipient: str) -> Path:
        """The folder of `recipient`, made if need be with the mode of the root, so that other users can tidy up."""
        path = self._root / self._run / check_id("recipient", recipient)
        if not path.is_dir():
            for folder in (path.parent, path):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    folder.chmod(self._mode)
                    sync_directory(folder.parent)
        return path

    def _remove_superseded(self, folder: Path, message: Message, name: str) -> None:
        kinds = superseded_by(message.kind)
        for file in _scan(folder):
            older = file.sender == message.sender and file.kind in kinds and file.round <= message.round
            if older and file.name != name:
                with contextlib.suppress(OSError):
                    (folder / file.name).unlink()

    def _remove_leftovers(self) -> None:
        """Temporary files of an earlier life of this process."""
        for recipient in self._sealer.allowed:
            for path in (self._root / self._run / recipient).glob(f".{self._sealer.name}~*.tmp"):
                with contextlib.suppress(OSError):
                    path.unlink()


@contextlib.contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = error.filename or root
        raise TransportError(
            f"{place}: {error.strerror or error}: free space, give the permission or mount the folder, then start "
            "again; nothing that was sent is lost"
        ) from error


def _scan(folder: Path) -> list[_File]:
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                files.append(_File(int(match[1]), match[2], match[3], entry.name))
    return sorted(files)


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size) or b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
