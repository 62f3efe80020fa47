"""The hash chain: what a row must follow, and what a head may be behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.hash_chain import GENESIS, Head, check_head, follow, read_head
from tests.privacy.ledger_parts import ledger_of


def test_every_row_follows_the_one_before(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 4)
    with Ledger(path, read_only=True) as ledger:
        rows = ledger.rows()
    reached = GENESIS
    for row in rows:
        reached = follow(reached, row, path)
    assert reached == read_head(path)
    with pytest.raises(LedgerError, match="is missing"):
        follow(GENESIS, rows[1], path)
    with pytest.raises(LedgerError, match="does not match its own hash"):
        follow(GENESIS, replace(rows[0], sigma=1.0), path)
    with pytest.raises(LedgerError, match="does not follow"):
        follow(Head(1, "f" * 64), rows[1], path)


@pytest.mark.parametrize(
    ("reached", "head", "hash_at_head", "words"),
    [
        (Head(3, "c"), None, None, "but no"),
        (Head(2, "b"), Head(3, "c"), None, "the tail was cut"),
        (Head(3, "c"), Head(2, "b"), "x", "is not the row that its head recorded"),
        (Head(9, "i"), Head(2, "b"), "b", "was not written by homo_dp, or the head is old"),
    ],
)
def test_a_head_that_disagrees(
    reached: Head, head: Head | None, hash_at_head: str | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match=words):
        check_head(reached, 9, head, hash_at_head, tmp_path / "ledger.sqlite")


def test_a_crash_leaves_at_most_one_commit_between(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert check_head(GENESIS, 1, None, None, path)
    assert check_head(Head(5, "e"), 3, Head(2, "b"), "b", path)
    assert not check_head(Head(5, "e"), 5, Head(5, "e"), "e", path)
