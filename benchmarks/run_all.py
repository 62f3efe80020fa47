"""Runs every benchmark, one after the other, and writes what they found to RESULTS.md: `make
bench`, under 12 minutes.

Each is a process of its own that prints JSON lines; a line belongs to a figure if it has the values
that the figure names. Exits 1 if a figure is missing or misses its bar. `--only job tables` runs
some of them and writes nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arguments import parser_for

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
LONGEST = 600  # seconds that one benchmark may take
SCRIPTS = (
    "steps.py --model lr",
    "steps.py --model mlp",
    "steps.py --model cnn",
    "steps.py --model embedding",
    "steps.py --model lstm",
    "steps.py --model wide --repeats 5",
    "noise.py",
    "secure_sums.py --against-randn",
    "tables.py",
    "startup.py",
    "imports.py",
    "ledger.py",
    "job.py",
    "growth.py",
    "users.py",
    "transport.py",
)
PACKAGES = ("torch", "opacus", "dp-accounting", "numpy", "pandas", "pyarrow", "mlflow", "homo_dp")


@dataclass(frozen=True)
class Figure:
    """One number to report: where it stands, and the bar that it must not miss."""

    what: str
    key: str
    bar: str = ""  # "<= 0.7", ">= 10", "< 1"; empty: no bar
    unit: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)


def _steps(model: str, name: str, *figures: tuple[str, str, str]) -> list[Figure]:
    where = {"benchmark": "steps", "model": model}
    return [Figure(f"{name}: {what}", key, bar, "x", where) for what, key, bar in figures]


FIGURES = (
    *_steps(
        "lr",
        "LR step",
        ("ours / plain torch", "ratio_plain", "<= 0.85"),
        ("a size of batch that comes first / plain step", "first_size_ratio", ""),
        ("Opacus hooks / ours", "speedup_opacus", ">= 10"),
        ("our engine in an Opacus loop / plain torch", "ratio_plain_loop", ""),
        ("Opacus hooks / our engine in the same loop", "speedup_opacus_loop", ""),
    ),
    *_steps(
        "mlp",
        "MLP 784-128-10 step",
        ("ours / plain torch", "ratio_plain", "<= 1.3"),
        ("CPU of the noise producer / plain torch", "noise_cpu_ratio", ""),
        ("CPU of step and noise / plain torch", "total_cpu_ratio", "<= 1.5"),
        ("a size of batch that comes first / plain step", "first_size_ratio", ""),
        ("Opacus hooks / ours", "speedup_opacus", ">= 30"),
        ("Opacus ghost / ours", "speedup_ghost", ">= 2"),
        ("peak memory, ours / plain torch", "peak_memory_ratio", "<= 1.2"),
        ("our engine in an Opacus loop / plain torch", "ratio_plain_loop", ""),
        ("Opacus hooks / our engine in the same loop", "speedup_opacus_loop", ""),
    ),
    *_steps(
        "cnn",
        "CNN step on 28x28",
        ("ours / plain torch", "ratio_plain", "<= 1.05"),
        ("best Opacus mode / ours", "speedup_best_opacus", ">= 1"),
    ),
    *_steps(
        "embedding",
        "Embedding bag and linear layer, step",
        ("ours / plain torch", "ratio_plain", "<= 2.5"),
    ),
    *_steps("lstm", "LSTM step", ("ours / plain torch", "ratio_plain", "<= 2.7")),
    *_steps(
        "wide",
        "MLP of 10.7 M weights, two threads each, step",
        ("ours / plain torch", "ratio_plain", "<= 1.4"),
    ),
    Figure(
        "Secure normals / torch.randn, 1e5",
        "ratio",
        "<= 6",
        "x",
        {"benchmark": "noise", "size": 100_000},
    ),
    Figure(
        "Secure normals / torch.randn, 1e6",
        "ratio",
        "<= 8",
        "x",
        {"benchmark": "noise", "size": 1_000_000},
    ),
    Figure(
        "Discrete noise of a sum over parties / torch.randn, 1e5",
        "share_ratio",
        "<= 6",
        "x",
        {"benchmark": "noise", "size": 100_000},
    ),
    Figure(
        "Masked, noised sum of 1e5 at each of 10 parties / torch.randn",
        "ratio",
        "<= 6",
        "x",
        {"benchmark": "masked_sum"},
    ),
    Figure(
        "CSV 30,000 x 100 to tensors / pandas.read_csv(pyarrow)",
        "ratio",
        "<= 1.5",
        "x",
        {"benchmark": "tables"},
    ),
    Figure(
        "train --help: CPU beyond Python and pydantic",
        "beyond",
        "< 1",
        "s",
        {"benchmark": "startup", "command": "python -m homo_dp.train --help"},
    ),
    Figure(
        "Imports of train on the default data: CPU",
        "imports_cpu",
        "<= 1.6",
        "s",
        {"benchmark": "imports"},
    ),
    Figure(
        "Imports of train: CPU / that of torch alone",
        "imports_ratio",
        "",
        "x",
        {"benchmark": "imports"},
    ),
    Figure(
        "Imports of train: peak memory", "imports_mib", "<= 300", "MiB", {"benchmark": "imports"}
    ),
    Figure("train --dry-run: CPU", "dry_run_cpu", "<= 1.5", "s", {"benchmark": "imports"}),
    Figure(
        "train --dry-run: CPU / that of torch alone",
        "dry_run_ratio",
        "",
        "x",
        {"benchmark": "imports"},
    ),
    Figure(
        "LR job without MLflow: peak memory",
        "lr_job_mib",
        "<= 520",
        "MiB",
        {"benchmark": "imports"},
    ),
    Figure("Ledger of 100,000 rows: open", "open", "<= 0.1", "s", {"benchmark": "ledger"}),
    Figure("Ledger of 100,000 rows: show", "show", "<= 2", "s", {"benchmark": "ledger"}),
    Figure("Ledger of 100,000 rows: verify", "verify", "", "s", {"benchmark": "ledger"}),
    Figure(
        "Parquet 3 M x 9 to tensors / pandas, CPU",
        "cpu_ratio",
        "<= 1.2",
        "x",
        {"benchmark": "parquet"},
    ),
    Figure(
        "Predictions of 3 M rows, by two threads",
        "seconds",
        "<= 1",
        "s",
        {"benchmark": "predictions"},
    ),
    Figure("Predictions of 3 M rows: CPU", "cpu", "", "s", {"benchmark": "predictions"}),
    Figure(
        "Whole LR job: all that is not training", "not_training", "<= 2", "s", {"benchmark": "job"}
    ),
    Figure("Whole LR job: training", "training", "", "s", {"benchmark": "job"}),
    Figure("Whole LR job: imports", "imports", "", "s", {"benchmark": "job"}),
    Figure("Rows x4, x16: time per row / that at x1", "ratio", "<= 1.3", "x", {"growing": "rows"}),
    Figure(
        "Rows: per added row, x4 to x16 / x1 to x4",
        "marginal_ratio",
        "<= 1.3",
        "x",
        {"growing": "rows"},
    ),
    Figure(
        "Parties: per added party, 30 to 300 / 3 to 30",
        "party_ratio",
        "<= 1.3",
        "x",
        {"growing": "parties"},
    ),
    Figure(
        "Parties: per added party",
        "milliseconds_per_added_party",
        "",
        "ms",
        {"growing": "parties"},
    ),
    Figure(
        "300 parties x 100 rows x 10 rounds: CPU",
        "cpu",
        "<= 6",
        "s",
        {"benchmark": "many_parties"},
    ),
    Figure(
        "300 parties x 100 rows x 10 rounds: wall", "wall", "", "s", {"benchmark": "many_parties"}
    ),
    Figure(
        "Users of a cohort together / one at a time, fixed clipping",
        "ratio",
        ">= 10",
        "x",
        {"benchmark": "users", "clipping": "fixed"},
    ),
    Figure(
        "Users of a cohort together / one at a time, adaptive clipping",
        "ratio",
        ">= 10",
        "x",
        {"benchmark": "users", "clipping": "adaptive"},
    ),
    Figure(
        "100,000 users: memory beside their rows",
        "bytes_beside_the_rows",
        f"<= {1 << 30}",
        "B",
        {"benchmark": "many_users"},
    ),
    *(
        Figure(
            f"Round between processes, {kind}: beyond compute",
            "beyond_compute_ms",
            bar,
            "ms",
            {"benchmark": "transport.rounds", "transport": kind},
        )
        for kind, bar in (("directory", "<= 60"), ("nats", "<= 40"))
    ),
    *(
        Figure(
            f"100 MB model, {kind}: {side} peak memory / its size",
            f"{side}_peak",
            "< 4",
            "x",
            {"benchmark": "transport.large", "transport": kind},
        )
        for kind in ("directory", "nats")
        for side in ("sender", "receiver")
    ),
    *(
        Figure(
            f"Waiting, {kind}: {side}, share of a core",
            f"{side}_percent",
            "< 1",
            "%",
            {"benchmark": "transport.idle", "transport": kind},
        )
        for kind in ("directory", "nats")
        for side in ("aggregator", "party")
    ),
)


def run(script: str) -> tuple[list[dict[str, Any]], float, str]:
    """The lines of one benchmark, how long it took, and what it said if it failed."""
    name, *arguments = script.split()
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / name), *arguments],
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        output, said = done.stdout, done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        said = f"took more than {LONGEST} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return lines, time.perf_counter() - started, said


def find(figure: Figure, lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The value of a figure in the first line that it belongs to."""
    for line in lines:
        if (
            all(line.get(name) == value for name, value in figure.where.items())
            and figure.key in line
        ):
            return float(line[figure.key])
    return None


