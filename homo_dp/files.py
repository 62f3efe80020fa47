"""Whole files or no files: write beside the target, sync, rename, so that a reader never meets a half-written one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from homo_dp.errors import InputError


@contextmanager
def atomic_write(path: str | Path, name: str = "file") -> Iterator[BinaryIO]:
    """A binary file that appears at ``path`` only if the block ends well; ``name`` is how errors call it.

    A pipe or device is written directly: it cannot be replaced by a rename.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, atomic_write(Path(folder) / "a" / "b.txt") as file:
    ...     file.write(b"whole")
    5
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise InputError(f"{name}={path}: is a directory; give the path of a file")
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                yield device
            return
        yield from _through_temporary(target)
    except OSError as error:
        named = error.filename
        if isinstance(named, str | bytes) and not os.fsdecode(named).startswith(str(target.parent)):
            raise  # the block failed on a file of its own
        raise InputError(
            f"{name}={path}: cannot be written ({error.strerror or error}); choose another path or make room there"
        ) from error


def write_whole(path: str | Path, content: bytes, name: str = "file") -> None:
    """Write ``content`` to ``path`` in one step."""
    with atomic_write(path, name) as file:
        file.write(content)


def check_writable(path: str | Path, name: str = "file") -> None:
    """Refuse, before any work is done, an output path that could not be written at the end; leaves nothing behind."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise InputError(f"{name}={path}: is a directory; give the path of a file")
        folder = target.parent
        while not folder.exists():
            folder = folder.parent
        if target.exists() and not target.is_file():
            return
        probe = folder / f".{secrets.token_hex(8)}.tmp"
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"{name}={path}: cannot be written ({error.strerror or error}); choose a path in a folder you may write to"
        ) from error


def _through_temporary(target: Path) -> Iterator[BinaryIO]:
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    # 0o666 lets the user's umask decide, as for any file they make; mkstemp would force 0o600.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the platform can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
