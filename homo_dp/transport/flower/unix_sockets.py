"""Unix sockets of this machine: whoever may open the file at their path may connect."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from homo_dp.core.errors import ConfigError

_PATH_BYTES: Final = 100  # of a socket's name; the kernel takes 107


def connect(path: Path, timeout: float) -> socket.socket:
    """A connection to the party behind a socket; OSError if nobody is there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        with _short(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def listen(path: Path, group: str | None) -> socket.socket:
    """A socket at `path` that only this user, or one group, can reach; one that a killed process
    left goes away.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o177)
        try:
            with _short(path) as name:
                listener.bind(name)
        finally:
            os.umask(mask)
        if group is not None:
            shutil.chown(path, group=group)
            path.chmod(0o660)
        listener.listen(16)
    except (OSError, LookupError) as error:
        listener.close()
        raise ConfigError(
            f"transport.flower.socket={path}: {error}; name a place where this user may make one"
        ) from None
    return listener


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of `path` that fits into a socket's address, which is short."""
    if len(os.fsencode(path)) < _PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def note_end(path: Path, job: str) -> None:
    """Leave word that the party behind a socket ended with an error while Flower's run `job`
    went on.
    """
    with contextlib.suppress(OSError):
        path.with_suffix(".ended").write_text(job, encoding="utf-8")


def has_ended(path: Path, job: str) -> bool:
    """Whether the party behind a socket ended with an error while Flower's run `job` went on."""
    try:
        return path.with_suffix(".ended").read_text(encoding="utf-8") == job
    except (OSError, ValueError):
        return False
