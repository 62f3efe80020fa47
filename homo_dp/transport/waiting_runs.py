"""Runs that call a party: those in which a message of an aggregator that the party lists waits for it.

A folder or a stream with a run's name proves nothing, since whoever can write there can make one. A call is a message
that opens with the party's key and is signed by the asker of that run, for that run. It is left where it is.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.ids import AGGREGATOR, check_id
from homo_dp.transport.directory import BOXES
from homo_dp.transport.sealing import Sealer

MOST_RUNS: Final = 1000  # looked at in one turn
MOST_FILES: Final = 16  # of one run
MOST_BYTES: Final = 1 << 20  # of a message that can be a call: a plan or a status
Sealers = Mapping[str, tuple[Sequence[str], Sealer]]


@dataclass(frozen=True)
class Call:
    """A run that an asker started, and which asker."""

    run: str
    asker: str


def asker_of(run: str, sealers: Sealers) -> str | None:
    """The first asker whose patterns fit a run's name.

    >>> asker_of("bank-7", {"0": (["hospital-*"], None), "1": (["bank-*"], None)})
    '1'
    """
    return next(
        (
            name
            for name, (runs, _) in sealers.items()
            if any(fnmatch.fnmatchcase(run, each) for each in runs)
        ),
        None,
    )


def is_call(data: bytes, run: str, sealer: Sealer) -> bool:
    """Whether sealed bytes are a message of the aggregator to this party in this run."""
    try:
        return sealer.open_bytes(data).run == run
    except MessageError:
        return False


def due(names: Sequence[str], turn: int, most: int) -> list[str]:
    """The names that are looked at in one turn: all, or where there are many the next ones, round and round.

    So neither old runs nor what somebody planted keep a party from noticing a new one; they delay it.

    >>> [due("abcde", turn, 2) for turn in range(3)]
    [['a', 'b'], ['c', 'd'], ['e', 'a']]
    """
    start = turn * most % len(names) if len(names) > most else 0
    return [*names[start:], *names[:start]][:most]


def directory_calls(
    root: Path, party: str, sealers: Sealers, known: Callable[[str], bool], turn: int = 0
) -> Iterator[Call]:
    """The runs of a shared folder that call a party and are not `known` yet, of those that are due in this turn."""
    with contextlib.suppress(OSError):
        for run in due(sorted(os.listdir(root)), turn, MOST_RUNS):
            asker = _asker(run, sealers, known)
            if asker is not None and any(
                is_call(data, run, sealers[asker][1])
                for data in _messages(root / run / party, turn)
            ):
                yield Call(run, asker)


def _asker(run: str, sealers: Sealers, known: Callable[[str], bool]) -> str | None:
    try:
        check_id("run", run)
    except MessageError:
        return None
    return None if known(run) else asker_of(run, sealers)


def _messages(folder: Path, turn: int) -> Iterator[bytes]:
    """The small messages that wait for a party, the first ones first; once it was there, they are in a folder below."""
    yield from _messages_in(folder, turn)
    yield from _messages_in(folder / BOXES / AGGREGATOR, turn)


def _messages_in(folder: Path, turn: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        for name in due(
            sorted(name for name in os.listdir(folder) if name.endswith(".msg")), turn, MOST_FILES
        ):
            with contextlib.suppress(OSError):
                descriptor = os.open(
                    folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                )
                with os.fdopen(descriptor, "rb") as file:
                    if os.fstat(descriptor).st_size <= MOST_BYTES:
                        yield file.read(MOST_BYTES)


def checked_runs(runs: Sequence[str], sealers: Sealers, known: Callable[[str], bool]) -> list[Call]:
    """Of the names that a server lists, those that an asker may use and that are not known yet."""
    found = ((run, _asker(run, sealers, known)) for run in runs[:MOST_RUNS])
    return [Call(run, asker) for run, asker in found if asker is not None]
