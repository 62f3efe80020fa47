"""How the runs of a party or an aggregator are doing, from their files alone: nothing is opened for writing.

It runs beside the processes it tells of, and without torch, so that it can be asked often.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from homo_dp.config.schema import Config
from homo_dp.core.event_log import REFUSED, read_events
from homo_dp.core.files import is_locked
from homo_dp.runs.approval import read_question

Status = dict[str, Any]
_MOST_HEADER: Final = 100 << 20  # bytes of the header of a state file
HEADER: Final = (
    "run",
    "state",
    "round",
    "of",
    "replied",
    "missing",
    "epsilon",
    "last event",
    "last error",
)


def status(config: Config) -> Status:
    """The runs of the side that a config is for (its party, else the aggregator), the last heard of first."""
    party = config.party.name
    folder = Path(config.federation.state_dir) if party is None else config.party.folder
    found: Status = {
        "side": "aggregator" if party is None else "party",
        "name": party or "aggregator",
    }
    found["asked"] = datetime.now(UTC).isoformat(timespec="seconds")
    found["budget"] = None if party is None else _budget(config)
    runs = [_run(path, party is not None) for path in _folders(folder)]
    found["runs"] = sorted(runs, key=_last_heard, reverse=True)
    return found


def rows(found: Status) -> list[list[object]]:
    """The runs as rows of a table with `HEADER`."""
    table: list[list[object]] = []
    for run in found["runs"]:
        replied = ", ".join(f"{name} {_clock(when)}" for name, when in run["replied"].items())
        event = run["last_event"]
        said = f"{_clock(event['time'])} {event['event']}" if event else None
        error = run["last_error"]
        table.append(
            [
                *(run["run"], run["state"], run["round"], run["rounds"]),
                *(replied or None, ", ".join(run["missing"]) or None, run["epsilon"], said),
                f"{_clock(error['time'])} {error['event']}" if error else None,
            ]
        )
    return table


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in folder.iterdir() if (path / "lock").exists())


def _run(folder: Path, is_party: bool) -> Status:
    done, plan, events = (
        _rounds(folder),
        _facts(folder / "plan.safetensors").get("plan", {}),
        read_events(folder),
    )
    last = done[-1] if done else {}
    number = int(last.get("round", 0))
    asked = read_question(folder)
    errors = [event for event in events if event.get("level") in ("WARNING", "ERROR")]
    answered = [event for event in events if event.get("event") == "replied" and event.get("party")]
    newest = max((int(event.get("round") or 0) for event in answered), default=0)
    rounds = plan.get("train", {}).get("rounds") if isinstance(plan, dict) else None
    return {
        "run": folder.name,
        "state": _state(folder, is_party, number, rounds, asked is not None, events),
        "round": number,
        "rounds": rounds,
        "replied": {
            event["party"]: event["time"]
            for event in answered
            if int(event.get("round") or 0) == newest
        },
        "missing": list(last.get("missing", ())),
        "epsilon": last.get("epsilon"),
        "waits_for_approval": asked,
        "last_event": events[-1] if events else None,
        "last_error": errors[-1] if errors else None,
    }


def _state(
    folder: Path,
    is_party: bool,
    number: int,
    rounds: int | None,
    asked: bool,
    events: list[dict[str, Any]],
) -> str:
    if is_locked(folder / "lock"):
        return "waits for approval" if asked else "running"
    if (
        (folder / "final.safetensors").exists()
        if is_party
        else rounds is not None and number >= rounds
    ):
        return "over"
    last = events[-1] if events else {}
    if last.get("level") != "ERROR":
        return "stopped"
    return "refused" if str(last.get("event")).startswith(REFUSED) else "ended with an error"


def _rounds(folder: Path) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError):
        for line in (
            (folder / "rounds.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("round"), int):
                    found.append(row)
    return found


def _facts(path: Path) -> dict[str, Any]:
    """The facts in the header of a state file; torch is not needed for that."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, _MOST_HEADER)))
            facts = json.loads(header["__metadata__"]["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _budget(config: Config) -> Status | None:
    """What all runs have cost this party's data, and what is left; None without a ledger."""
    privacy = config.privacy
    if not Path(privacy.ledger).exists():
        return None
    from homo_dp.privacy.ledger import Ledger

    with Ledger(privacy.ledger, read_only=True) as ledger:
        spent = ledger.spent(
            config.data.dataset, privacy.lifetime_delta or privacy.delta
        ).epsilon.quoted
        releases = ledger.head().count
    lifetime = privacy.lifetime_epsilon
    left = None if lifetime is None else max(0.0, lifetime - spent)
    return {
        "epsilon_spent": spent,
        "lifetime_epsilon": lifetime,
        "epsilon_left": left,
        "ledger_rows": releases,
    }


def _last_heard(run: Status) -> str:
    return str(run["last_event"]["time"]) if run["last_event"] else ""


def _clock(when: object) -> str:
    return str(when)[11:19]
