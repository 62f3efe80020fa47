"""Messages as files in a folder that all sides can reach: a disk, NFS, a synced or mounted bucket, a USB stick.

    <root>/<run>/<recipient>/from/<sender>/<round>-<kind>-<sender>-<tag>.msg

A file is written under a temporary name in its folder, synced and renamed, so it is either absent or whole. There are
no locks and no notifications, which shared file systems do not offer: the recipient polls, often right after a message
and then less and less. File names give the order; who sent a message is in its seal.

The recipient makes a folder for each sender, so that it reads few names of one that sends many and all of the others.
Where it has not (it was not started yet, or is older), senders write to its own folder, which it reads, too.
"""

import contextlib
import errno
import itertools
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

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import MessageError, TransportError, Undeliverable, UnreadableMessage
from homo_dp.core.files import sync_directory
from homo_dp.federation.protocol.messages import Message, check_id
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.federation.protocol.transport import ASKED_AGAIN, superseded_by
from homo_dp.transport.sealing import Sealer, largest_sealed

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.002  # seconds
LAST_PAUSE: Final = 0.25
_GROWTH: Final = (
    1.1  # a message is found late by at most about a tenth of the time that was waited for it
)
_WAITING: Final = 256  # files of one sender that may wait; a process of ours leaves a handful
_FEW: Final = 8  # files of one sender that are not counted byte by byte
_LARGEST: Final = 4  # messages of the largest size that may wait of one sender
_NAMES: Final = 512  # names that one look reads in the folder of a sender
_TIDYING: Final = 0.002  # seconds that one look spends on removing a flood
_REFUSED: Final = 32  # files that one look refuses
_SHARE: Final = 20  # a folder that many write to is listed for one part in so many of the time
_AGAIN: Final = 5.0  # seconds until a file that could not be read is tried again
_ASIDE: Final = 20  # messages kept for a look at why they could not be read
BOXES: Final = "from"  # in the folder of a recipient: the folders of its senders
_NAME: Final = re.compile(
    r"([0-9]{1,10})-([a-z_]{1,20})-([A-Za-z0-9_.-]{1,64})-([0-9a-f]{32})\.msg"
)


class _File(NamedTuple):
    round: int
    kind: str
    sender: str
    path: str


class _Listing(NamedTuple):
    """The messages that one look found in a folder, and when it may be listed again."""

    files: list[_File]
    again: float = 0.0


