"""How the runs of a party or an aggregator are doing, from their files alone: nothing is opened for
writing.

It runs beside the processes it tells of, and without torch, so that it can be asked often. Files
that are damaged are left out: the state of one run never hides those of the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, Strict, ValidationError

from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.core.event_log import JOINED, REFUSED, read_events
from homo_dp.core.files import is_locked, open_regular, read_end
from homo_dp.core.untrusted_text import Foreign, Schema
from homo_dp.runs.approval import read_question

Status = dict[str, Any]
Part = TypeVar("Part", bound=Schema)
_MOST_HEADER: Final = 16 << 20  # bytes of the header of a state file
_MOST_ROWS: Final = 4 << 20  # bytes at the end of the rows of a run, of which the last is shown
_ROUND = Annotated[int, Strict(), Field(ge=0, le=2**53)]


class _Event(Schema):
    """A line of the event log."""

    time: str
    event: str
    level: str = ""
    party: str | None = None
    round: _ROUND | None = None


class _Row(Schema):
    """The row of a round."""

    round: _ROUND
    missing: tuple[str, ...] = ()
    epsilon: float | None = None


class _Facts(Schema):
    rounds: _ROUND | None = None  # of the whole run, those that train and all others


HEADER: Final = (
    "run",
    "state",
    "round",
    "of",
    "replied",
    "missing",
    "epsilon",
    "last event",
    "last warning",
    "last error",
)


def status(config: Config) -> Status:
    """The runs of the side that a config is for (its party, else the aggregator), the last heard
    of first.
    """
    party = config.party.name
    folder = Path(config.federation.state_dir) if party is None else config.party.folder
    found: Status = {
        "side": "aggregator" if party is None else "party",
        "name": party or "aggregator",
    }
    found["asked"] = datetime.now(UTC).isoformat(timespec="seconds")
    found["budget"] = None if party is None else _budget(config)
    awaited = () if party else tuple(each.name for each in config.federation.parties)
    runs = [_run(path, party is not None, awaited) for path in _folders(folder)]
    found["runs"] = sorted(runs, key=_last_heard, reverse=True)
    return found


def rows(found: Status) -> list[list[object]]:
    """The runs as rows of a table with `HEADER`."""
    table: list[list[object]] = []
    for run in found["runs"]:
        replied = ", ".join(f"{name} {_clock(when)}" for name, when in run["replied"].items())
        table.append(
            [
                *(run["run"], run["state"], run["round"], run["rounds"]),
                *(replied or None, ", ".join(run["missing"]) or None, run["epsilon"]),
                *(_said(run[name]) for name in ("last_event", "last_warning", "last_error")),
            ]
        )
    return table


def _folders(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):  # a folder that may not be read
            if (path / "lock").exists():
                yield path


def _run(folder: Path, is_party: bool, awaited: tuple[str, ...]) -> Status:
    done, rounds = _last_round(folder), _planned_rounds(folder / "plan.safetensors")
    events = _those_that_fit(_Event, read_events(folder))
    number = 0 if done is None else done.round
    asked = read_question(folder)
    answered = [event for event in events if event.event == "replied" and event.party]
    newest = max((event.round or 0 for event in answered), default=0)
    return {
        "run": folder.name,
        "state": _state(folder, is_party, number, rounds, asked is not None, events),
        "round": number,
        "rounds": rounds,
        "replied": {
            str(event.party): event.time for event in answered if (event.round or 0) == newest
        },
        "missing": _not_joined(events, awaited) if done is None else list(done.missing),
        "epsilon": None if done is None else done.epsilon,
        "waits_for_approval": asked,
        "last_event": events[-1].model_dump() if events else None,
        "last_warning": _last(events, "WARNING"),
        "last_error": _last(events, "ERROR"),
    }


def _not_joined(events: list[_Event], awaited: tuple[str, ...]) -> list[str]:
    """The parties of the federation that an aggregator waits for before its first round."""
    joined = {event.party for event in events if event.event == JOINED}
    return [name for name in awaited if name not in joined]


def _last(events: list[_Event], level: str) -> dict[str, Any] | None:
    found = (event.model_dump() for event in reversed(events) if event.level == level)
    return next(found, None)


def _state(
    folder: Path,
    is_party: bool,
    number: int,
    rounds: int | None,
    asked: bool,
    events: list[_Event],
) -> str:
    if is_locked(folder / "lock"):
        return "waits for approval" if asked else "running"
    if (
        (folder / "final.safetensors").exists()
        if is_party
        else rounds is not None and number >= rounds
    ):
        return "over"
    if not events or events[-1].level != "ERROR":
        return "stopped"
    return "refused" if events[-1].event.startswith(REFUSED) else "ended with an error"


def _last_round(folder: Path) -> _Row | None:
    """The row of the last round, without lines that a crash cut short."""
    path, lines = folder / "rounds.jsonl", list[str]()
    with contextlib.suppress(OSError):
        lines = read_end(path, _MOST_ROWS).decode(errors="replace").splitlines()
    for line in reversed(lines):
        with contextlib.suppress(InputError):
            if found := _those_that_fit(_Row, [_foreign(path).json(line)]):
                return found[0]
    return None


def _planned_rounds(path: Path) -> int | None:
    """How many rounds the plan has, by the header of its state file: torch is not needed for
    that.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        descriptor, _ = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            content = file.read(min(size, _MOST_HEADER))
        facts = _foreign(path).json(content)["__metadata__"]["facts"]
        return _Facts.model_validate(_foreign(path).json(str(facts))).rounds
    return None


def _foreign(path: Path) -> Foreign:
    return Foreign(str(path), "it is left out", InputError, _MOST_HEADER)


def _those_that_fit(schema: type[Part], found: Iterable[object]) -> list[Part]:
    """The entries that are as they were written; others are left out."""
    fitting = []
    for entry in found:
        with contextlib.suppress(ValidationError):
            fitting.append(schema.model_validate(entry))
    return fitting


def _budget(config: Config) -> Status | None:
    """What all runs have cost this party's data, and what is left; None without a ledger."""
    privacy = config.privacy
    if not Path(privacy.ledger).exists():
        return None
    from homo_dp.privacy.ledger import Budget, Ledger

    lifetime = Budget(
        lifetime_epsilon=privacy.lifetime_epsilon,
        lifetime_delta=config.lifetime_delta,
    )
    with Ledger(privacy.ledger, read_only=True) as ledger:
        spent = ledger.spent(config.data.dataset, config.lifetime_delta).epsilon
        # not a difference: epsilons of runs do not add up to that of all of them
        left = ledger.epsilon_left(config.data.dataset, lifetime)
        releases = ledger.head().count
    return {
        "epsilon_spent": spent.quoted,
        "lifetime_epsilon": privacy.lifetime_epsilon,
        "epsilon_left": left,
        "ledger_rows": releases,
    }


def _last_heard(run: Status) -> str:
    return str(run["last_event"]["time"]) if run["last_event"] else ""


def _said(event: dict[str, Any] | None) -> str | None:
    return f"{_clock(event['time'])} {event['event']}" if event else None


def _clock(when: object) -> str:
    return str(when)[11:19]
