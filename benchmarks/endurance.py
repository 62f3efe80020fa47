"""Federations of many processes, of many rounds, and of a large model: do they end, and does memory
stay flat?

`python benchmarks/endurance.py` prints one JSON line for each job and transport, and exits 1 if a
process failed or grew.

- `many`: 30 parties as processes of their own, 20 rounds;
- `long`: three parties, 2,000 rounds (`--rounds 10000` takes about five times as long);
- `large`: three parties, a model of 200 MB, three rounds.

Memory is the resident set of a process; `growth` is its median over the last tenth of the run, less
that over the tenth behind the first fifth, in MB, for the process that grew most (three rounds say
nothing of it). Processes are forked from one that has imported everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import PARTIES, Cluster
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

MANY = tuple(f"party_{number}" for number in range(1, 31))
GROWTH_BAR = 20.0  # MB
LARGE = [7000, 6970]  # hidden layers on 30 columns: 49 million weights


def main() -> int:
    """Run what was asked for; 1 if something failed or grew."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", choices=["many", "long", "large"])
    parser.add_argument("--transport", choices=["directory", "nats"])
    parser.add_argument("--rounds", type=count, default=2000, help="rounds of `long`")
    options = parser.parse_args()
    jobs = {"many": (MANY, 20), "long": (PARTIES, options.rounds), "large": (PARTIES, 3)}
    good = True
    with Zygote() as zygote:
        for name, (parties, rounds) in jobs.items():
            for transport in ("directory", "nats"):
                if options.only in (None, name) and options.transport in (None, transport):
                    row = measured(name, transport, parties, rounds, zygote)
                    print(json.dumps(row), flush=True)
                    good = (
                        good
                        and row["exit_codes"] == [0]
                        and (name == "large" or row["growth_mb"] < GROWTH_BAR)
                    )
    return 0 if good else 1


def measured(
    name: str, transport: str, parties: tuple[str, ...], rounds: int, zygote: Zygote
) -> dict[str, Any]:
    """One federation to its end, with a look at its memory four times a second."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(Path(folder) / "nats", parties))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(
            Cluster(Path(folder), server, rounds, zygote, parties=parties)
        )
        cluster.change(AGGREGATOR, "train", rounds=rounds, local_steps=1)
        for party in parties:
            cluster.change(party, "party", caps={"rounds": rounds, "parameters": 100_000_000})
        if name == "large":
            cluster.change(AGGREGATOR, "model", name="mlp", layers=LARGE)
        started = time.monotonic()
        cluster.start_all()
        watched = {who: psutil.Process(process.pid) for who, process in cluster.processes.items()}
        seen: dict[str, list[float]] = {who: [] for who in watched}
        while any(process.poll() is None for process in cluster.processes.values()):
            for who, process in watched.items():
                with contextlib.suppress(psutil.Error):
                    seen[who].append(process.memory_info().rss / 1e6)
            time.sleep(0.25)
        seconds = time.monotonic() - started
        codes = sorted(set(cluster.wait(60).values()))
        logs = (
            "" if codes == [0] else "\n".join(cluster.log(who)[-500:] for who in cluster.processes)
        )
        if logs:
            print(logs, file=sys.stderr)
    return {
        "job": name,
        "transport": transport,
        "processes": len(parties) + 1,
        "rounds": rounds,
        "seconds": round(seconds, 1),
        "rounds_a_second": round(rounds / seconds, 2),
        "peak_mb": {
            "aggregator": round(max(seen[AGGREGATOR])),
            "party": round(max(max(seen[p]) for p in parties)),
        },
        "growth_mb": round(max(growth(values) for values in seen.values()), 1),
        "exit_codes": codes,
    }


def growth(values: list[float]) -> float:
    """How much larger a process was at the end of its run than after the first fifth."""
    tenth = max(1, len(values) // 10)
    early = values[2 * tenth : 3 * tenth] or values
    return statistics.median(values[-tenth:]) - statistics.median(early)


if __name__ == "__main__":
    sys.exit(main())