class DirectoryTransport:
    """One process's end of a shared folder, for one run.

    Guarantees:
        - when `send` returns, the message is whole and on disk; a crash before leaves nothing that is ever read;
        - sending the same message again changes nothing;
        - what was sent of earlier rounds and never fetched is removed when newer of its kind is there;
        - what cannot be opened is logged, counted and removed, or put aside, and does not hold up the rest;
        - a file that cannot be read is left alone, said once and tried again later;
        - senders are heard in turn, and of one that floods its folder only so many files are read or kept: a look
          takes as long for a hundred thousand files of one sender as for some hundred.
    """

    def __init__(self, root: Path | str, run: str, sealer: Sealer) -> None:
        self._root = Path(root)
        self._run = check_id("run", run)
        self._sealer = sealer
        self._pause = FIRST_PAUSE
        self._handed: WeakKeyDictionary[Message, str] = WeakKeyDictionary()  # paths of files
        self._skip: set[str] = set()
        self._doomed: dict[str, None] = {}  # paths that are to be removed, in order
        self._shared = _Listing([])  # the last look at the folder that everybody may write to
        self._later: dict[str, float] = {}  # files that could not be read, and when to try again
        self._served: dict[str, int] = {}  # sender -> when it was heard last, counted in messages
        self._count = 0
        self.refusals = Refusals(sealer.allowed)
        with _explained(self._root):
            if not self._root.exists():
                log.warning(
                    "transport.directory=%s: was not there, it is made now; if it is a share, mount it",
                    root,
                )
            self._root.mkdir(parents=True, exist_ok=True)
            self._mode = stat.S_IMODE(self._root.stat().st_mode)
            self._own = self._folder(sealer.name)
            self._boxes = self._make_boxes()
            self._remove_leftovers()

    def send(self, message: Message) -> None:
        """Seal `message` and put it in its recipient's folder; on disk when this returns.

        Of a kind that is asked again, it is whole after the crash of a process and may be lost with the machine: for
        those nobody waits for the disk.
        """
        if message.run != self._run:
            raise MessageError(
                f"run={message.run!r} is not {self._run!r}, which this transport serves"
            )
        sealed = self._sealer.seal(message)
        name = f"{message.round}-{message.kind}-{message.sender}-{sealed.tag}.msg"
        sync = message.kind not in ASKED_AGAIN
        with _explained(self._root):
            folder = self._folder(message.recipient)
            if (
                folder.is_dir()
                and os.access(folder, os.X_OK)
                and (box := folder / BOXES / message.sender).is_dir()
            ):
                folder = box
            if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
                raise Undeliverable(
                    f"{folder}: this process may not write there: its owner must open it"
                )
            temporary = folder / f".{message.sender}~{secrets.token_hex(8)}.tmp"
            try:
                self._write(temporary, sealed.pieces, sync=sync)
                crash_point("directory.before_rename")
                os.rename(temporary, folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            crash_point("directory.after_rename")
            if sync:
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
        path = self._handed.pop(message, None)
        if path is not None:
            crash_point("directory.before_done")
            with _explained(self._root), contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._skip.discard(path)
            crash_point("directory.after_done")

    def close(self) -> None:
        """Nothing to do: no file or lock is held."""

    def _next(self) -> Message | None:
        waiting = self._waiting()
        for _ in range(_REFUSED):
            if not waiting:
                return None
            sender = min(waiting, key=lambda name: (self._served.get(name, 0), waiting[name][-1]))
            file = waiting[sender].pop()
            if not waiting[sender]:
                del waiting[sender]
            self._count += 1
            self._served[sender] = self._count
            message = self._try(file)
            if message is not None:
                return message
        self._pause = FIRST_PAUSE  # the rest soon, at a look that sees what others have sent since
        return None

    def _waiting(self) -> dict[str, list[_File]]:
        """Files to read by sender, the earliest last."""
        found = [
            *self._shared_files(),
            *(file for box in self._boxes.values() for file in self._box_files(box)),
        ]
        self._tidy()
        paths = {file.path for file in found}
        self._skip &= paths  # a file that went away and came back is news
        now = time.monotonic()
        self._later = {path: then for path, then in self._later.items() if path in paths}
        waiting: dict[str, list[_File]] = {}
        for file in sorted(found, reverse=True):
            if file.path not in self._skip and self._later.get(file.path, 0.0) <= now:
                waiting.setdefault(file.sender, []).append(file)
        return waiting

    def _shared_files(self) -> list[_File]:
        """Messages of senders that found no folder of their own here. All names are read, so not at every look."""
        start = time.monotonic()
        if start >= self._shared.again:
            files = _scan(self._own)
            kept = self._bounded(files)
            now = time.monotonic()
            self._shared = _Listing(
                kept, now + _SHARE * (now - start) if len(files) > _NAMES else 0.0
            )
        return self._shared.files

    def _box_files(self, box: Path) -> list[_File]:
        """Messages in the folder of one sender, out of the first names that it holds."""
        try:
            files = _scan(box, _NAMES)
        except (
            FileNotFoundError,
            NotADirectoryError,
        ):  # removed by somebody: senders write to the shared folder then
            return []
        strange = [file for file in files if file.sender != box.name]
        if strange:
            self._doom(box.name, strange, f"it is not by {box.name}, whose folder this is")
        return self._bounded([file for file in files if file.sender == box.name])

    def _bounded(self, files: list[_File]) -> list[_File]:
        """The files of a folder, the earliest first, less what is too much of one sender: that is to be removed."""
        by_sender: dict[str, list[_File]] = {}
        for file in files:
            if file.path not in self._doomed:
                by_sender.setdefault(file.sender, []).append(file)
        for sender, sent in by_sender.items():
            if sender not in self._sealer.allowed:
                self._doom(sender, sent, f"{sender!r} is not on the allow-list")
                by_sender[sender] = []
            elif len(sent) > _FEW and len(sent) > (kept := self._kept(sent)):
                self._doom(
                    sender,
                    sent[kept:],
                    f"more than {_WAITING} files, or too many bytes, of {sender} wait",
                )
                by_sender[sender] = sent[:kept]
        return [file for sent in by_sender.values() for file in sent]

    def _doom(self, sender: str, files: list[_File], why: str) -> None:
        new = [
            file.path
            for file in files
            if file.path not in self._doomed and file.path not in self._skip
        ]
        if new:
            self._doomed |= dict.fromkeys(new)
            self.refusals.note(sender, new[0], why, count=len(new))

    def _tidy(self) -> None:
        """Remove what is too much, for a moment at each look, so that it delays nobody."""
        until = time.monotonic() + _TIDYING
        for number, path in enumerate(list(itertools.islice(self._doomed, _WAITING))):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError:
                self._skip.add(path)
            del self._doomed[path]
            if number % 16 == 0 and time.monotonic() > until:
                break
        if self._doomed:
            self._pause = FIRST_PAUSE

    def _kept(self, files: list[_File]) -> int:
        """How many of a sender's files, the earliest first, are within what may wait; at least one."""
        left, kept = _LARGEST * largest_sealed(self._sealer.limits), 0
        for file in files[:_WAITING]:
            with contextlib.suppress(OSError):
                left -= os.lstat(file.path).st_size
            if left < 0 and kept:
                break
            kept += 1
        return kept

    def _try(self, file: _File) -> Message | None:
        try:
            message = self._open(file)
        except OSError as error:
            if error.errno not in (
                errno.ENOENT,
                errno.ESTALE,
            ):  # these were replaced by their sender since the last look
                if file.path not in self._later:
                    self.refusals.note(
                        file.sender, file.path, f"{error.strerror or error}; it is left alone"
                    )
                self._later[file.path] = time.monotonic() + _AGAIN
            return None
        except MessageError as refusal:
            self.refusals.note(file.sender, file.path, refusal)
            self._drop(file.path, aside=isinstance(refusal, UnreadableMessage))
            return None
        self._skip.add(file.path)
        self._handed[message] = file.path
        return message

    def _drop(self, path: str, aside: bool = False) -> None:
        """Remove a refused file or put it aside; one that stays is passed over, one that comes again is news."""
        folder = self._own / "aside"
        try:
            if aside:
                folder.mkdir(exist_ok=True)
            if aside and len(os.listdir(folder)) < _ASIDE:
                os.rename(path, folder / os.path.basename(path))
            else:
                os.unlink(path)
        except OSError:
            self._skip.add(path)

    def _open(self, file: _File) -> Message:
        # Neither a link nor a pipe that somebody put there can make us read elsewhere or hang.
        if not stat.S_ISREG(os.lstat(file.path).st_mode):
            raise MessageError("it is not a regular file")
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as raw:
            status = os.fstat(descriptor)
            if status.st_size > largest_sealed(self._sealer.limits):
                allowed = self._sealer.limits.bytes
                raise MessageError(
                    f"{status.st_size} bytes, allowed {allowed}: raise transport.max_message_bytes"
                )
            message = self._sealer.open(lambda size: _read(raw, size), status.st_size)
        if message.run != self._run or (message.round, message.kind, message.sender) != file[:3]:
            raise MessageError(
                f"it holds {message.kind!r} of round {message.round} by {message.sender!r}: misplaced"
            )
        return message

    def _write(self, path: Path, pieces: Iterator[bytes], *, sync: bool) -> None:
        crash_point("directory.before_write")
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode & 0o666 | 0o600
        )
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            crash_point("directory.before_fsync")
            if sync:
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

    def _make_boxes(self) -> dict[str, Path]:
        """A folder for each sender; without it, as where this process may not make one, the shared folder serves."""
        boxes = {sender: self._own / BOXES / sender for sender in self._sealer.allowed}
        with contextlib.suppress(PermissionError):
            for folder in (self._own / BOXES, *boxes.values()):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    folder.chmod(self._mode)
            sync_directory(self._own / BOXES)
            sync_directory(self._own)
        return boxes

    def _remove_superseded(self, folder: Path, message: Message, name: str) -> None:
        kinds = superseded_by(message.kind)
        for place in {folder, self._root / self._run / message.recipient}:
            for file in _scan(place, _NAMES):
                older = (
                    file.sender == message.sender
                    and file.kind in kinds
                    and file.round <= message.round
                )
                if older and not (place == folder and os.path.basename(file.path) == name):
                    with contextlib.suppress(OSError):
                        os.unlink(file.path)

    def _remove_leftovers(self) -> None:
        """Temporary files of an earlier life of this process."""
        for recipient in self._sealer.allowed:
            folder = self._root / self._run / recipient
            for place in (folder, folder / BOXES / self._sealer.name):
                with contextlib.suppress(OSError):
                    for path in place.glob(f".{self._sealer.name}~*.tmp"):
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


def _scan(folder: Path, most: int | None = None) -> list[_File]:
    """The messages in a folder, in order, out of its first ``most`` names: more are not read."""
    files, place = [], f"{folder}{os.sep}"
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, most):
            if match := _NAME.fullmatch(entry.name):
                files.append(_File(int(match[1]), match[2], match[3], place + entry.name))
    return sorted(files)


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size) or b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
