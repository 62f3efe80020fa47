"""The one way in which homo_dp writes files: for their owner only, and either the old one or the
whole new one.

A writer makes a temporary file beside the target, syncs it and renames it over the target, so that
a reader never meets half a file, whenever the process or the machine stops. Files have mode 0600
and the folders that we make 0700 whatever the umask is: outputs, logs and states hold numbers of a
party's rows. To share a file, change its mode.

A temporary file is locked while its writer lives. The first write of a process in a folder removes
those that a killed process left there; a file system without locks keeps them.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import InputError

__all__ = [
    "atomic_write",
    "check_writable",
    "is_certainly",
    "is_locked",
    "make_folder",
    "open_private",
    "open_regular",
    "read_end",
    "read_regular",
    "remove_file",
    "replacing",
    "shared_with_writers",
    "sweep",
    "sync_directory",
    "write_file",
    "write_whole",
]

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Our temporary names, and what SQLite puts beside a database of that name.
_TEMPORARY = re.compile(r"\..{0,100}\.[0-9a-f]{16}\.tmp(?P<side>-journal|-wal|-shm)?", re.DOTALL)
_swept: set[tuple[int, str]] = set()


@contextmanager
def atomic_write(path: str | Path, name: str = "file") -> Iterator[BinaryIO]:
    """A binary file that appears at ``path`` only if the block ends well; ``name`` is how errors
    call it.

    A pipe or device is written directly: it cannot be replaced by a rename.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, atomic_write(Path(folder) / "a" / "b.txt") as file:
    ...     file.write(b"whole")
    5
    """
    target = Path(os.path.realpath(path))
    try:
        make_folder(target.parent)
        if target.is_dir():
            raise InputError(f"{name}={path}: is a directory; give the path of a file")
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                yield device
            return
        with replacing(target) as temporary, temporary.open("wb") as file:
            yield file
    except OSError as error:
        named = error.filename
        if isinstance(named, str | bytes) and not _belongs_to(os.fsdecode(named), target):
            raise  # the block failed on a file of its own
        raise InputError(
            f"{name}={path}: cannot be written ({error.strerror or error}); choose another path or "
            "make room there"
        ) from error


def _belongs_to(named: str, target: Path) -> bool:
    """Whether a path is in the folder of ``target`` or is one of the folders above it."""
    return named.startswith(str(target.parent)) or Path(named) in target.parents


def write_whole(path: str | Path, content: bytes, name: str = "file") -> None:
    """Write ``content`` to ``path`` in one step; an error is one line that calls the path
    ``name``.
    """
    with atomic_write(path, name) as file:
        file.write(content)


def write_file(path: Path, *pieces: bytes | memoryview, point: str, sync: bool = True) -> None:
    """Replace ``path``, in a folder that exists, by these pieces, and return once it is on disk;
    raises OSError.

    ``point`` names the crash points inside. Without ``sync`` the file is whole after the crash of a
    process, but may be the old one again after that of the machine.
    """
    crash_point(point + ".before_write")
    with (
        replacing(path, point=point, sync=sync) as temporary,
        temporary.open("wb", buffering=0) as file,
    ):
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]


@contextmanager
def replacing(target: Path, *, point: str | None = None, sync: bool = True) -> Iterator[Path]:
    """The path of an empty, private file for the block to fill, which then takes the place of
    ``target``.

    If the block fails, ``target`` stays as it was and the temporary file goes.
    """
    sweep(target.parent, once=True)
    temporary, lock = _new_temporary(target)
    try:
        yield temporary
        if point is not None:
            crash_point(point + ".before_fsync")
        if sync:
            os.fsync(lock)  # the same file by another descriptor
        if point is not None:
            crash_point(point + ".before_rename")
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(lock)
    if point is not None:
        crash_point(point + ".after_rename")
    if sync:
        sync_directory(target.parent)
    if point is not None:
        crash_point(point + ".after_sync")


def remove_file(path: Path) -> bool:
    """Delete ``path`` if it is there, and return (whether it was) once that is on disk."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only; one that exists
    keeps its mode.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     make_folder(Path(folder) / "a" / "b")
    ...     print(oct((Path(folder) / "a").stat().st_mode & 0o777))
    0o700
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return  # another process was first
    os.chmod(path, FOLDER_MODE)  # a umask may have taken the owner's own bits


