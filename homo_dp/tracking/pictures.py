"""A run's plots and report as files: what MLflow gets at the end of a run, and what the report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from homo_dp.tracking.plots import (
    accuracy_against_epsilon,
    budget_bars,
    epsilon_per_party,
    gradient_norms,
    learning_curves,
)
from homo_dp.tracking.record import Record, read_record
from homo_dp.tracking.report import Checks, report_page


def plots_of(record: Record) -> dict[str, bytes]:
    """Every plot that the record has numbers for, by name."""
    rounds, delta = record.rounds, record.privacy.get("delta")
    summary = record.indicators.get("ledger") or {}
    drawn = {
        "learning": learning_curves(rounds),
        "epsilon": epsilon_per_party(record.ledger, rounds, delta) if record.privacy.get("private") else None,
        "accuracy_epsilon": accuracy_against_epsilon(rounds, delta),
        "gradient_norms": gradient_norms(record.norms) if record.norms is not None else None,
        "budget": budget_bars(summary.get("datasets") or ()),
    }
    return {name: data for name, data in drawn.items() if data is not None}


def extract_checks(record: Record) -> tuple[tuple[bool, str], ...]:
    """Check the ledger extract by itself: hashes, order, head."""
    if not record.ledger:
        return ()
    from homo_dp.tracking.ledger_extract import verify_extract

    summary = record.indicators.get("ledger") or {}
    verdict = verify_extract(record.ledger, summary.get("head"), summary.get("releases"))
    return tuple((verdict.good, text) for text in verdict.findings)


def draw_pictures(files: Mapping[str, Path], folder: Path) -> list[tuple[Path, str | None]]:
    """Write plots and report into a folder; each file with the artifact folder it belongs into."""
    record = read_record(files)
    plots = plots_of(record)
    made: list[tuple[Path, str | None]] = []
    for name, data in plots.items():
        path = folder / f"{name}.png"
        path.write_bytes(data)
        made.append((path, "plots"))
    path = folder / "report.html"
    path.write_text(report_page(record, Checks(extract_checks(record), plots)), encoding="utf-8")
    made.append((path, None))
    return made
