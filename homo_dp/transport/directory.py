"""Messages as files in a folder that all sides can reach: a disk, NFS, a synced or mounted bucket,
a USB stick.

    <root>/<run>/<recipient>/from/<sender>/<round>-<kind>-<sender>-<tag>.msg

A file is written under a temporary name in its folder, synced and renamed, so it is either absent
or whole. There are no locks and no notifications, which shared file systems do not offer: the
recipient polls, often right after a message and then less and less. File names give the order; who
sent a message is in its seal.

An I/O error of a share often passes (a server restarts, a handle is stale, a disk is full until
somebody makes room): such an operation is tried again, with pauses.

The recipient makes a folder for each sender, so that it reads few names of one that sends many and
all of the others. Where it has not (it was not started yet, or is older), senders write to its own
folder, which it reads, too.
"""

import contextlib
import errno
import itertools
import logging
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from weakref import WeakKeyDictionary

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import (
    MessageError,
    TransportError,
    Undeliverable,
    UnreadableMessage,
    one_line,
)
from homo_dp.core.files import is_certainly, open_regular, sync_directory
from homo_dp.federation.protocol.messages import AGGREGATOR, Message, check_id
from homo_dp.federation.protocol.refusals import STRANGERS, Refusals
from homo_dp.federation.protocol.transport import ASKED_AGAIN, superseded_by
from homo_dp.transport.sealing import Sealer, largest_sealed

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.002  # seconds
LAST_PAUSE: Final = 0.25
# a message is found late by at most about a tenth of the time that was waited for it
_GROWTH: Final = 1.1
_NAMES: Final = 512  # names that one look reads in a folder; the next look goes on from there
_REFUSED: Final = 32  # files that one look refuses
_MORE: Final = 0.02  # seconds between looks at a folder of which the last look saw a part
_FIRST_RETRY, _LAST_RETRY = 0.05, 5.0  # seconds between attempts after an I/O error
_BRIEF: Final = 3.0  # seconds for which the aggregator tries to reach one recipient
# what may pass: a share that is away or read-only for a moment, a full disk, too many open files
_PASSING: Final = frozenset(
    {errno.ENOENT, errno.ESTALE, errno.EIO, errno.ENODEV, errno.ENXIO, errno.EAGAIN, errno.EBUSY}
    | {errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.EREMOTEIO}
    | {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNREFUSED}
    | {errno.EROFS}
)
_AGAIN: Final = 5.0  # seconds until a file that could not be read is tried again
_ASIDE: Final = 20  # messages kept for a look at why they could not be read
BOXES: Final = "from"  # in the folder of a recipient: the folders of its senders
MESSAGE_NAME: Final = re.compile(
    r"([0-9]{1,10})-([a-z_]{1,20})-([A-Za-z0-9_.-]{1,64})-([0-9a-f]{32})\.msg"
)


class _File(NamedTuple):
    round: int
    kind: str
    sender: str
    path: str


