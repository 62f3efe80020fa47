"""Running sums of a ledger: by run and observer, and through a checkpoint's text."""

from __future__ import annotations

from pathlib import Path

import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)

from homo_dp.privacy.accounting.accountants import epsilon, epsilon_curve, mechanisms_of
from homo_dp.privacy.accounting.dp_event import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.accounting.pld import RESOLUTION, loss_epsilons
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


@pytest.mark.parametrize("ahead", [1, 64, 400])
@pytest.mark.parametrize(("rate", "noise", "beside"), [(0.05, 1.36, 7.0), (0.1, 1.84, 6.0)])
def test_totals_differ_by_their_grids_and_are_all_upper_bounds(
    rate: float, noise: float, beside: float, ahead: int
) -> None:
    """A total that was found with the rounds to come stands on another grid than one that is
    composed directly, so they differ by up to 1e-4 of themselves. Neither is below the epsilon of
    a grid sixteen times as fine, nor below dp-accounting's optimistic one.
    """
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    curve = epsilon_curve(event, ahead, 1e-5, GaussianDpEvent(beside))
    for rounds in sorted({1, ahead // 2 + 1, ahead}):
        whole = compose(SelfComposedDpEvent(event, rounds), GaussianDpEvent(beside))
        found, direct = curve[rounds - 1].pld, epsilon(whole, 1e-5).pld
        steps = mechanisms_of(whole)
        assert found is not None
        assert direct is not None
        assert steps is not None
        (fine,) = loss_epsilons({}, steps, [1], 1e-5, RESOLUTION * 16)
        assert fine <= found <= fine * (1 + 1e-4)
        assert fine <= direct <= fine * (1 + 1e-4)
    lower = optimistic(noise, rate).self_compose(ahead).compose(optimistic(beside))
    assert lower.get_epsilon_for_delta(1e-5) <= fine


def optimistic(noise: float, rate: float = 1.0) -> PrivacyLossDistribution:
    """A lower bound, by dp-accounting."""
    return from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=False,
        value_discretization_interval=1e-4,
    )
