"""Charges, budgets and rows: what cannot be written down is refused before it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.dp_event import NoOpDpEvent

from homo_dp.privacy.errors import LedgerError, PrivacyError
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.privacy.ledger.rows import LedgerRow, row_hash, row_of
from tests.privacy.ledger_parts import ledger_of, release


@pytest.mark.parametrize(
    "change",
    [
        {"run": ""},
        {"party": "a\n"},
        {"dataset": "x" * 300},
        {"unit": "household"},
        {"relation": "swap"},
        {"observer": "everybody"},
        {"delta": 0.0},
        {"delta": 1.0},
        {"sigma": 0.0},
        {"sigma": math.nan},
        {"event": NoOpDpEvent()},
    ],
)
def test_a_charge_that_says_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError):
        release(1, **change)


@pytest.mark.parametrize("round_number", [-1, 1.5, True, 2**63])
def test_rounds_are_whole_numbers_that_sqlite_holds(round_number: Any) -> None:
    with pytest.raises(PrivacyError, match="round="):
        release(round_number)


def test_a_lifetime_needs_its_delta() -> None:
    with pytest.raises(PrivacyError, match="lifetime_delta"):
        Budget(lifetime_epsilon=3.0)
    assert Budget(lifetime_epsilon=3.0, lifetime_delta=1e-6).epsilon is None


def _rows(folder: Path) -> list[LedgerRow]:
    with Ledger(ledger_of(folder, 2), read_only=True) as ledger:
        return ledger.rows()


def test_every_column_is_in_the_hash(tmp_path: Path) -> None:
    row = _rows(tmp_path)[1]
    for name, value in vars(row).items():
        if name != "hash":
            changed = {
                **vars(row),
                name: f"{value}x" if value is None or isinstance(value, str) else value + 1,
            }
            assert row_hash(changed) != row.hash, name


def test_a_row_of_wrong_types_or_of_no_event_names_its_column(tmp_path: Path) -> None:
    row = vars(_rows(tmp_path)[0])
    names, values = list(row), list(row.values())
    for name, wrong, words in (
        ("sigma", "20", "sigma='20' must be float"),
        ("event", b"{}", r"event=b'\{\}' must be str"),
        ("event", '{"type":"Unknown"}', "is not an event that homo_dp releases"),
    ):
        edited = [
            wrong if each == name else value for each, value in zip(names, values, strict=True)
        ]
        with pytest.raises(LedgerError, match=words):
            row_of(edited, "ledger.sqlite")
