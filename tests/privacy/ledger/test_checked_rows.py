"""Rows are read once and checked; opening starts from the sums of a checkpoint, and finds what
it found before.
"""

import sqlite3
from pathlib import Path

import pytest

from homo_dp.privacy.errors import BudgetExceeded, LedgerError
from homo_dp.privacy.ledger import Budget, Ledger, checked_rows, hash_chain
from homo_dp.privacy.ledger import ledger as ledger_module
from homo_dp.privacy.ledger.rows import LedgerRow
from homo_dp.privacy.ledger.store import LedgerFile
from tests.privacy.ledger_parts import DELTA, FREE, budget_for, ledger_of, release

LIFETIME = Budget(lifetime_epsilon=1.0, lifetime_delta=DELTA)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "ROWS_PER_CHECKPOINT", 5)


def execute(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_opening_reads_only_the_rows_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ledger_of(tmp_path, 23)
    read: list[int] = []
    follow = hash_chain.follow

    def noting(head: hash_chain.Head, row: LedgerRow, ledger: Path) -> hash_chain.Head:
        read.append(row.row)
        return follow(head, row, ledger)

    monkeypatch.setattr(checked_rows, "follow", noting)
    with Ledger(path) as ledger:
        assert read == [21, 22, 23]
        assert ledger.rows()[20].checkpoint is not None
        assert ledger.verify().count == 23


def test_sums_are_those_of_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        for number in range(1, 13):
            ledger.charge(release(number), LIFETIME)
            ledger.charge(release(number, party="b", observer="model_reader", noise="x"), LIFETIME)
        spent = ledger.spent("table", DELTA)
    with Ledger(path) as ledger:
        assert ledger.spent("table", DELTA) == spent
        assert spent.lifetime_order is not None
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(13), budget_for(12))
        assert ledger.charge(release(13), budget_for(13)).row == 25


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET content = replace(content, '\"t', '\"u')",
        "UPDATE checkpoints SET content = replace(content, ',20]', ',2]')",
        "UPDATE checkpoints SET content = ''",
        "UPDATE checkpoints SET content = x'ff00'",
        "UPDATE checkpoints SET row = 16",
        "UPDATE checkpoints SET row = 99",
        "UPDATE releases SET checkpoint = hash WHERE row = 21",
        "UPDATE releases SET hash = previous_hash WHERE row = 20",
        "DELETE FROM releases WHERE row = 3",
        "DELETE FROM releases WHERE row = 21",
    ],
)
def test_a_changed_checkpoint_is_found(tmp_path: Path, damage: str) -> None:
    path = ledger_of(tmp_path, 23)
    before = path.read_bytes()
    execute(path, damage)
    assert path.read_bytes() != before
    with pytest.raises(LedgerError, match="row="):
        Ledger(path)
    with Ledger(path, read_only=True) as reader, pytest.raises(LedgerError, match="row="):
        reader.verify()


def test_an_edit_before_the_checkpoint_hides_no_spend_and_verify_names_it(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 23)
    execute(path, "UPDATE releases SET event = replace(event, '20.0', '90.0') WHERE row = 3")
    with Ledger(path) as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(24), budget_for(23))
        with pytest.raises(LedgerError, match="row=3 "):
            ledger.verify()
        with pytest.raises(LedgerError, match="row=3 "):
            ledger.charged("run-1", "a", 3, "update")


def test_what_was_read_is_not_read_again_and_must_stay(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 3)
    store = LedgerFile(path, read_only=False)
    seen = checked_rows.CheckedRows(store)
    with store.reading():
        seen.catch_up(repair=False)
    assert (seen.reached.count, seen.anchored) == (3, True)
    with Ledger(path) as other:
        other.charge(release(4), FREE)
    with store.reading():
        seen.catch_up(repair=False)
    assert seen.reached.count == 4
    execute(path, "UPDATE releases SET hash = 'x' WHERE row = 4")
    with (
        store.reading(),
        pytest.raises(LedgerError, match="row=4 was changed or deleted while it was in use"),
    ):
        seen.catch_up(repair=False)
    store.close()


def test_only_a_writer_mends_the_head(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 2)
    first = hash_chain.read_head(path)
    with Ledger(path) as ledger:
        ledger.charge(release(3), FREE)
        newest = ledger.head()
    assert first is not None
    hash_chain.write_head(path, first)  # as a crash between commit and head leaves it
    store = LedgerFile(path, read_only=False)
    seen = checked_rows.CheckedRows(store)
    with store.reading():
        seen.catch_up(repair=False)
    assert (seen.anchored, hash_chain.read_head(path)) == (False, first)
    seen.anchor_newest()
    assert (seen.anchored, hash_chain.read_head(path)) == (True, newest)
    store.close()
