"""The head of a ledger is shown to others: it must not tell a row's numbers to somebody who
tries them all.
"""

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Head, Ledger, LedgerRow
from homo_dp.privacy.ledger.hash_chain import read_head
from homo_dp.privacy.ledger.rows import row_hash
from tests.privacy.ledger_parts import DELTA, FREE, old_ledger, release

BATCH, ROWS = 20, 517


def guessed(row: LedgerRow, shown: str) -> list[int]:
    """Row counts of a party that give the hash it showed; everything but the count is known to
    the guesser.
    """
    found = []
    for rows in range(400, 600):
        event = to_json(PoissonSampledDpEvent(BATCH / rows, GaussianDpEvent(20.0)))
        if row_hash(asdict(row) | {"event": event, "salt": None, "first_row": None}) == shown:
            found.append(rows)
    return found


def test_a_row_count_cannot_be_found_from_the_head(tmp_path: Path) -> None:
    event = PoissonSampledDpEvent(BATCH / ROWS, GaussianDpEvent(20.0))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        row = ledger.charge(release(1, event=event), FREE)
        assert guessed(row, ledger.head().hash) == []
        unsalted = replace(row, salt=None, first_row=None)
        assert guessed(row, row_hash(asdict(unsalted))) == [ROWS], (
            "the attack on a hash without a salt"
        )
        salts = {ledger.charge(release(number), FREE).salt for number in range(2, 6)}
    assert len(salts) == 4
    assert all(salt is not None and len(salt) == 32 for salt in salts)


def test_an_old_ledger_is_brought_up_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = old_ledger(tmp_path)
    known = read_head(path)
    assert known is not None
    with Ledger(path, read_only=True) as reader:
        assert reader.verify() == known, "what only reads changes nothing"
        spent = reader.spent("table", DELTA)
    with caplog.at_level(logging.WARNING), Ledger(path) as ledger:
        assert "version 2" in caplog.text
        assert ledger.head().count == 4, (
            "a row marks the place: the hash of an old row is not shown any more"
        )
        assert ledger.rows()[-1].salt is not None
        assert ledger.extends(known)
        assert ledger.spent("table", DELTA) == spent, "the mark releases nothing"
        assert ledger.charge(release(3), FREE).row == 3, "what was charged is known"
        assert ledger.charge(release(4), FREE).row == 5
    caplog.clear()
    with Ledger(path) as ledger:
        assert ledger.verify().count == 5
        assert read_head(path) == ledger.head()
    assert caplog.text == ""
    book = LedgerHeads(tmp_path / "heads.json")
    book.take("a", asdict(known))
    # an aggregator that saw the old head takes the new one
    book.take("a", asdict(Head(4, "b" * 64)))


def test_a_reader_follows_a_ledger_that_is_brought_up_meanwhile(tmp_path: Path) -> None:
    path = old_ledger(tmp_path)
    with Ledger(path, read_only=True) as reader:
        assert reader.head().count == 3
        with Ledger(path) as ledger:
            ledger.charge(release(4), FREE)
        assert reader.head().count == 5
        assert reader.verify().count == 5


def test_an_empty_old_ledger_needs_no_mark(tmp_path: Path) -> None:
    path = old_ledger(tmp_path, rounds=0)
    with Ledger(path) as ledger:
        assert ledger.head() == Head(0, "0" * 64)
        assert ledger.charge(release(1), FREE).row == 1


def test_a_damaged_old_ledger_is_not_brought_up(tmp_path: Path) -> None:
    path = old_ledger(tmp_path)
    path.with_name("ledger.sqlite.head").write_text(json.dumps({"count": 3, "hash": "0" * 64}))
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="row=3"):
        Ledger(path)
    assert path.read_bytes() == before
