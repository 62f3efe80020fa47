"""Compare settings: ``python -m homo_dp.compare --vary KEY=VALUE,VALUE --vary KEY=VALUE,VALUE``.

Trains every combination, on all cores, and shows how accuracy and epsilon change. Where a run takes
seconds, each is repeated, so that bars show what noise alone does. The same command again goes on
where it was interrupted.
"""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Interrupted,
    Parser,
    Screen,
    add_common_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import check_writable, write_whole
from homo_dp.core.heavy_imports import quick_imports

if TYPE_CHECKING:
    import argparse

    from homo_dp.config.schema import Config
    from homo_dp.runs.sweep import Cell
    from homo_dp.runs.sweep_log import SweepLog

EXAMPLES = """examples:
  python -m homo_dp.compare --vary privacy.max_grad_norm=0.1,0.3,1,3 --vary privacy.noise_multiplier=0.5,1,2
  python -m homo_dp.compare --config conf/homo_lr_dpsgd.yaml --vary train.learning_rate=0.5,1,2,4 --repeats 3
what it costs:
  every run is real and charges privacy.ledger like any other, repeats too. Choosing the best cell by looking at
  private rows costs the epsilon of all runs together, which is shown at the end, not the epsilon of the cell that is
  chosen."""

MOST_RUNS = 10_000
REPEATS = 3  # runs of every cell, where --repeats is not given and they are short
SHORT_RUN = 10.0  # seconds of training up to which a run is repeated
WITH_BARS = ("test_acc", "test_auc", "test_loss")
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
    loaded = load_from_arguments(options)
    with quick_imports():
        from homo_dp.runs.dry_run import introduce

    introduce(loaded.config, screen, loaded.source)
    by_rule = options.repeats is None
    if by_rule:
        options.repeats = 1 if loaded.config.privacy.lifetime_epsilon is not None else REPEATS
    cells = _cells(options)
    check_writable(Path(options.out) / "compare.csv", "--out")
    sweep = Sweep(cells, Path(options.out), options.jobs, loaded.config, screen, by_rule=by_rule)
    return sweep.run()


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
        default=None,
        metavar="N",
        help=f"runs of every cell, each with its own seed (default: {REPEATS} where a run takes up "
        f"to {SHORT_RUN:g} s of training and there is no privacy.lifetime_epsilon, else 1)",
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


class Sweep:
    """The cells of a comparison, those that are done and those that could not run.

    Args:
        cells: all runs, with their repeats.
        folder: where results are kept.
        jobs: runs at a time.
        config: the settings that the cells share.
        screen: where the result is shown.
        by_rule: whether repeats follow from how long the first run of each cell takes.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        jobs: int,
        config: Config,
        screen: Screen,
        *,
        by_rule: bool = False,
    ) -> None:
        self.cells, self.folder, self.jobs, self.config = list(cells), folder, jobs, config
        self.screen, self.by_rule = screen, by_rule
        self.results: dict[str, dict[str, Any]] = {}
        self.failed: list[dict[str, Any]] = []

    def run(self) -> int:
        """Run the cells that are not finished and show all of them; 2 or 3 if some could not
        run.
        """
        from homo_dp.runs.sweep import finished
        from homo_dp.runs.sweep_log import SweepLog

        for cell in self.cells:
            if (result := finished(cell, self.folder)) is not None:
                self.results[cell.id] = result
        if self.results:
            self.screen.line(
                f"{len(self.results)} of {len(self.cells)} runs are done already (in "
                f"{self.folder}); delete it to start over"
            )
        log = SweepLog(self.config, self.folder, self.cells)
        try:
            self._run_all(log)
        except KeyboardInterrupt:
            log.close("KILLED", {})
            raise Interrupted(
                f"{len(self.results)} of {len(self.cells)} runs are done; the same command goes on "
                "from there"
            ) from None
        except BaseException:
            log.close("FAILED", {})
            raise
        done = [self.results[cell.id] for cell in self.cells if cell.id in self.results]
        files = _write(self.folder, self.cells[0].values, done)
        tracked = log.close("FINISHED" if not self.failed else "FAILED", files)
        _show(self.screen, self.cells[0].values, done, files, tracked)
        return max((int(result["code"]) for result in self.failed), default=0)

    def _run_all(self, log: SweepLog) -> None:
        if not self.by_rule:
            self._run(self.cells, log)
            return
        first = [cell for cell in self.cells if cell.repeat == 0]
        self._run(first, log)
        longest = max((result["seconds"] or 0.0 for result in self.results.values()), default=0.0)
        if len(first) < len(self.cells) and longest <= SHORT_RUN and not self.failed:
            self.screen.line(
                f"a run takes {longest:.2g} s of training: each is run {REPEATS} times and charged "
                "each time; --repeats 1 runs it once"
            )
            self._run(self.cells, log)
            return
        self.screen.line(
            "each cell is run once: differences hold the noise of one run; "
            "--repeats N runs it N times"
        )

    def _run(self, cells: Sequence[Cell], log: SweepLog) -> None:
        from homo_dp.runs.sweep import run_cells

        left = [cell for cell in cells if cell.id not in self.results]
        with self.screen.progress(len(left), "run") as progress:
            for cell, result in run_cells(left, self.folder, self.jobs):
                log.cell(cell, result)
                if result["status"] == "finished":
                    self.results[cell.id] = result
                else:
                    self.failed.append(result)
                    self.screen.warn(f"{cell.label}: {result['reason']}")
                progress.advance(accuracy=result.get("test_acc"), epsilon=result.get("epsilon"))


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
            f"--repeats {options.repeats}: makes {runs} runs, at most {MOST_RUNS} are compared at "
            "once; lower it, or give fewer values to --vary"
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
    barred = [name for name in WITH_BARS if name in names and len(done) > len(groups)]
    header, rows = [*keys, "runs"], [[*cell, len(found)] for cell, found in groups.items()]
    for name in names:
        header += [name, f"{name} ±"] if name in barred else [name]
        for row, found in zip(rows, groups.values(), strict=True):
            row += [_mean(found, name), *([_deviation(found, name)] if name in barred else [])]
    what = "means and standard deviations over repeats" if barred else "one run each"
    screen.table(f"cells ({what})", header, rows)
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


def _deviation(results: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The standard deviation of single runs; None of fewer than two."""
    values = [float(result[name]) for result in results if result.get(name) is not None]
    return statistics.stdev(values) if len(values) > 1 else None


if __name__ == "__main__":
    run(main)
