"""Plots and report as files: drawn once, from the numbers that are there."""

from pathlib import Path
from typing import Any

import pytest

from homo_dp.tracking.report import report_files
from homo_dp.tracking.report.report_files import PLOTS, begin_pictures, checked_by_the_run, plots_of
from homo_dp.tracking.report.run_files import Record

ROUNDS = [
    {"round": number, "test_acc": 0.5, "test_loss": 1.0, "epsilon": 1.0 * number}
    for number in (1, 2)
]


def record(**indicators: Any) -> Record:
    return Record(
        {"run": "r", "privacy": {"private": True, "delta": 1e-5}, "rounds": ROUNDS, **indicators},
        (),
    )


def test_only_what_has_numbers_is_drawn() -> None:
    assert set(plots_of(record())) == {"learning", "epsilon", "accuracy_epsilon"}
    curves = {
        "test_fpr": [0.0, 1.0],
        "test_tpr": [0.0, 1.0],
        "test_confusion_matrix": [[3, 1], [0, 4]],
    }
    assert {"roc", "confusion"} <= set(plots_of(record(**curves)))
    assert "learning" not in plots_of(record(), but=["learning"])


def test_pictures_that_were_begun_are_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_pictures({"indicators": record().indicators, "ledger": [], "norms": None}, tmp_path)
    begun = {path.stem for path in (tmp_path / PLOTS).iterdir()}
    monkeypatch.setattr(report_files, "read_record", lambda files: record())
    monkeypatch.setattr(
        report_files, "report_page", lambda record, checks: ",".join(sorted(checks.pictures))
    )
    monkeypatch.setattr(report_files, "learning_curves", None)  # to draw it again would fail
    made = report_files.draw_pictures({}, tmp_path)
    assert {path.stem for path, folder in made if folder == PLOTS} == begun
    assert (tmp_path / "report.html").read_text() == ",".join(sorted(begun))


def test_a_run_that_did_not_check_its_ledger_is_not_said_to_have() -> None:
    assert checked_by_the_run(record()) == ()
    assert checked_by_the_run(record(ledger={"checked": True, "head": "ab" * 32, "releases": 7}))[
        0
    ][0]
