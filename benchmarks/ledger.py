"""A ledger of 100,000 rows: CPU seconds to open it to charge, to show it, and to verify every row.

`python benchmarks/ledger.py`; one JSON line. Bars, exits 1 above them: `open` <= 0.1 s, `show` <= 2
s, both what is left without the imports of the same process. `verify` checks every row and has no
bar. Each figure is the smallest of `--repeats` fresh processes, since another process on the
machine can only add to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")

BARS = {"open": 0.1, "show": 2.0}
PARTIES, ROUNDS = 50, 20


def fill(path: Path, rows: int) -> None:
    """Runs of 50 parties and 20 rounds each, until there are that many rows."""
    from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
    from homo_dp.privacy.ledger import Budget, Charge, Ledger

    event = GaussianDpEvent(50.0)
    with Ledger(path) as ledger:
        for start in range(0, rows, PARTIES * ROUNDS):
            with ledger.together():
                for number in range(start, min(rows, start + PARTIES * ROUNDS)):
                    run, (turn, party) = f"run-{start}", divmod(number - start, PARTIES)
                    charge = Charge(
                        run,
                        f"data-{start % 7}",
                        "record",
                        "add_or_remove_one",
                        f"party-{party}",
                        turn + 1,
                        "update",
                        event,
                        delta=1e-5,
                        sigma=50.0,
                        observer="aggregator",
                    )
                    ledger.charge(charge, Budget(None))


def once(what: str, path: str) -> dict[str, float]:
    """One of the three in this process, after its imports."""
    from homo_dp import budget
    from homo_dp.privacy.ledger import Ledger
    from homo_dp.runs import budget_plot  # noqa: F401

    started, busy = time.perf_counter(), time.process_time()
    if what == "open":
        Ledger(path).close()
    else:
        with open(os.devnull, "w") as nowhere:
            sys.stdout, shown = nowhere, sys.stdout
            try:
                budget.main(["ledger", what, path])
            finally:
                sys.stdout = shown
    return {"cpu": time.process_time() - busy, "wall": time.perf_counter() - started}


def measure(rows: int, repeats: int) -> dict[str, Any]:
    """Fill a ledger once, then open, show and verify it in fresh processes, turn by turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.sqlite")
        started = time.process_time()
        fill(path, rows)
        filled = time.process_time() - started
        found: dict[str, list[dict[str, float]]] = {"open": [], "show": [], "verify": []}
        for _ in range(repeats):
            for what, runs in found.items():
                command = [sys.executable, __file__, "--once", what, str(path)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
    result: dict[str, Any] = {
        "benchmark": "ledger",
        "rows": rows,
        "repeats": repeats,
        "fill_cpu": round(filled, 3),
    }
    for what, runs in found.items():
        result[what] = round(min(run["cpu"] for run in runs), 4)
        result[f"{what}_wall"] = round(min(run["wall"] for run in runs), 4)
    return result


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--rows", type=count, default=100_000, help="rows of the ledger")
    parser.add_argument(
        "--repeats", type=count, default=3, help="processes that each figure is the smallest of"
    )
    parser.add_argument("--once", nargs=2, metavar=("WHAT", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(*given.once)))
        return 0
    line = measure(given.rows, given.repeats)
    print(json.dumps(line), flush=True)
    return 0 if all(line[what] <= bar for what, bar in BARS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
