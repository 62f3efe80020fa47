"""Running sums of a ledger: by run and observer, and through a checkpoint's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.totals import (
    Totals,
    epsilon_after,
    epsilon_of,
    known_epsilon,
    look_ahead,
)
from tests.privacy.ledger_parts import DELTA, EVENT, FREE, ledger_of, release


def _totals(path: Path) -> Totals:
    totals = Totals()
    with Ledger(path, read_only=True) as ledger:
        for row in ledger.rows():
            totals.add(row)
    return totals


def test_a_run_is_the_sum_of_its_rows(tmp_path: Path) -> None:
    totals = _totals(ledger_of(tmp_path, 3))
    assert sum(totals.run(release()).values()) == 3
    assert totals.run(release(run="another")) == {}
    spent = epsilon_of(totals.run(release()), DELTA)
    assert spent == epsilon_of({release().event_text: 3}, DELTA)
    assert totals.epsilon_after(release(4)).quoted == pytest.approx(
        epsilon_of({release().event_text: 4}, DELTA).quoted, rel=2e-3
    )


def test_what_the_reader_of_the_model_sees_is_not_charged_to_the_aggregator(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge(release(1), FREE)
        ledger.charge(release(2, observer="model_reader", kind="model"), FREE)
    totals = _totals(tmp_path / "ledger.sqlite")
    assert sum(totals.run(release(), "aggregator").values()) == 1
    assert sum(totals.run(release(), "model_reader").values()) == 2


def test_a_run_keeps_its_dataset_unit_and_relation(tmp_path: Path) -> None:
    totals = _totals(ledger_of(tmp_path, 1))
    for change in ({"dataset": "other"}, {"unit": "user"}, {"relation": "replace_one"}):
        with pytest.raises(LedgerError, match="its total would start anew"):
            totals.run(release(2, **change))


def test_a_checkpoint_s_text_gives_the_same_sums(tmp_path: Path) -> None:
    totals = _totals(ledger_of(tmp_path, 4))
    again = Totals.from_text(totals.to_text())
    assert again.to_text() == totals.to_text()
    assert again.run(release()) == totals.run(release())
    assert again.lifetime("table").releases == 4
    for damaged in ("{}", "[]", '{"words":[],"entries":[[9,1]],"orders":{}}', "x"):
        with pytest.raises(ValueError, match=r".+"):
            Totals.from_text(damaged)


def test_what_was_looked_ahead_is_known() -> None:
    text = release(event=compose(EVENT, EVENT, EVENT)).event_text
    look_ahead({}, text, 1e-6, 5)
    assert known_epsilon({text: 5}, 1e-6) == epsilon_after({text: 4}, text, 1e-6)
    assert known_epsilon({text: 6}, 1e-6) is None
