"""A whole logistic-regression job from CSV files, MLflow and all files on: what is not training, in
seconds.

`python benchmarks/job.py`: 3 parties x 10,000 rows x 100 columns, 10 rounds x 1 epoch, on an
existing MLflow store; bar: `not_training` <= 2 s after imports; exits 1 above it. Each repeat is a
process of its own, as users start it: `python -m homo_dp.train --config job.yaml`. `not_training`
is its wall time without its own imports and without `LocalFit.train_round`; waiting for the process
that talks to MLflow is part of it. With `--imported` everything is imported before the clock
starts, so that MLflow's process imports on our time; this has no bar.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
from phases import Phases, around, watch_run

BAR = 2.0


def run_once(config: str, imported: bool) -> dict[str, Any]:
    """One training in this process; the seconds of its phases."""
    phases = Phases()
    phases.enter("imports")
    import homo_dp.config.load
    import homo_dp.train as train

    if imported:
        import homo_dp.privacy.engine.engine
        import homo_dp.runs.outputs
        import homo_dp.runs.user_simulation  # noqa: F401
    phases.leave()
    phases.watch("config", train, "load_from_arguments")
    # CPU seconds of the process that talks to MLflow, at the end and when it lets us go
    children: list[float] = []

    def look() -> None:
        children.append(_children_cpu())

    def prepare() -> None:
        watch_run(phases)
        from homo_dp.tracking.mlflow.tracker import MlflowTracker

        around(MlflowTracker, "finish", look, look)

    around(train, "_train", prepare)
    code = train.main(["--config", config, "--quiet"])
    return {
        "exit_code": code,
        "wall": phases.seconds(),
        "cpu": dict(phases.cpu),
        "mlflow_process": children,
    }


def _children_cpu() -> float:
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(child.cpu_times()[:2])
    return total


def measure(
    rows: int, features: int, parties: int, rounds: int, repeats: int, imported: bool
) -> dict[str, Any]:
    """Medians over fresh processes, after one that makes the store."""
    from samples import write_job

    with tempfile.TemporaryDirectory() as folder:
        config = write_job(
            Path(folder), {f"party{n}": rows for n in range(parties)}, features, rounds
        )
        command = [
            sys.executable,
            __file__,
            "--once",
            str(config),
            *(["--imported"] if imported else []),
        ]
        runs = [_spawn(command) for _ in range(repeats + 1)][1:]
    return _report(runs) | {
        "rows_per_party": rows,
        "features": features,
        "parties": parties,
        "rounds": rounds,
        "repeats": repeats,
        "imported_before": imported,
    }


def _spawn(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _report(runs: list[dict[str, Any]]) -> dict[str, Any]:
    outside = ("imports", "training")
    phases = dict.fromkeys(phase for run in runs for phase in run["wall"])
    return {
        "benchmark": "job",
        "not_training": _median(
            [sum(s for p, s in run["wall"].items() if p not in outside) for run in runs]
        ),
        "not_training_cpu": _median(
            [sum(s for p, s in run["cpu"].items() if p not in outside) for run in runs]
        ),
        "bar": BAR,
        "training": _median([run["wall"]["training"] for run in runs]),
        "imports": _median([run["wall"]["imports"] for run in runs]),
        "mlflow_process_cpu": _median([run["mlflow_process"][1] for run in runs]),
        "mlflow_process_cpu_after_end": _median(
            [run["mlflow_process"][1] - run["mlflow_process"][0] for run in runs]
        ),
        "phases": {
            phase: _median([run["wall"].get(phase, 0.0) for run in runs]) for phase in phases
        },
        "phases_cpu": {
            phase: _median([run["cpu"].get(phase, 0.0) for run in runs]) for phase in phases
        },
    }


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--rows", type=count, default=10_000, help="rows of each party")
    parser.add_argument("--features", type=count, default=100, help="columns of the table")
    parser.add_argument("--parties", type=count, default=3, help="parties of the job")
    parser.add_argument("--rounds", type=count, default=10, help="rounds of the job")
    parser.add_argument(
        "--repeats",
        type=count,
        default=5,
        help="runs that the medians are of; fewer than 5 are for trying it out only",
    )
    parser.add_argument("--imported", action="store_true", help="import before the clock starts")
    parser.add_argument("--once", metavar="CONFIG", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(run_once(given.once, given.imported)))
        return 0
    line = measure(
        given.rows, given.features, given.parties, given.rounds, given.repeats, given.imported
    )
    print(json.dumps(line), flush=True)
    return 0 if line["not_training"] <= BAR or given.imported else 1


if __name__ == "__main__":
    sys.exit(main())
