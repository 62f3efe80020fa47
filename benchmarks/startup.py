"""What a command costs before it works: CPU seconds and heavy imports of `--help`, and of scoring a
small table.

`python benchmarks/startup.py`; one JSON line a command. Bars, exits 1 above them: `python -m
homo_dp.train --help` takes less than 1 s of CPU beyond Python with pydantic imported, and imports
nothing heavy; scoring imports no mlflow. `beyond` is a median of differences: each command takes
turns with `python -c "import pydantic"`.
"""

from __future__ import annotations

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

BAR = 1.0
HEAVY = (
    "torch",
    "mlflow",
    "pandas",
    "pyarrow",
    "sklearn",
    "scipy",
    "numpy",
    "opacus",
    "dp_accounting",
    "matplotlib",
    "cryptography",
)
BASE = [sys.executable, "-c", "import pydantic"]
HELP = ("train", "infer", "party", "aggregator", "budget")
IMPORTS = f"""
import runpy, sys
module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:
        raise
print("heavy", *(name for name in {HEAVY!r} if name in sys.modules))
"""


def cpu_seconds(command: list[str]) -> float:
    """CPU seconds, of user and system, that a command takes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def heavy_imports(module: str, *arguments: str) -> list[str]:
    """Which of the heavy packages a command has imported when it is done."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, module, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()[-1].split()[1:]


def measure(module: str, arguments: list[str], repeats: int) -> dict[str, Any]:
    """One command against the bare interpreter with pydantic, turn by turn."""
    command = [sys.executable, "-m", module, *arguments]
    cpu_seconds(command)  # compile and read from disk once
    pairs = [(cpu_seconds(command), cpu_seconds(BASE)) for _ in range(repeats)]
    return {
        "benchmark": "startup",
        "command": f"python -m {module} {arguments[0]}"
        if arguments[0] == "--help"
        else f"python -m {module}",
        "beyond": round(statistics.median(ours - base for ours, base in pairs), 3),
        "cpu_seconds": round(statistics.median(ours for ours, _ in pairs), 3),
        "pydantic_cpu_seconds": round(statistics.median(base for _, base in pairs), 3),
        "heavy_imports": heavy_imports(module, *arguments),
        "repeats": repeats,
    }


def scoring(folder: Path) -> list[str]:
    """Train a small model in a folder; the arguments that score its test rows."""
    names = {
        "predictFileName": "predict.csv",
        "indicatorFileName": "indicator.json",
        "modelFileName": "model.safetensors",
    }
    outputs = ",".join(f"{name}={folder / file}" for name, file in names.items())
    settings = "train.auto=false,train.rounds=1,tracking.enabled=false"
    settings += f",privacy.ledger={folder / 'ledger.sqlite'},{outputs}"
    subprocess.run(
        [sys.executable, "-m", "homo_dp.train", "--quiet", "--params", settings], check=True
    )
    scored = f"modelFileName={folder / 'model.safetensors'},predictFileName={folder / 'scored.csv'}"
    return ["--quiet", "--params", f"{scored},indicatorFileName={folder / 'scored.json'}"]


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--repeats",
        type=count,
        default=5,
        help="runs that the medians are of; fewer than 5 are for trying it out only",
    )
    parser.add_argument("--no-scoring", action="store_true", help="only --help")
    given = parser.parse_args()
    passed = True
    for name in HELP:
        line = measure(f"homo_dp.{name}", ["--help"], given.repeats)
        if name == "train":
            line["bar"] = BAR
            passed = line["beyond"] < BAR and not line["heavy_imports"]
        print(json.dumps(line), flush=True)
    if not given.no_scoring:
        with tempfile.TemporaryDirectory() as folder:
            line = measure("homo_dp.infer", scoring(Path(folder)), max(1, given.repeats // 2))
            passed &= "mlflow" not in line["heavy_imports"]
            print(json.dumps(line), flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
