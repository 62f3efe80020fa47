"""The file under a ledger: one writer, whole transactions, and errors of one line."""

import sqlite3
from pathlib import Path

import pytest

from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.hash_chain import GENESIS
from homo_dp.privacy.ledger.store import LedgerFile
from tests.privacy.ledger_parts import FREE, ledger_of, release


def test_rows_are_found_by_what_they_are(tmp_path: Path) -> None:
    store = LedgerFile(ledger_of(tmp_path, 4), read_only=True)
    rows = list(store.rows_after(0))
    assert (
        store.count(),
        [row.round for row in rows],
        [row.row for row in store.rows_after(2)],
    ) == (
        4,
        [1, 2, 3, 4],
        [3, 4],
    )
    assert store.last() == (4, rows[-1].hash)
    assert store.find("run-1", "a", 3, "update") == rows[2]
    assert store.find("run-1", "b", 3, "update") is None
    assert store.count_rounds("run-1", "a", "update", 2, 10) == 3
    store.close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 2)
    store = LedgerFile(path, read_only=False)
    row = store.row_at(2)
    assert row is not None
    with pytest.raises(LedgerError), store.writing():
        store.insert([row])  # the same run, party, round and kind again
    assert store.count() == 2
    store.close()


def test_nobody_writes_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homo_dp.privacy.ledger.store._WAIT_SECONDS", 0.05)
    path = ledger_of(tmp_path, 1)
    first, second = LedgerFile(path, read_only=False), LedgerFile(path, read_only=False)
    with first.writing(), pytest.raises(LedgerError), second.writing():
        pass
    for store in (first, second):
        store.close()


def test_what_is_opened_to_read_is_not_written(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 1)
    store = LedgerFile(path, read_only=True)
    with pytest.raises(LedgerError, match="opened to read only"), store.writing():
        pass
    with pytest.raises(sqlite3.OperationalError, match="readonly"):  # nor past the transactions
        store._database.execute("DELETE FROM releases")
    assert store.count() == 1
    store.close()
    with pytest.raises(LedgerError, match="is a directory"):
        LedgerFile(tmp_path, read_only=True)


def test_a_ledger_that_is_being_made_is_read_as_one_without_rows(tmp_path: Path) -> None:
    """`homo-dp status` failed when it looked between the making of the file and that of its
    tables.
    """
    path = tmp_path / "ledger.sqlite"
    path.touch(0o600)
    with Ledger(path, read_only=True) as reader:
        assert (reader.rows(), reader.verify(), path.stat().st_size) == ([], GENESIS, 0)
        with Ledger(path) as ledger:
            assert reader.rows() == []
            row = ledger.charge(release(1), FREE)
            assert reader.rows() == [row]
    path.write_bytes(b"")  # cut off: its head tells
    with pytest.raises(LedgerError, match="row"), Ledger(path, read_only=True) as reader:
        reader.rows()
