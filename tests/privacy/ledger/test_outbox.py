"""The outbox: messages on disk by key, and the one order of making, keeping, charging and
publishing.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.privacy.errors import BudgetExceeded, LedgerError
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.privacy.ledger.outbox import Outbox
from tests.privacy.ledger_parts import FREE, budget_for, release, release_once


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def fresh() -> bytes:
    """Work on data: never the same twice."""
    return os.urandom(32)


def never() -> bytes:
    raise AssertionError("the data was touched")


def test_messages_outlive_the_object(outbox: Outbox) -> None:
    outbox.put("b", b"second")
    outbox.put("a", b"first")
    outbox.put("a", b"newer")
    again = Outbox(outbox.directory)
    assert again.pending() == ["a", "b"]
    assert again.get("a") == b"newer"
    assert again.get("c") is None
    assert again.remove("a")
    assert not again.remove("a")
    assert again.pending() == ["b"]


@settings(deadline=None, max_examples=40)
@given(key=st.text(min_size=1, max_size=20).filter(lambda key: key.isprintable()))
def test_a_key_is_never_a_path(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    outbox = Outbox(tmp_path_factory.mktemp("outbox"))
    outbox.put(key, b"message")
    assert outbox.pending() == [key]
    assert [path.parent for path in outbox.directory.rglob("*")] == [outbox.directory]
    assert outbox.get(key) == b"message"


@pytest.mark.parametrize("key", ["", "k" * 201])
def test_a_key_out_of_range_is_refused(outbox: Outbox, key: str) -> None:
    with pytest.raises(LedgerError, match="key="):
        outbox.put(key, b"")


def test_only_the_owner_can_look(tmp_path: Path) -> None:
    (tmp_path / "outbox").mkdir(mode=0o755)
    outbox = Outbox(tmp_path / "outbox")
    outbox.put("a", b"message")
    for path in (outbox.directory, *outbox.directory.iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_half_written_messages_are_swept(outbox: Outbox) -> None:
    (outbox.directory / "a.message.tmp").write_bytes(b"hal")
    assert outbox.pending() == []
    assert list(Outbox(outbox.directory).directory.iterdir()) == []


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outbox").touch()
    with pytest.raises(LedgerError, match="outbox="):
        Outbox(tmp_path / "outbox")


def test_a_symbolic_link_is_not_followed(outbox: Outbox, tmp_path: Path) -> None:
    (outbox.directory / "a.message").symlink_to(tmp_path / "elsewhere")
    outbox.put("a", b"secret")
    assert not (tmp_path / "elsewhere").exists()
    assert outbox.get("a") == b"secret"


def test_a_release_is_made_and_charged_once(outbox: Outbox, ledger: Ledger) -> None:
    first = release_once(outbox, ledger, release(1), budget_for(1), "1", fresh)
    for _ in range(3):
        assert release_once(outbox, ledger, release(1), budget_for(1), "1", never) == first
    assert ledger.verify().count == 1


def test_a_release_over_budget_touches_no_data(outbox: Outbox, ledger: Ledger) -> None:
    release_once(outbox, ledger, release(1), budget_for(1), "1", fresh)
    with pytest.raises(BudgetExceeded, match="no data was touched"):
        release_once(outbox, ledger, release(2), budget_for(1), "2", never)
    assert outbox.pending() == ["1"]


def test_what_was_never_charged_is_made_anew(outbox: Outbox, ledger: Ledger) -> None:
    outbox.put("1", b"left by a crash")
    message = release_once(outbox, ledger, release(1), FREE, "1", fresh)
    assert message != b"left by a crash"
    assert outbox.get("1") == message


def test_a_charge_without_its_message_is_lost_and_not_made_anew(
    outbox: Outbox, ledger: Ledger
) -> None:
    release_once(outbox, ledger, release(1), FREE, "1", fresh)
    outbox.put("1", b"another")
    with pytest.raises(LedgerError, match=r"row=1 .* is not the one in the outbox"):
        release_once(outbox, ledger, release(1), FREE, "1", never)
    outbox.remove("1")
    with pytest.raises(LedgerError, match=r"row=1 .* is not in the outbox"):
        release_once(outbox, ledger, release(1), FREE, "1", never)


def test_the_sigma_that_came_out_is_charged(outbox: Outbox, ledger: Ledger) -> None:
    planned = release(1)
    message = release_once(
        outbox, ledger, planned, FREE, "1", fresh, applied=lambda: replace(planned, sigma=19.5)
    )
    assert ledger.rows()[0].sigma == 19.5
    assert release_once(outbox, ledger, planned, FREE, "1", never) == message
    with pytest.raises(LedgerError, match="is not the planned release"):
        release_once(outbox, ledger, release(2), FREE, "2", fresh, applied=lambda: release(3))
    assert ledger.head().count == 1


def test_a_charge_refused_after_the_work_leaves_nothing_to_send(
    outbox: Outbox, ledger: Ledger
) -> None:
    def spend_meanwhile() -> bytes:
        ledger.charge(release(9, kind="statistics"), FREE)
        return fresh()

    with pytest.raises(BudgetExceeded):
        release_once(outbox, ledger, release(1), budget_for(1), "1", spend_meanwhile)
    assert outbox.pending() == []


def test_a_lifetime_refusal_touches_no_data(outbox: Outbox, ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded, match="lifetime_epsilon"):
        release_once(
            outbox,
            ledger,
            release(1),
            Budget(lifetime_epsilon=1e-3, lifetime_delta=1e-5),
            "1",
            never,
        )
