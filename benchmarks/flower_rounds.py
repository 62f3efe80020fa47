"""Seconds a round on Flower, and what a party's site computes for it: with a party that stays, and
one that does not.

PYTHONPATH=. .venv-flower/bin/python benchmarks/flower_rounds.py [ROUNDS]     (minutes; as make
demo-flower)

Flower starts a ClientApp anew for every message. Ours is a courier without torch, and the party
beside it stays warm. To see what that saves, the second run kills the party after every round, so
that each round pays for a start of it, as a ClientApp that trains by itself would. CPU seconds are
those of all processes of a site: SuperNode, ClientApps, party.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from pipelines.demo_federation import PARTIES, ROOT
from pipelines.demo_flower import FlowerFederation

RUN = "hospitals-1"
SITE = PARTIES[0]
_TICK = os.sysconf("SC_CLK_TCK")


def main(rounds: int) -> None:
    """Print a line for each way."""
    print(f"load of this machine: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    print(
        "| party | seconds a round: median, shortest, longest | CPU s of a site a round "
        "|\n|---|---|---|",
        flush=True,
    )
    for name, stays in (("stays", True), ("starts anew", False)):
        seconds, spent = measure(rounds, stays=stays)
        print(
            f"| {name} | {median(seconds):.1f}, {min(seconds):.1f}, {max(seconds):.1f} | "
            f"{spent:.2f} |",
            flush=True,
        )


def measure(rounds: int, *, stays: bool) -> tuple[list[float], float]:
    """Seconds of the rounds after the first, and CPU seconds that one site spent on each of
    them.
    """
    with tempfile.TemporaryDirectory(prefix="homo_dp-flower-") as place:
        federation = FlowerFederation(Path(place))
        federation.prepare()
        try:
            federation.start_superlink()
            for name in PARTIES:
                federation.start_node(name, str(ROOT / "conf" / f"{name}.yaml"))
            params = f"train.rounds={rounds},federation.min_parties=3,federation.round_timeout=600"
            running = federation.run(str(ROOT / "conf" / "federation.yaml"), params)
            dead, marks, seen = 0.0, dict[int, float](), 0
            while running.poll() is None:
                if (done := _rounds(federation.folder)) > seen:
                    seen = done
                    marks[done] = dead + _spent(federation.folder)
                    if not stays and done < rounds:
                        ended = {name: _end(federation.folder, name) for name in PARTIES}
                        dead += ended[SITE]
                time.sleep(0.05)
            found = json.loads(
                (federation.folder / "out" / "aggregator" / "indicator.json").read_text()
            )
        finally:
            federation.stop()
    spent = (marks[rounds] - marks[1]) / (rounds - 1)
    return [row["seconds"] for row in found["rounds"][1:]], spent


def _rounds(folder: Path) -> int:
    path = folder / "state" / "aggregator" / RUN / "rounds.jsonl"
    return sum(bool(line.strip()) for line in path.read_text().splitlines()) if path.exists() else 0


def _end(folder: Path, party: str) -> float:
    """Kill a party; the CPU seconds that it had spent."""
    pid = int((folder / "state" / party / RUN / "party.pid").read_text())
    spent = _cpu(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return spent


def _spent(folder: Path) -> float:
    """CPU seconds of the processes of one site, and of their children that have ended."""
    home, ours = f"FLWR_HOME={folder / 'home' / SITE}".encode() + b"\0", set[int]()
    everybody = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    for pid in everybody:
        with contextlib.suppress(OSError):
            if home in Path(f"/proc/{pid}/environ").read_bytes():
                ours.add(pid)
    ended = {
        pid for pid in everybody if (fields := _stat(pid))[0] == "Z" and int(fields[1]) in ours
    }
    return sum(_cpu(pid) for pid in ours | ended)


def _cpu(pid: int) -> float:
    """User and system time, also of children that were waited for."""
    return sum(int(field) for field in _stat(pid)[11:15]) / _TICK


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["gone", "0", *["0"] * 13]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
