"""An extract that was edited, cut or swapped is found by its epsilon and its hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homo_dp import report
from homo_dp.tracking.report.run_files import find_record
from tests.tracking.report.parts import change


def failed(folder: Path) -> str:
    """What is found to be wrong, a line each; without the plots, which take a second."""
    return "\n".join(text for good, text in report.findings(find_record(folder), None) if not good)


def test_an_edited_epsilon_so_far_is_found(folder: Path) -> None:
    assert failed(folder) == ""
    change(folder / "numbers_ledger.json", lambda rows: rows[4].update(epsilon=0.01))
    assert "row 5 shows another epsilon" in failed(folder)


def test_many_edited_rows_are_counted(folder: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        rows[:] = [{**row, "sigma": 9.0} for row in 4 * rows]

    change(folder / "numbers_ledger.json", edit)
    assert "more rows are not as they were written" in failed(folder)


@pytest.mark.parametrize(
    "edit", [{"epsilon": 0.5}, {"statement": "Nothing can be seen: epsilon 0.5 at delta 1e-05."}]
)
def test_an_edited_headline_is_found(folder: Path, edit: dict[str, Any]) -> None:
    change(folder / "numbers.dat", lambda value: value["privacy"].update(edit))
    assert "epsilon" in failed(folder)


def test_a_missing_row_is_found_by_its_epsilon(folder: Path) -> None:
    change(folder / "numbers_ledger.json", lambda rows: rows.pop(4))
    assert "was stated" in failed(folder)


def test_a_party_without_any_row_is_found(folder: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["party"] != "party_3"]

    change(folder / "numbers_ledger.json", edit)
    assert "party_3: has no row" in failed(folder)


def test_a_round_that_was_interrupted_counts_for_all_parties(folder: Path) -> None:
    change(folder / "numbers_ledger.json", lambda rows: rows.pop())
    change(folder / "numbers.dat", lambda value: value.update(interrupted=True))
    assert failed(folder) == ""
    found = [text for _, text in report.findings(find_record(folder), None)]
    assert any("party_3: had not answered the round that was interrupted" in text for text in found)
    change(folder / "numbers_ledger.json", lambda rows: rows.pop(2))
    assert "party_3" in failed(folder)  # two of its rows are missing


def test_swapped_and_replaced_rows_are_found(folder: Path) -> None:
    change(folder / "numbers_ledger.json", lambda rows: rows.insert(0, rows.pop(1)))
    assert "reordered" in failed(folder)
    change(folder / "numbers_ledger.json", lambda rows: rows.reverse())
    assert "reordered" in failed(folder)
