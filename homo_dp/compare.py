"""Compare settings: ``python -m homo_dp.compare --vary KEY=VALUE,VALUE --vary KEY=VALUE,VALUE``.

Trains every combination, on all cores, and shows how accuracy and epsilon change. The same command again goes on where
it was interrupted.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.console.options import (
    Interrupted,
    Parser,
    Screen,
    add_common_arguments,
    load_from_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import check_writable, write_whole

if TYPE_CHECKING:
    import argparse

    from homo_dp.config.schema import Config
    from homo_dp.runs.sweep import Cell

EXAMPLES = """examples:
  python -m homo_dp.compare --vary privacy.max_grad_norm=0.1,0.3,1,3 --vary privacy.noise_multiplier=0.5,1,2
  python -m homo_dp.compare --config conf/homo_lr_dpsgd.yaml --vary train.learning_rate=0.5,1,2,4 --repeats 3
what it costs:
  every cell is a real run and charges privacy.ledger like any other. Choosing the best cell by looking at private rows
  costs the epsilon of all cells together, which is shown at the end, not the epsilon of the cell that is chosen."""

MOST_RUNS = 10_000
SHOWN = (
    "test_acc",
    "test_auc",
    "test_loss",
    "epsilon",
    "epsilon_rdp",
    "noise_multiplier",
    "seconds",
)
COLUMNS = (
    "test_acc",
    "test_auc",
    "test_loss",
    "train_acc",
    "epsilon",
    "epsilon_rdp",
    "delta",
    "noise_multiplier",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run what is not done yet, show; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    cells = _cells(options)
    check_writable(Path(options.out) / "compare.csv", "--out")
    return compare(
        cells, Path(options.out), options.jobs, load_from_arguments(options).config, screen
    )


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.compare", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="a key and its values; repeat",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        metavar="N",
        help="runs of every cell, each with its own seed",
    )
    parser.add_argument(
        "--out",
        default="out/compare",
        metavar="DIR",
        help="results and state (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at a time"
    )
    add_common_arguments(parser, dry_run=False)
    return parser


def compare(cells: Sequence[Cell], folder: Path, jobs: int, config: Config, screen: Screen) -> int:
    """Run the cells that are not finished and show all of them; 2 or 3 if some could not run."""
    from homo_dp.runs.sweep import finished, run_cells
    from homo_dp.runs.sweep_log import SweepLog

    results = {cell.id: result for cell in cells if (result := finished(cell, folder)) is not None}
    left = [cell for cell in cells if cell.id not in results]
    if results:
        screen.line(
            f"{len(results)} of {len(cells)} runs are done already (in {folder}); delete it to start over"
        )
    log = SweepLog(config, folder, cells)
    failed: list[dict[str, Any]] = []
    try:
        with screen.progress(len(left), "run") as progress:
            for cell, result in run_cells(left, folder, jobs):
                log.cell(cell, result)
                if result["status"] == "finished":
                    results[cell.id] = result
                else:
                    failed.append(result)
                    screen.warn(f"{cell.label}: {result['reason']}")
                progress.advance(accuracy=result.get("test_acc"), epsilon=result.get("epsilon"))
    except KeyboardInterrupt:
        log.close("KILLED", {})
        raise Interrupted(
            f"{len(results)} of {len(cells)} runs are done; the same command goes on from there"
        ) from None
    except BaseException:
        log.close("FAILED", {})
        raise
    done = [results[cell.id] for cell in cells if cell.id in results]
    files = _write(folder, cells[0].values, done)
    tracked = log.close("FINISHED" if not failed else "FAILED", files)
    _show(screen, cells[0].values, done, files, tracked)
    return max((int(result["code"]) for result in failed), default=0)


def _cells(options: argparse.Namespace) -> list[Cell]:
    from homo_dp.runs.sweep import cells_of, parse_vary

    if not options.vary:
        raise ConfigError(
            "--vary is missing: name a key and its values, such as privacy.noise_multiplier=0.5,1,2"
        )
    for name in ("repeats", "jobs"):
        if getattr(options, name) < 1:
            raise ConfigError(
                f"--{name} {getattr(options, name)}: must be a whole number of at least 1"
            )
    vary = parse_vary(options.vary)
    runs = math.prod(len(values) for values in vary.values()) * options.repeats
    if runs > MOST_RUNS:
        raise ConfigError(
            f"--repeats {options.repeats}: makes {runs} runs, at most {MOST_RUNS} are compared at once; lower it, or "
            "give fewer values to --vary"
        )
    return cells_of(
        vary,
        options.repeats,
        Path(options.out),
        lambda extra: load_from_arguments(options, extra).config,
    )


def _write(
    folder: Path, keys: Mapping[str, Any], done: Sequence[Mapping[str, Any]]
) -> dict[str, Path]:
    """The CSV and a picture for each varied key."""
    if not done:
        return {}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "repeat", *COLUMNS, "seconds", "run"])
    for result in done:
        values = [result["values"][key] for key in keys]
        writer.writerow(
            [
                *values,
                result["repeat"],
                *(result.get(name) for name in (*COLUMNS, "seconds", "run")),
            ]
        )
    files = {"csv": folder / "compare.csv"}
    write_whole(files["csv"], text.getvalue().encode(), "--out")
    from homo_dp.tracking.report.sweep_plots import key_picture

    for key in keys:
        files[key] = folder / f"compare_{key}.png"
        write_whole(files[key], key_picture(key, done), "--out")
    return files


def _show(
    screen: Screen,
    keys: Mapping[str, Any],
    done: Sequence[Mapping[str, Any]],
    files: Mapping[str, Path],
    tracked: str | None,
) -> None:
    from homo_dp.runs.sweep_cost import price

    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for result in done:
        groups.setdefault(tuple(str(result["values"][key]) for key in keys), []).append(result)
    names = [name for name in SHOWN if any(result.get(name) is not None for result in done)]
    rows = [
        [*cell, len(found), *(_mean(found, name) for name in names)]
        for cell, found in groups.items()
    ]
    screen.table("cells (means over repeats)", [*keys, "runs", *names], rows)
    cost = price(done)
    for text in cost.words:
        screen.line(text)
    for name, path in files.items():
        screen.line(f"{name}: {path}")
    if tracked is not None:
        screen.line(f"MLflow run: {tracked}")
    paths = {name: str(path) for name, path in files.items()}
    told = {"cells": list(done), "epsilon_of_all": cost.epsilon, "cost_by": cost.used}
    screen.summary({**told, "files": paths, "mlflow_run": tracked})


def _mean(results: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [float(result[name]) for result in results if result.get(name) is not None]
    return sum(values) / len(values) if values else None


if __name__ == "__main__":
    run(main)
