"""Log lines of a run: time, severity, the run, round and party they are about, and what
happened.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from homo_dp.core.errors import TransportError, printable
from homo_dp.core.files import read_end

FORMATS: Final = ("text", "json")
FILE: Final = "events.jsonl"
JOINED: Final = "joined"  # event of an aggregator: it let a party into the run
REFUSED: Final = "refused: "  # prefix of the last event of a run that this side refused
UNREACHED: Final = "transport failed: "  # the same of one that ended for want of its transport
# size at which the file of events is replaced; the one before is kept beside it
_MOST_BYTES: Final = 1 << 20
_MOST_READ: Final = 4 << 20  # bytes at the end of a file
_SUBJECTS: Final = ("run", "round", "party")
_now: dict[str, Any] = dict.fromkeys(_SUBJECTS)
log = logging.getLogger("homo_dp")


def about(**subjects: Any) -> None:
    """Say what the events from here on are about: `run`, `round`, `party`; those not named stay."""
    _now.update(subjects)


class EventFormatter(logging.Formatter):
    """A log record as one line of text or JSON.

    >>> about(run="demo", round=3, party=None)
    >>> record = logging.LogRecord("homo_dp", logging.INFO, "", 0, "replied", (), None)
    >>> record.party, record.created = "bank_a", 0.0
    >>> EventFormatter("text").format(record)
    '1970-01-01T00:00:00.000Z INFO run=demo round=3 party=bank_a replied'
    >>> about(run=None, round=None)
    """

    def __init__(self, kind: Literal["text", "json"]) -> None:
        super().__init__()
        self._kind = kind

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        text = " ".join(record.getMessage().split())
        if record.exc_info and record.exc_info[1] is not None:
            text += (
                f" ({type(record.exc_info[1]).__name__}: "
                f"{' '.join(str(record.exc_info[1]).split())})"
            )
        found = {name: getattr(record, name, None) or _now[name] for name in _SUBJECTS}
        if self._kind == "json":
            return json.dumps(
                {"time": when, "level": record.levelname, **found, "event": text},
                ensure_ascii=True,
            )
        named = [f"{name}={value}" for name, value in found.items() if value is not None]
        return printable(" ".join([when, record.levelname, *named, text]))


def use_format(kind: Literal["text", "json"]) -> None:
    """Show every event of this process on stderr, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter(kind))
    logging.basicConfig(handlers=[handler], force=True)
    log.setLevel(logging.INFO)


def is_shown() -> bool:
    """Whether this process shows events, in place of lines for a person."""
    return any(
        isinstance(handler.formatter, EventFormatter) for handler in logging.getLogger().handlers
    )


@contextlib.contextmanager
def kept_events(folder: Path) -> Iterator[None]:
    """Keep the events of this process in a run's folder, for `homo-dp status`; lines that cannot be
    written are dropped.
    """
    handler = _FileHandler(folder / FILE)
    handler.setFormatter(EventFormatter("json"))
    before = log.level
    log.addHandler(handler)
    if before == logging.NOTSET:
        for shown in logging.getLogger().handlers:  # what was not shown before is not shown now
            if shown.level == logging.NOTSET:
                shown.setLevel(logging.getLogger().level)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextlib.contextmanager
def told_errors(*refusals: type[BaseException]) -> Iterator[None]:
    """Log the error that ends a process, so that `homo-dp status` can show it, and let it pass
    on.
    """
    try:
        yield
    except BaseException as error:
        told_to = isinstance(error, KeyboardInterrupt | SystemExit)
        how = REFUSED if isinstance(error, refusals) else "ended: "
        how = UNREACHED if isinstance(error, TransportError) else how
        why = (
            "was told to"
            if isinstance(error, SystemExit)
            else " ".join(str(error).split()) or type(error).__name__
        )
        _quietly(logging.WARNING if told_to else logging.ERROR, f"{how}{why}")
        raise


def _quietly(level: int, text: str, party: str | None = None) -> None:
    """An event for the file alone: the command prints its own line about it."""
    record = log.makeRecord(log.name, level, "", 0, text, (), None, extra={"party": party})
    for handler in log.handlers:
        if isinstance(handler, _FileHandler):
            handler.handle(record)


def note_event(text: str, party: str | None = None) -> None:
    """Keep a line in the event log that is shown to the user elsewhere, or to nobody; ``party`` is
    whom it is about.
    """
    _quietly(logging.INFO, text, party)


def read_events(folder: Path, most: int = 500) -> list[dict[str, Any]]:
    """The last events that were kept in a run's folder, the newest last."""
    lines: list[str] = []
    for path in (folder / f"{FILE}.1", folder / FILE):
        with contextlib.suppress(OSError):
            lines += read_end(path, _MOST_READ).decode(errors="replace").splitlines()
    found = []
    for line in lines[-most:]:
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                found.append(event)
    return found


class _FileHandler(logging.Handler):
    """Appends lines to a file that only its owner can read, and keeps it small."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                os.write(descriptor, self.format(record).encode() + b"\n")
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size > _MOST_BYTES:
                os.replace(self._path, self._path.with_name(f"{FILE}.1"))
