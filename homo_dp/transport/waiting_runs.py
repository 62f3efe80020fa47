"""Runs that call a party: those in which a message of an aggregator that the party lists waits for
it.

A folder or a stream with a run's name proves nothing, since whoever can write there can make one. A
call is a message that opens with the party's key and is signed by the asker of that run, for that
run. It is left where it is.
"""

from __future__ import annotations

import fnmatch
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from homo_dp.core.errors import MessageError
from homo_dp.core.files import is_certainly, read_regular
from homo_dp.federation.protocol.ids import AGGREGATOR, check_id
from homo_dp.transport.directory import BOXES, MESSAGE_NAME
from homo_dp.transport.sealing import Sealer

# Seconds of a look for the runs that are new, as many for the others, and of them for one run.
# Counted in time, because a run costs microseconds on a disk and a millisecond on a share.
LOOK: Final = 2.0
RUN: Final = 0.5
FRESH: Final = 60.0  # seconds for which a run is new
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


class Rotation:
    """Goes through names for some seconds at a time; each turn goes on where the last one ended.

    So neither old runs nor what somebody planted keep a party from noticing a new one; they delay
    it.

    >>> rotation = Rotation()
    >>> [list(rotation.turn("cab", 0.0)) for turn in range(4)]
    [['a'], ['b'], ['c'], ['a']]
    """

    def __init__(self) -> None:
        self._last = ""  # the name at which the last turn ended for want of time

    @property
    def is_through(self) -> bool:
        """Whether the last turn came to the last name."""
        return self._last == ""

    def turn(self, names: Iterable[str], seconds: float) -> Iterator[str]:
        """The names that a turn has the time for, at least one."""
        deadline, ordered = time.monotonic() + seconds, sorted(names)
        start, self._last = bisect_right(ordered, self._last), ""
        for name in [*ordered[start:], *ordered[:start]]:
            yield name
            if time.monotonic() >= deadline:
                self._last = name
                return


class Turns:
    """Which of many runs a look goes through: those that have appeared within the last ``FRESH``
    seconds first, so that old ones do not delay them.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] | None = None  # name -> when it appeared; None at first
        self._fresh, self._others = Rotation(), Rotation()

    def look(self, names: Iterable[str]) -> Iterator[str]:
        """The names that a look has the time for."""
        now, before = time.monotonic(), self._seen
        first = now if before is not None else now - FRESH
        seen = self._seen = {name: (before or {}).get(name, first) for name in names}
        yield from self._fresh.turn((each for each in seen if now - seen[each] < FRESH), LOOK)
        yield from self._others.turn((each for each in seen if now - seen[each] >= FRESH), LOOK)


class FolderCalls:
    """Looks for runs that call a party in a shared folder.

    Guarantees:
        - only regular files of an aggregator's name are read, and at most ``MOST_BYTES`` of each:
          a directory, a link or a pipe under such a name is passed over;
        - a run that is new is looked at before those that were there, and a look takes some
          seconds at most, however many runs and files there are.
    """

    def __init__(self, root: Path, party: str, sealers: Sealers) -> None:
        self._root = root
        self._party = party
        self._sealers = sealers
        self._turns = Turns()
        self._files: dict[str, Rotation] = {}  # of runs with more files than one turn had time for

    def look(self, known: Callable[[str], bool]) -> list[Call]:
        """The runs that call the party and are not `known` yet, of those that are due."""
        runs = {
            run: asker
            for run in _folders(self._root)
            if (asker := unknown_asker(run, self._sealers, known)) is not None
        }
        self._files = {run: files for run, files in self._files.items() if run in runs}
        return [
            Call(run, runs[run])
            for run in self._turns.look(runs)
            if self._is_called(run, self._sealers[runs[run]][1])
        ]

    def _is_called(self, run: str, sealer: Sealer) -> bool:
        files = self._files.pop(run, None) or Rotation()
        found = any(is_call(data, run, sealer) for data in self._messages(run, files))
        if not found and not files.is_through:
            self._files[run] = files
        return found

    def _messages(self, run: str, files: Rotation) -> Iterator[bytes]:
        """The small messages of an aggregator that a turn has the time for."""
        # once the party was there, its messages are in a folder below
        folder = self._root / run / self._party
        places = (folder, folder / BOXES / AGGREGATOR)
        for path in files.turn((path for place in places for path in _messages_in(place)), RUN):
            try:
                yield read_regular(path, MOST_BYTES)
            except OSError:  # it has gone, is too large or may not be read: one file less
                continue


def unknown_asker(run: str, sealers: Sealers, known: Callable[[str], bool]) -> str | None:
    """The asker that may use this name of a run; None where none may, or the run is known."""
    try:
        check_id("run", run)
    except MessageError:
        return None
    asker = asker_of(run, sealers)
    return None if asker is None or known(run) else asker


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return [entry.name for entry in entries if is_certainly(entry.is_dir)]
    except OSError:  # not there or not mounted: the next turn asks again
        return []


def _messages_in(folder: Path) -> list[str]:
    """The paths of what may be messages of an aggregator."""
    try:
        with os.scandir(folder) as entries:
            return [
                entry.path
                for entry in entries
                if (found := MESSAGE_NAME.fullmatch(entry.name))
                and found[3] == AGGREGATOR
                and is_certainly(entry.is_file)
            ]
    except OSError:
        return []
