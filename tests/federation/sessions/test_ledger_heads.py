"""Ledger heads at the aggregator: they only grow, over runs and over several aggregators."""

from pathlib import Path

import pytest

from homo_dp.core.errors import InputError, MessageError
from homo_dp.federation.sessions.ledger_heads import LedgerHeads


def head(count: int, letter: str = "a") -> dict[str, object]:
    return {"count": count, "hash": letter * 64}


def test_a_ledger_that_is_behind_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    book = LedgerHeads(tmp_path / "heads.json")
    book.take("b", head(3))
    book.save()
    book = LedgerHeads(tmp_path / "heads.json")
    for shown in (head(2), None):
        with pytest.raises(MessageError, match="ledger of b"):
            book.take("b", shown)
    book.take("b", head(3))
    book.take("b", head(4))
    assert book.newest("b") == head(4)


def test_another_row_at_the_same_place_is_a_swapped_ledger(tmp_path: Path) -> None:
    book = LedgerHeads(tmp_path / "heads.json")
    book.take("b", head(3))
    with pytest.raises(MessageError, match="another row 3"):
        book.take("b", head(3, "b"))


def test_two_aggregators_keep_the_newest_of_both(tmp_path: Path) -> None:
    one, other = LedgerHeads(tmp_path / "heads.json"), LedgerHeads(tmp_path / "heads.json")
    one.take("a", head(5))
    one.save()
    other.take("a", head(2))
    other.take("b", head(1))
    other.save()
    found = LedgerHeads(tmp_path / "heads.json")
    assert (found.newest("a"), found.newest("b")) == (head(5), head(1))


def test_an_empty_ledger_and_a_party_without_one_are_welcome_at_first(tmp_path: Path) -> None:
    book = LedgerHeads(tmp_path / "heads.json")
    book.take("a", None)
    book.take("b", {"count": 0, "hash": "0" * 64})
    book.save()
    assert book.newest("b") is None


def test_a_damaged_book_is_named(tmp_path: Path) -> None:
    (tmp_path / "heads.json").write_text("{")
    with pytest.raises(InputError, match=r"heads\.json"):
        LedgerHeads(tmp_path / "heads.json")


def test_an_update_that_was_underway_is_not_behind_another_run(tmp_path: Path) -> None:
    """A party in two runs with one ledger: what it showed in one may overtake what it sent
    before in the other.
    """
    one, other = LedgerHeads(tmp_path / "heads.json"), LedgerHeads(tmp_path / "heads.json")
    one.take("a", head(1))
    other.take("a", head(3))
    other.save()
    one.save()
    one.take("a", head(2), underway=True)
    assert one.newest("a") == head(3)
    with pytest.raises(MessageError, match="it showed 2 before"):
        one.take("a", head(1), underway=True)
    with pytest.raises(MessageError, match="it showed 3 before"):
        one.take("a", head(2))
    # a run that begins later knows all of them
    with pytest.raises(MessageError, match="it showed 3 before"):
        LedgerHeads(tmp_path / "heads.json").take("a", head(2), underway=True)


def test_what_was_underway_may_not_contradict_another_run_either(tmp_path: Path) -> None:
    """A ledger that was set back and filled up again shows another row at the same place,
    whichever run it is for.
    """
    one, other = LedgerHeads(tmp_path / "heads.json"), LedgerHeads(tmp_path / "heads.json")
    other.take("a", head(3))
    other.save()
    one.save()
    with pytest.raises(MessageError, match="another row 3"):
        one.take("a", head(3, "b"), underway=True)
    one.take("a", head(3), underway=True)
    assert one.newest("a") == head(3)
