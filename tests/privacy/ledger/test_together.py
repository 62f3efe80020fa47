"""Charges made together: one commit, the same checks, and no spend that a crash could hide."""

import signal
from pathlib import Path

import pytest

from homo_dp.privacy.errors import BudgetExceeded, LedgerError
from homo_dp.privacy.ledger import Ledger, store
from homo_dp.privacy.ledger.hash_chain import read_head
from homo_dp.privacy.ledger.outbox import Outbox
from tests.privacy import ledger_parts as parts
from tests.privacy.ledger_parts import (
    FREE,
    budget_for,
    in_process,
    ledger_of,
    release,
    release_once,
)


def test_rows_are_those_of_single_charges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[str] = []
    begin = store.LedgerFile._transaction

    def counted(self: store.LedgerFile, kind: str) -> object:
        commits.append(kind)
        return begin(self, kind)

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge(release(1), FREE)
        monkeypatch.setattr(store.LedgerFile, "_transaction", counted)
        with ledger.together():
            for name in "abc":
                assert ledger.charged("run-1", name, 2, "update") is None
                assert ledger.would_exceed([release(2, party=name)], budget_for(2)) is None
                row = ledger.charge(release(2, party=name), budget_for(2))
                assert ledger.charge(release(2, party=name), budget_for(2)) == row
                assert ledger.charged("run-1", name, 2, "update") == row
            assert ledger.head().count == 1, "nothing is on disk yet"
        assert commits.count("BEGIN IMMEDIATE") == 2, "the rows, and the head"
        rows = ledger.rows()
        assert [row.first_row for row in rows] == [1, 2, 2, 2]
        assert ledger.verify() == read_head(tmp_path / "ledger.sqlite")
        with Ledger(tmp_path / "ledger.sqlite") as other:
            assert other.verify().count == 4


def test_a_budget_counts_what_waits(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with ledger.together():
            for number in (1, 2):
                assert ledger.would_exceed([release(number)], budget_for(2)) is None
                ledger.charge(release(number), budget_for(2))
            assert ledger.would_exceed([release(3)], budget_for(2)) is not None
        with pytest.raises(BudgetExceeded), ledger.together():
            ledger.charge(release(3), budget_for(2))
        assert ledger.verify().count == 2, "the refused one was not charged"
        with ledger.together():
            assert ledger.would_exceed([(release(1), 2)], budget_for(2)) is None, "both are charged"


def test_others_who_write_meanwhile_are_counted(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, 1)
    with Ledger(path) as one, Ledger(path) as other:
        with one.together():
            one.charge(release(2), budget_for(3))
            other.charge(release(3), budget_for(3))
        assert [row.round for row in one.rows()] == [1, 3, 2]

        def both() -> None:
            with one.together():
                one.charge(release(4), budget_for(4))
                other.charge(release(5), budget_for(4))

        with pytest.raises(BudgetExceeded):
            both()
        assert one.verify().count == other.verify().count == 4
        assert one.charge(release(6), budget_for(5)).row == 5, "the refused one is not counted"


def test_a_commit_that_fails_charges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: store.LedgerFile, rows: object) -> None:
        raise LedgerError("disk full")

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(store.LedgerFile, "insert", full)
            with pytest.raises(LedgerError, match="disk full"), ledger.together():
                ledger.charge(release(1), budget_for(1))
        assert ledger.head().count == 0
        assert ledger.charge(release(2), budget_for(1)).row == 1


def test_no_message_leaves_from_inside(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger, ledger.together():
        with pytest.raises(LedgerError, match="once it is on disk"):
            release_once(Outbox(tmp_path / "outbox"), ledger, release(1), FREE, "1", lambda: b"x")
        with pytest.raises(LedgerError, match="inside"), ledger.together():
            pass


POINTS = [
    "ledger.before_commit",
    "ledger.after_commit",
    "ledger.charged",
    *(f"ledger.head.{step}:2" for step in ("before_write", "before_rename", "after_rename")),
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_all_or_none_are_charged(tmp_path: Path, point: str) -> None:
    assert in_process(parts.charge_together, tmp_path, point) == -signal.SIGKILL
    assert parts.published(tmp_path) == [], "used only after the commit"
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().count == (0 if point == "ledger.before_commit" else 3)
        assert read_head(tmp_path / "ledger.sqlite") == ledger.head()
    assert in_process(parts.charge_together, tmp_path) == 0
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().count == 3


def test_a_head_put_back_into_a_commit_is_found(tmp_path: Path) -> None:
    assert in_process(parts.charge_together, tmp_path) == 0
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        first = ledger.rows()[0]
    path.with_name("ledger.sqlite.head").write_text(f'{{"count": 1, "hash": "{first.hash}"}}')
    with pytest.raises(LedgerError, match="row=1 was not written"):
        Ledger(path)