def open_private(path: str | Path, flags: int) -> int:
    """The ``opener`` of ``open`` for a file that is written in place: one that is made here has
    mode 0600.
    """
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def open_regular(path: str | Path) -> tuple[int, int]:
    """A descriptor for reading a regular file, and its size; OSError for anything else.

    Neither a link, a pipe, a device nor a directory under the name can make a process read
    elsewhere, wait or keep a descriptor.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def is_certainly(kind: Callable[..., bool]) -> bool:
    """Whether an entry of a folder is of a kind (``entry.is_file``, ``entry.is_dir``) itself and not
    by a link; an entry of which that cannot be found out is not.
    """
    try:
        return kind(follow_symlinks=False)
    except OSError:  # a share that gives no types, and fails for this one
        return False


def read_regular(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes; OSError for anything else.

    >>> read_regular("/dev/zero", 10)
    Traceback (most recent call last):
    ...
    OSError: [Errno 22] is not a regular file: '/dev/zero'
    """
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        raise OSError(errno.EFBIG, f"holds more than {most} bytes", str(path))
    return data


def read_end(path: str | Path, most: int) -> bytes:
    """The last ``most`` bytes of a regular file, from the beginning of a line; OSError for anything
    else.
    """
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, size - most))
        data = file.read(most)
    return data if size <= most else data.partition(b"\n")[2]


def shared_with_writers(path: Path) -> str | None:
    """Why a file or folder cannot be trusted, with the command that mends it, if users besides its
    owner can write it.

    None if they cannot, or if there is nothing at ``path``.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None
    if not mode & _OTHERS_WRITE:
        return None
    return (
        f"has mode {mode:04o}, so that others can change it: check what is in it, then run `chmod "
        f"go-w {path}`"
    )


def check_writable(path: str | Path, name: str = "file") -> None:
    """Refuse, before any work is done, an output path that could not be written at the end;
    leaves nothing behind.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise InputError(f"{name}={path}: is a directory; give the path of a file")
        folder = target.parent
        while not folder.exists():
            folder = folder.parent
        if target.exists() and not target.is_file():
            return
        sweep(folder, once=True)
        probe, lock = _new_temporary(folder / "probe")
        crash_point("probe.made")
        try:
            probe.unlink()
        finally:
            os.close(lock)
    except OSError as error:
        raise InputError(
            f"{name}={path}: cannot be written ({error.strerror or error}); choose a path in a "
            "folder you may write to"
        ) from error


def sweep(folder: Path, *, once: bool = False) -> None:
    """Remove our temporary files in ``folder`` whose writers are gone; with ``once``, only at a
    process's first call.

    Those of other users, and those that a living process holds, stay.
    """
    key = (os.getpid(), os.path.abspath(folder))
    if once and key in _swept:
        return
    _swept.add(key)
    try:
        names = {entry.name for entry in os.scandir(folder)}
    except OSError:
        return
    for name in sorted(names):  # a database before what stands beside it, which goes with it
        found = _TEMPORARY.fullmatch(name)
        if found is None:
            continue
        with contextlib.suppress(OSError):
            if found["side"] is None:
                _remove_abandoned(folder / name)
                names.discard(name)
            elif name.removesuffix(found["side"]) not in names:
                (folder / name).unlink()


def sync_directory(path: Path) -> None:
    """Put the names in a directory (a creation, a rename, a deletion) on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_temporary(target: Path) -> tuple[Path, int]:
    """An empty file beside ``target`` and the descriptor that holds its lock."""
    while True:
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(temporary, flags, FILE_MODE)
        os.fchmod(lock, FILE_MODE)  # a umask may have taken the owner's own bits
        # a file system without locks: sweeping is impossible there, too
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return temporary, lock
        os.close(lock)  # swept between the two calls


def _remove_abandoned(path: Path) -> None:
    if path.lstat().st_uid != os.geteuid():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds a lock on a file, by the kernel's list: to try it
    could block it.
    """
    with contextlib.suppress(OSError):
        number = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines():
            if " FLOCK " in line and number in (
                field.rpartition(":")[2] for field in line.split() if ":" in field
            ):
                return True
    return False
