"""A note on disk of the message that is being read: one that kills the process twice is not read a
third time.

What a message raises is caught where it is read. This is for what cannot be caught: the kernel that
ends a process for its memory, a library that crashes. Such a message is durable, so it would end
every later start, too.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from homo_dp.core.errors import MessageError

# a process may be killed once while it reads for reasons that have nothing to do with the message
_DEATHS: Final = 2
_REMEMBERED: Final = 100


class ReadingNote:
    """Names of messages during whose reading this process died, in one small file.

    It is not synced: it must survive the death of this process, not that of the machine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "reading"
    ...     killed = [ReadingNote(path).reading("m")]
    ...     _ = killed[-1].__enter__()  # and no word more
    ...     killed += [ReadingNote(path).reading("m")]
    ...     _ = killed[-1].__enter__()
    ...     with ReadingNote(path).reading("m"):
    ...         pass
    Traceback (most recent call last):
    ...
    homo_dp.core.errors.MessageError: this process ended 2 times while reading it: it is not read again
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deaths = _load(path)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Note `name` while it is read; MessageError if this process died of it before."""
        deaths = self._deaths.get(name, 0)
        if deaths >= _DEATHS:
            raise MessageError(
                f"this process ended {deaths} times while reading it: it is not read again"
            )
        self._save({**self._deaths, name: deaths + 1})
        try:
            yield
        except BaseException:
            self._save(self._deaths)
            raise
        self._deaths.pop(name, None)
        self._save(self._deaths)

    def _save(self, deaths: dict[str, int]) -> None:
        newest = dict(list(deaths.items())[-_REMEMBERED:])
        with contextlib.suppress(OSError):  # a full disk: reading goes on without the note
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            try:
                os.write(descriptor, json.dumps(newest).encode())
            finally:
                os.close(descriptor)


def _load(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: count for name, count in found.items() if type(count) is int}
