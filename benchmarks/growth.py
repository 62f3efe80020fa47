"""How a run grows: rows x1, x4, x16 at 3 parties, and the same rows over 3, 30 and 300 parties.

`python benchmarks/growth.py`; one JSON line each. A run is all of it after imports, but MLflow:
read the CSV files, train two rounds, charge the ledger, write every file. Each is made in a forked
process of its own, so nothing that an earlier one has computed is there. Ratios are of CPU seconds,
which neighbours on a busy machine disturb little; wall seconds stand beside them. Bars, exits 1
above them:

- rows: seconds per row at x4 and x16, at most 1.3 times those at x1; also without what a run costs
  whatever its rows, `marginal_ratio`: seconds per added row from x4 to x16 over those from x1 to
  x4;
- parties: `party_ratio`, seconds per added party from 30 to 300 over those from 3 to 30, at most
  1.3;
- `many_parties`: 300 parties with 100 rows each, 10 rounds, 6 s.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from samples import job_config, write_table

import homo_dp.privacy.engine.engine  # noqa: F401 (a run imports it late)
from homo_dp.config.load import config_from
from homo_dp.runs.outputs import write_outputs
from homo_dp.runs.user_simulation import build_simulation

BAR = 1.3
PARTIES_BAR = 6.0  # seconds
FEATURES, ROUNDS, BATCH = 20, 2, 64

Sizes = Sequence[int]


class Cost(NamedTuple):
    """What one run took: CPU and wall seconds, and the highest resident memory in MiB."""

    cpu: float
    wall: float
    peak: float


def run(tree: dict[str, Any]) -> Cost:
    """Train in this process, without MLflow."""
    started = time.process_time(), time.perf_counter()
    config = config_from(tree)
    simulation = build_simulation(config, lambda row, parties: None)
    write_outputs(simulation.run(), simulation.ledger, simulation.gradient_norms)
    cpu, wall = time.process_time() - started[0], time.perf_counter() - started[1]
    return Cost(cpu, wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a forked process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, arguments)


def costs(jobs: dict[int, dict[str, Any]], repeats: int) -> dict[int, Cost]:
    """The median cost of every job; the jobs take turns."""
    seen: dict[int, list[Cost]] = {size: [] for size in jobs}
    for _ in range(repeats):
        for size, tree in jobs.items():
            seen[size].append(apart(run, tree))
    return {
        size: Cost(*map(statistics.median, zip(*found, strict=True)))
        for size, found in seen.items()
    }


def by_rows(folder: Path, sizes: Sizes, repeats: int) -> dict[str, Any]:
    """More and more rows at three parties, each with a file of its own."""
    jobs = {}
    for size in sizes:
        files = {party: str(folder / f"{party}{size}.csv") for party in "abc"}
        for seed, path in enumerate(files.values()):
            apart(write_table, Path(path), size, FEATURES, seed)
        jobs[3 * size] = _tree(folder, {"files": files})
    found = costs(jobs, repeats)
    per_row = {rows: cost.cpu / rows for rows, cost in found.items()}
    first, second, third = found
    return {
        "benchmark": "growth",
        "growing": "rows",
        "parties": 3,
        "ratio": round(max(per_row[second], per_row[third]) / per_row[first], 3),
        "marginal_ratio": round(_slope(found, second, third) / _slope(found, first, second), 3),
        "bar": BAR,
        "microseconds_per_row": {rows: round(1e6 * value, 2) for rows, value in per_row.items()},
        **_figures(found, repeats),
    }


def by_parties(folder: Path, rows: int, sizes: Sizes, repeats: int) -> dict[str, Any]:
    """One table, split over more and more parties."""
    path = folder / "all.csv"
    apart(write_table, path, rows, FEATURES)
    jobs = {
        size: _tree(
            folder, {"files": {"all": str(path)}, "partition": {"kind": "iid", "parties": size}}
        )
        for size in sizes
    }
    found = costs(jobs, repeats)
    first, second, third = found
    return {
        "benchmark": "growth",
        "growing": "parties",
        "rows": rows,
        "party_ratio": round(_slope(found, second, third) / _slope(found, first, second), 3),
        "bar": BAR,
        "milliseconds_per_party": {
            size: round(1e3 * cost.cpu / size, 2) for size, cost in found.items()
        },
        "milliseconds_per_added_party": round(1e3 * _slope(found, second, third), 2),
        **_figures(found, repeats),
    }


def _tree(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    tree = job_config(folder, data, FEATURES, ROUNDS, BATCH)
    tree["tracking"] = {"enabled": False}
    return tree


def _slope(found: dict[int, Cost], low: int, high: int) -> float:
    return (found[high].cpu - found[low].cpu) / (high - low)


def _figures(found: dict[int, Cost], repeats: int) -> dict[str, Any]:
    return {
        "cpu_seconds": {size: round(cost.cpu, 3) for size, cost in found.items()},
        "seconds": {size: round(cost.wall, 3) for size, cost in found.items()},
        "peak_mib": {size: round(cost.peak) for size, cost in found.items()},
        "rounds": ROUNDS,
        "repeats": repeats,
    }


def many_parties(
    folder: Path, parties: int, rows: int, rounds: int, repeats: int
) -> dict[str, Any]:
    """As many parties with a file of a few rows each: what a run costs beside its training."""
    files = {f"party{number}": str(folder / f"many{number}.csv") for number in range(parties)}
    for seed, path in enumerate(files.values()):
        write_table(Path(path), rows, 10, seed)
    tree = job_config(folder, {"files": files}, 10, rounds)
    found = [apart(run, tree) for _ in range(repeats)]
    return {
        "benchmark": "many_parties",
        "parties": parties,
        "rows": rows,
        "rounds": rounds,
        "cpu": round(min(cost.cpu for cost in found), 3),
        "wall": round(min(cost.wall for cost in found), 3),
        "bar": PARTIES_BAR,
        "repeats": repeats,
    }


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--rows", type=count, default=5_000, help="rows of each of the 3 parties at x1"
    )
    parser.add_argument(
        "--parties", type=count, default=3, help="the fewest parties; then 10 and 100 times as many"
    )
    parser.add_argument("--many", type=count, default=300, help="parties with 100 rows each")
    parser.add_argument("--shared", type=count, default=30_000, help="rows that the parties share")
    parser.add_argument(
        "--repeats",
        type=count,
        default=5,
        help="runs that the medians are of; fewer than 5 are for trying it out only",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = by_rows(Path(folder), [given.rows * factor for factor in (1, 4, 16)], given.repeats)
        print(json.dumps(rows), flush=True)
        sizes = [given.parties * factor for factor in (1, 10, 100)]
        parties = by_parties(Path(folder), given.shared, sizes, given.repeats)
        print(json.dumps(parties), flush=True)
        many = many_parties(Path(folder), given.many, 100, 10, min(3, given.repeats))
        print(json.dumps(many), flush=True)
    growing = max(rows["ratio"], rows["marginal_ratio"], parties["party_ratio"])
    return 0 if growing <= BAR and many["cpu"] <= PARTIES_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