def meets(value: float | None, bar: str) -> bool | None:
    """Whether a value is within its bar; None where there is no bar.

    >>> meets(0.5, "<= 0.7"), meets(9.9, ">= 10"), meets(1.0, "< 1"), meets(None, "< 1"), meets(3.0, "")
    (True, False, False, False, None)
    """
    if not bar:
        return None
    if value is None:
        return False
    sign, limit = bar.split()
    return {"<=": value <= float(limit), ">=": value >= float(limit), "<": value < float(limit)}[
        sign
    ]


def machine() -> list[str]:
    """What the figures were measured on, without saying whose it is."""
    models = [
        line.split(":")[1].strip()
        for line in _text("/proc/cpuinfo").splitlines()
        if line.startswith("model name")
    ]
    memory = next(
        (
            int(line.split()[1])
            for line in _text("/proc/meminfo").splitlines()
            if "MemTotal" in line
        ),
        0,
    )
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return [
        (
            f"- processor: {models[0] if models else platform.machine()}, "
            f"{len(os.sched_getaffinity(0))} cores, one used"
        ),
        f"- memory: {memory / 2**20:.1f} GiB; {platform.system()} {platform.release()}",
        f"- Python {platform.python_version()}, {versions}",
        f"- load average when the benchmarks began: {os.getloadavg()[0]:.1f}",
    ]


