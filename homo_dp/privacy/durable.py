"""Files that are either the old one or the whole new one after a crash: temporary name, fsync, rename, fsync."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from homo_dp.privacy.crash import crash_point

__all__ = ["remove_file", "sync_directory", "write_file"]


def write_file(path: Path, *pieces: bytes | memoryview, point: str, sync: bool = True) -> None:
    """Replace ``path`` by these pieces, readable by its owner only, and return once it is on disk.

    One writer per path at a time: the temporary name is ``<path>.tmp``. ``point`` names the crash points inside.
    Without ``sync`` it is whole after the crash of a process, but may be the old one again after that of the machine.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        _write(temporary, pieces, point, sync)
        crash_point(point + ".before_rename")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    crash_point(point + ".after_rename")
    if sync:
        sync_directory(path.parent)
    crash_point(point + ".after_sync")


def remove_file(path: Path) -> bool:
    """Delete ``path`` if it is there, and return (whether it was) once that is on disk."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Put the names in a directory (a creation, a rename, a deletion) on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, pieces: Sequence[bytes | memoryview], point: str, sync: bool) -> None:
    crash_point(point + ".before_write")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(descriptor, left) :]
        crash_point(point + ".before_fsync")
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
