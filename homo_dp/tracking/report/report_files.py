"""A run's plots and report as files: what MLflow gets at the end of a run, and what the report
is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from homo_dp.tracking.report.contents import Checks, report_page
from homo_dp.tracking.report.plots import (
    NOT_PRIVATE,
    accuracy_against_epsilon,
    budget_bars,
    confusion,
    epsilon_per_party,
    gradient_norms,
    learning_curves,
    released_curves,
    roc,
)
from homo_dp.tracking.report.run_files import Record, read_record

PLOTS = "plots"


def plots_of(record: Record, but: Collection[str] = ()) -> dict[str, bytes]:
    """Every plot that the record has numbers for, by name; those in ``but`` are there already."""
    rounds, delta, indicators = record.rounds, record.privacy.get("delta"), record.indicators
    summary = record.indicators.get("ledger") or {}
    private = bool(record.privacy.get("private"))
    mark = "" if private else NOT_PRIVATE
    plain = (indicators.get("plain_fit") or {}).get("test_acc")
    fpr, tpr = indicators.get("test_fpr") or [], indicators.get("test_tpr") or []
    matrix, classes = (
        indicators.get("test_confusion_matrix") or [],
        indicators.get("test_per_class"),
    )
    names = [str(name) for name in classes or indicators.get("classes") or ()]
    names = names if len(names) == len(matrix) else [str(number) for number in range(len(matrix))]
    plots: dict[str, Callable[[], bytes | None]] = {
        "learning": lambda: learning_curves(rounds, mark),
        "epsilon": lambda: epsilon_per_party(record.ledger, rounds, delta) if private else None,
        "accuracy_epsilon": lambda: accuracy_against_epsilon(
            rounds, delta, indicators.get("test_majority"), plain
        ),
        "gradient_norms": lambda: (
            gradient_norms(record.norms, mark) if record.norms is not None else None
        ),
        "budget": lambda: budget_bars(summary.get("datasets") or (), mark),
        "roc": lambda: roc(fpr, tpr, indicators.get("test_auc"), mark),
        "released_curves": lambda: released_curves(indicators.get("released_curves") or {}, mark),
        "confusion": lambda: confusion(matrix, names, mark),
    }
    drawn = {name: draw() for name, draw in plots.items() if name not in but}
    return {name: data for name, data in drawn.items() if data is not None}


def checked_by_the_run(record: Record) -> tuple[tuple[bool, str], ...]:
    """What the run itself found about its ledger when it ended."""
    summary = record.indicators.get("ledger") or {}
    if not summary.get("checked") or not summary.get("head"):
        return ()
    words = (
        f"the run checked the whole ledger at its end: {summary['releases']} rows, head "
        f"{summary['head'][:16]}"
    )
    return (
        (
            True,
            (
                f"{words}; python -m homo_dp.report checks it again and adds up epsilon from its "
                "events"
            ),
        ),
    )


def begin_pictures(record: Mapping[str, Any], folder: Path) -> None:
    """Draw the plots into a folder of pictures, from the numbers alone, while the run still
    writes its files.
    """
    drawn = plots_of(Record(record["indicators"], tuple(record["ledger"]), norms=record["norms"]))
    (folder / PLOTS).mkdir(exist_ok=True)
    for name, data in drawn.items():
        (folder / PLOTS / f"{name}.png").write_bytes(data)


def draw_pictures(files: Mapping[str, Path], folder: Path) -> list[tuple[Path, str | None]]:
    """Write report, and plots unless they are there; each file with the artifact folder it
    belongs into.
    """
    record = read_record(files)
    (folder / PLOTS).mkdir(exist_ok=True)
    there = [plot.stem for plot in (folder / PLOTS).glob("*.png")]
    # scores come last: their plots were not begun
    for name, data in plots_of(record, there).items():
        (folder / PLOTS / f"{name}.png").write_bytes(data)
    plots = sorted((folder / PLOTS).glob("*.png"))
    path = folder / "report.html"
    checks = Checks(checked_by_the_run(record), {plot.stem: plot.read_bytes() for plot in plots})
    path.write_text(report_page(record, checks), encoding="utf-8")
    return [*((plot, PLOTS) for plot in plots), (path, None)]