def table(
    lines: Sequence[Mapping[str, Any]], figures: Sequence[Figure] = FIGURES
) -> tuple[list[str], bool]:
    """The figures as a Markdown table, and whether all bars were met."""
    rows, passed = ["| what | measured | bar | met |", "|---|---|---|---|"], True
    for figure in figures:
        value = find(figure, lines)
        met = meets(value, figure.bar)
        passed &= met is not False
        mark = {None: "", True: "yes", False: "**no**"}[met]
        rows.append(f"| {figure.what} | {_shown(value, figure.unit)} | {_bar(figure)} | {mark} |")
    return rows, passed


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "missing"
    if unit == "B":
        return f"{value / 2**20:.0f} MiB"
    return f"{value:.3g} {unit}".strip() if abs(value) < 1000 else f"{value:.0f} {unit}".strip()


def _bar(figure: Figure) -> str:
    if figure.unit != "B" or not figure.bar:
        return figure.bar
    sign, limit = figure.bar.split()
    return f"{sign} {_shown(float(limit), 'B')}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def report(
    about: list[str],
    rows: list[str],
    took: Mapping[str, float],
    lines: Sequence[Mapping[str, Any]],
) -> str:
    """The whole of RESULTS.md."""
    durations = [f"- `{script}`: {seconds:.0f} s" for script, seconds in took.items()]
    raw = [json.dumps(line) for line in lines]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            (
                "Written by `make bench`. Ours and the alternative run in one process, turn by "
                "turn, on one thread;"
            ),
            (
                "figures are medians. What each benchmark does stands at the top of its file; "
                "[README.md](README.md) has"
            ),
            "the profile of each bar that is hard to meet.",
            "",
            *about,
            "",
            *rows,
            "",
            f"All of it took {sum(took.values()) / 60:.1f} minutes:",
            "",
            *durations,
            "",
            "## As printed",
            "",
            "```json",
            *raw,
            "```",
            "",
        ]
    )


def main() -> int:
    parser = parser_for(__doc__)
    names = sorted({script.split(".")[0] for script in SCRIPTS})
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        help="some benchmarks; RESULTS.md is then left as it is",
    )
    given = parser.parse_args()
    chosen = [script for script in SCRIPTS if not given.only or script.split(".")[0] in given.only]
    about, lines, took = machine(), list[dict[str, Any]](), dict[str, float]()
    for script in chosen:
        found, took[script], said = run(script)
        lines += found
        print(
            f"{script}: {took[script]:.0f} s",
            *(json.dumps(line) for line in found),
            sep="\n",
            flush=True,
        )
        if said:
            print(f"{script}: {said.strip()[-2000:]}", file=sys.stderr, flush=True)
    if given.only:
        figures = [figure for figure in FIGURES if find(figure, lines) is not None]
        rows, passed = table(lines, figures)
    else:
        rows, passed = table(lines)
        RESULTS.write_text(report(about, rows, took, lines), encoding="utf-8")
    print(*rows, sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
