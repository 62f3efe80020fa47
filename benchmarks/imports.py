"""What a person waits for before anything is trained, and the memory it takes: CPU seconds and peak
MiB of processes.

`python benchmarks/imports.py`; one JSON line. Bars, exits 1 above them: all that `python -m
homo_dp.train` imports on the default data takes <= 1.6 s and <= 300 MiB, `train --dry-run` <= 1.5
s, and the LR job of 3 x 10,000 rows x 100 columns without MLflow <= 520 MiB. `import torch` alone
takes turns with them: it is the larger part of each, and the `_ratio` figures say how many times of
it. Each figure is the smallest of `--repeats` fresh processes, since another process on the machine
can only add to it.
"""

from __future__ import annotations

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

IMPORTS = """
from homo_dp import fit
from homo_dp.core.heavy_imports import quick_imports
with quick_imports():
    from homo_dp.federation.sessions.build import mechanism_class
    import homo_dp.config.load, homo_dp.data.embedded
    import homo_dp.runs.dry_run, homo_dp.runs.outputs, homo_dp.runs.run_facts, homo_dp.runs.user_simulation
    import homo_dp.tracking.indicators
    mechanism_class("dp_sgd").warm_up()
"""


def run(command: list[str], folder: str) -> dict[str, float]:
    """CPU and wall seconds and peak MiB of one process."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": time.perf_counter() - started,
        "mib": usage.ru_maxrss / 1024,
    }


def measure(repeats: int) -> dict[str, Any]:
    """All of them, turn by turn."""
    from samples import write_job

    with tempfile.TemporaryDirectory() as folder:
        config = write_job(Path(folder), {f"party{n}": 10_000 for n in range(3)}, 100, 10)
        train = [sys.executable, "-m", "homo_dp.train"]
        commands = {
            "torch": [sys.executable, "-c", "import torch"],
            "imports": [sys.executable, "-c", IMPORTS],
            "dry_run": [*train, "--dry-run"],
            "lr_job": [*train, "--config", str(config), "--params", "tracking.enabled=false"],
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name, command in commands.items():
                found[name].append(run(command, folder))
    result: dict[str, Any] = {"benchmark": "imports", "repeats": repeats}
    for name, runs in found.items():
        for kind in ("cpu", "wall", "mib"):
            result[f"{name}_{kind}"] = round(min(run[kind] for run in runs), 3)
    for name in ("imports", "dry_run"):
        result[f"{name}_ratio"] = round(result[f"{name}_cpu"] / result["torch_cpu"], 3)
    return result


BARS = {"imports_cpu": 1.6, "imports_mib": 300, "dry_run_cpu": 1.5, "lr_job_mib": 520}


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--repeats", type=count, default=5, help="processes that each figure is the smallest of"
    )
    given = parser.parse_args()
    line = measure(given.repeats)
    print(json.dumps(line), flush=True)
    return 0 if all(line[name] <= bar for name, bar in BARS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