class _Folder:
    """A folder with messages, read some names at a time.

    A look reads at most ``_NAMES`` names and the next one goes on from there, so that neither many
    messages nor many foreign entries hide a message: they delay it.
    """

    def __init__(self, path: Path, *, quiet: bool = False) -> None:
        self.path = path
        self._entries: Iterator[os.DirEntry[str]] | None = None
        self._close: Callable[[], None] = lambda: None
        # files that are passed over, and until when (monotonic): in hand, not removable, unreadable
        self.held: dict[str, float] = {}
        self._met: set[str] = set()  # of those, the ones that this pass has found
        self._told = quiet  # whether foreign entries were said

    @property
    def is_read(self) -> bool:
        """Whether the last look came to the end of the folder."""
        return self._entries is None

    def look(self) -> list[_File]:
        """The messages among the next names, in order, without those that are held."""
        try:
            return self._look()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the folder; the next look begins anew."""
        self._close()
        self._entries, self._met = None, set()
        self._close = lambda: None

    def _look(self) -> list[_File]:
        if self._entries is None:
            entries = os.scandir(self.path)
            self._entries, self._close = iter(entries), entries.close
        names = list(itertools.islice(self._entries, _NAMES))
        files = [file for entry in names if (file := self._message(entry)) is not None]
        if len(names) < _NAMES:
            # a file that went away and comes back is a new one
            for path in self.held.keys() - self._met:
                del self.held[path]
            self.close()
        now = time.monotonic()
        return sorted(file for file in files if self.held.get(file.path, 0.0) <= now)

    def _message(self, entry: os.DirEntry[str]) -> _File | None:
        match = MESSAGE_NAME.fullmatch(entry.name)
        if match is None:
            return None
        path = f"{self.path}{os.sep}{entry.name}"
        if not is_certainly(entry.is_file):
            if not self._told:
                self._told = True
                log.warning("%s: is not a regular file; such entries are ignored", one_line(path))
            return None
        if path in self.held:
            self._met.add(path)
        return _File(int(match[1]), match[2], match[3], path)


class DirectoryTransport:
    """One process's end of a shared folder, for one run.

    Guarantees:
        - when `send` returns, the message is whole and on disk; a crash before leaves nothing that
          is ever read;
        - sending the same message again changes nothing;
        - what was sent of earlier rounds and never fetched is removed when newer of its kind is
          there;
        - what cannot be opened is logged, counted and removed, or put aside, and does not hold up
          the rest; nothing is removed for being too much;
        - only regular files are messages; other entries neither count nor are touched;
        - the log names a party only for a message that it signed;
        - a file that cannot be read is left alone, said once and tried again later;
        - senders are heard in turn, and a look takes as long for a hundred thousand files of one
          sender as for some hundred;
        - an I/O error that may pass ends nothing: the operation is tried again for up to
          ``patience`` seconds. The aggregator gives up a single recipient after some seconds.
    """

    def __init__(
        self, root: Path | str, run: str, sealer: Sealer, *, patience: float = 300.0
    ) -> None:
        self._root = Path(root)
        self._patience = patience
        self._trouble_since: float | None = None
        self._run = check_id("run", run)
        self._sealer = sealer
        self._pause = FIRST_PAUSE
        self._handed: WeakKeyDictionary[Message, str] = WeakKeyDictionary()  # paths of files
        self._done: set[str] = set()  # paths of messages that are done, and not removed yet
        self._served: dict[str, int] = {}  # sender -> when it was heard last, counted in messages
        self._count = 0
        self.refusals = Refusals(sealer.allowed)
        boxes = self._opened()
        self._shared = _Folder(self._own)  # everybody may write there
        self._boxes = {sender: _Folder(path) for sender, path in boxes.items()}

    def _opened(self) -> dict[str, Path]:
        """Make the folders of this end; those of its senders."""
        for pause in _pauses():
            try:
                if not self._root.exists():
                    log.warning(
                        "transport.directory=%s: was not there, it is made now; if it is a share, "
                        "mount it",
                        self._root,
                    )
                _make_root(self._root)
                self._mode = stat.S_IMODE(self._root.stat().st_mode)
                self._own = self._folder(self._sealer.name)
                boxes = self._make_boxes()
                self._remove_leftovers()
                self._recovered()
                return boxes
            except OSError as error:
                self._troubled(error)
            time.sleep(pause)
        return {}  # not reached: there is always another pause

    def send(self, message: Message) -> None:
        """Seal `message` and put it in its recipient's folder; on disk when this returns.

        Of a kind that is asked again, it is whole after the crash of a process and may be lost with
        the machine: for those nobody waits for the disk.
        """
        if message.run != self._run:
            raise MessageError(
                f"run={message.run!r} is not {self._run!r}, which this transport serves"
            )
        deadline = time.monotonic() + self._patience
        brief = time.monotonic() + _BRIEF
        for pause in _pauses():
            try:
                self._send(message)
                self._recovered()
                break
            except OSError as error:
                self._troubled(error)
                now = time.monotonic()
                if now + pause > deadline:
                    raise self._explained(error) from error
                if self._sealer.name == AGGREGATOR and now + pause > brief and self._is_there():
                    # the others must not wait for one recipient whose folder has gone
                    raise Undeliverable(str(self._explained(error))) from error
            time.sleep(pause)
        self._pause = FIRST_PAUSE

    def _send(self, message: Message) -> None:
        sealed = self._sealer.seal(message)
        name = f"{message.round}-{message.kind}-{message.sender}-{sealed.tag}.msg"
        sync = message.kind not in ASKED_AGAIN
        folder = self._folder(message.recipient)
        with contextlib.suppress(PermissionError):  # the folder is closed: writing there fails, too
            if (box := folder / BOXES / message.sender).is_dir():
                folder = box
        temporary = folder / f".{message.sender}~{secrets.token_hex(8)}.tmp"
        try:
            try:
                self._write(temporary, sealed.pieces, sync=sync)
            except (PermissionError, NotADirectoryError):
                raise Undeliverable(
                    f"{folder}: this process may not write there: its owner must open it"
                ) from None
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
        with contextlib.suppress(OSError):  # it has arrived; the older ones stay until the next
            self._remove_superseded(folder, message, name)

    def receive(self, timeout: float) -> Message | None:
        """The next message, earliest round first; None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                message = self._next()
                self._recovered()
            except OSError as error:
                self._troubled(error)
                message = None
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
            self._done.add(path)
            try:
                self._remove_done()
            except OSError as error:
                self._troubled(error)  # the next look tries again
            crash_point("directory.after_done")

    def close(self) -> None:
        """Let go of the folders; no file or lock is held."""
        for folder in (self._shared, *self._boxes.values()):
            folder.close()

    def _remove_done(self) -> None:
        for path in list(self._done):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._done.discard(path)
            self._folder_of(path).held.pop(path, None)

    def _troubled(self, error: OSError) -> None:
        """Say an error that may pass, once; TransportError for another, or if it lasts."""
        now = time.monotonic()
        if self._trouble_since is None:
            self._trouble_since = now
            if error.errno in _PASSING:
                place = error.filename or self._root
                log.warning("%s: %s; trying again", one_line(place), error.strerror or error)
        if error.errno not in _PASSING or now - self._trouble_since > self._patience:
            raise self._explained(error) from error

    def _recovered(self) -> None:
        if self._trouble_since is not None:
            self._trouble_since = None
            log.warning("%s: can be used again", self._root)

    def _is_there(self) -> bool:
        """Whether the own folder can be read, so that a failure is that of one recipient."""
        try:
            os.listdir(self._own.parent)
        except OSError:
            return False
        return True

    def _explained(self, error: OSError) -> TransportError:
        return TransportError(
            f"{error.filename or self._root}: {error.strerror or error}: free space, give the "
            "permission or mount the folder, then start again; nothing that was sent is lost"
        )

    def _next(self) -> Message | None:
        self._remove_done()
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
            message = self._try(file, misplaced=sender == STRANGERS)
            if message is not None:
                return message
        self._pause = FIRST_PAUSE  # the rest soon, at a look that sees what others have sent since
        return None

    def _waiting(self) -> dict[str, list[_File]]:
        """Files to read by sender, the earliest last; those of nobody under one name."""
        waiting: dict[str, list[_File]] = {}
        for file in sorted(self._shared.look(), reverse=True):
            name = file.sender if file.sender in self._sealer.allowed else STRANGERS
            waiting.setdefault(name, []).append(file)
        for sender, box in self._boxes.items():
            try:
                files = box.look()
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed by somebody: senders write to the shared folder then
            for file in files:
                name = sender if file.sender == sender else STRANGERS
                waiting.setdefault(name, []).append(file)
        if not all(folder.is_read for folder in (self._shared, *self._boxes.values())):
            self._pause = min(self._pause, _MORE)
        for group in waiting.values():
            group.sort(reverse=True)
        return waiting

    def _folder_of(self, path: str) -> _Folder:
        parent = os.path.dirname(path)
        return next((box for box in self._boxes.values() if str(box.path) == parent), self._shared)

    def _try(self, file: _File, *, misplaced: bool) -> Message | None:
        held = self._folder_of(file.path).held
        try:
            if file.sender not in self._sealer.allowed:
                raise MessageError(
                    f"sender={file.sender!r} is not on the allow-list of {self._sealer.name!r}: "
                    "refused"
                )
            if misplaced:
                raise MessageError(f"sender={file.sender!r}: may not write there")
            message = self._open(file)
        except OSError as error:
            if error.errno not in (
                errno.ENOENT,
                errno.ESTALE,
            ):  # these were replaced by their sender since the last look
                if file.path not in held:
                    self.refusals.note(
                        None, file.path, f"{error.strerror or error}; it is left alone"
                    )
                held[file.path] = time.monotonic() + _AGAIN
            return None
        except MessageError as refusal:
            self.refusals.note(refusal.signed_by, file.path, refusal)
            self._drop(file.path, aside=isinstance(refusal, UnreadableMessage))
            return None
        held[file.path] = math.inf
        self._handed[message] = file.path
        return message

    def _drop(self, path: str, aside: bool = False) -> None:
        """Remove a refused file or put it aside; one that stays is passed over, one that comes
        again is news.
        """
        folder = self._own / "aside"
        try:
            if aside:
                folder.mkdir(exist_ok=True)
            if aside and len(os.listdir(folder)) < _ASIDE:
                os.rename(path, folder / os.path.basename(path))
            else:
                os.unlink(path)
        except OSError:
            self._folder_of(path).held[path] = math.inf

    def _open(self, file: _File) -> Message:
        descriptor, size = open_regular(file.path)
        with os.fdopen(descriptor, "rb", buffering=0) as raw:
            if size > largest_sealed(self._sealer.limits):
                allowed = self._sealer.limits.bytes
                raise MessageError(
                    f"{size} bytes, allowed {allowed}: raise transport.max_message_bytes"
                )
            message = self._sealer.open(lambda part: _read(raw, part), size)
        if message.run != self._run or (message.round, message.kind, message.sender) != file[:3]:
            # not by the fault of its sender: whoever can read the folder can copy a message
            raise MessageError(
                f"it holds {message.kind!r} of round {message.round} by {message.sender!r}: "
                "misplaced"
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
        """The folder of `recipient`, made if need be with the mode of the root, so that other
        users can tidy up.
        """
        path = self._root / self._run / check_id("recipient", recipient)
        if not path.is_dir():
            for folder in (path.parent, path):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(self._mode)
                    folder.chmod(self._mode)  # a umask may have taken some of it
                    sync_directory(folder.parent)
        return path

    def _make_boxes(self) -> dict[str, Path]:
        """A folder for each sender; without it, as where this process may not make one, the
        shared folder serves.
        """
        boxes = {sender: self._own / BOXES / sender for sender in self._sealer.allowed}
        with contextlib.suppress(PermissionError):
            for folder in (self._own / BOXES, *boxes.values()):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(self._mode)
                    folder.chmod(self._mode)
            sync_directory(self._own / BOXES)
            sync_directory(self._own)
        return boxes

    def _remove_superseded(self, folder: Path, message: Message, name: str) -> None:
        kinds = superseded_by(message.kind)
        for place in {folder, self._root / self._run / message.recipient}:
            for file in _scan(place):
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


def _make_root(root: Path) -> None:
    """Make the shared folder, and those above it that are missing; never writable for everybody."""
    for folder in (*reversed(root.parents), root):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o775)
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(root))


def _pauses() -> Iterator[float]:
    """Seconds between attempts."""
    pause = _FIRST_RETRY
    while True:
        yield pause
        pause = min(2 * pause, _LAST_RETRY)


def _scan(folder: Path) -> list[_File]:
    """The messages among the first names of a folder."""
    found = _Folder(folder, quiet=True)
    try:
        return found.look()
    finally:
        found.close()


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size) or b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
