"""The ledger: budgets, duplicates, what a row says, and several users at once."""

import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from homo_dp.privacy.accounting.accountants import epsilon, rdp_epsilon, renyi
from homo_dp.privacy.accounting.events import event_of, to_json
from homo_dp.privacy.accounting.filters import best_order, epsilon_at_order
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.privacy.ledger import Budget, Charge, Head, Ledger, LedgerRow
from homo_dp.privacy.ledger.rows import FREE as FREE_KINDS
from homo_dp.privacy.noise.source import OrdinaryNoise, SeededNoise, secure_noise
from tests.privacy import ledger_parts as parts
from tests.privacy.ledger_parts import DELTA, EVENT, FREE, budget_for, in_process, release


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def composed(rows: list[LedgerRow]) -> bool:
    """Whether each row's epsilon is that of everything up to it."""
    return all(
        row.epsilon == pytest.approx(epsilon(SelfComposedDpEvent(EVENT, row.round), DELTA).quoted)
        for row in rows
    )


def test_epsilon_after_a_row_covers_the_run_so_far(ledger: Ledger) -> None:
    rows = [ledger.charge(release(round), FREE) for round in range(1, 6)]
    assert composed(rows)
    broken = [
        replace(row, epsilon_pld=rows[0].epsilon_pld, epsilon_rdp=rows[0].epsilon_rdp)
        for row in rows
    ]
    assert not composed(broken)  # an accountant that is rebuilt every round


def test_each_party_and_run_starts_from_zero(ledger: Ledger) -> None:
    first = ledger.charge(release(1), FREE)
    ledger.charge(release(2), FREE)
    assert ledger.charge(release(1, party="b"), FREE).epsilon == first.epsilon
    assert ledger.charge(release(1, run="run-2"), FREE).epsilon == first.epsilon


def test_model_reader_sees_what_the_aggregator_sees_and_not_the_other_way(ledger: Ledger) -> None:
    first = ledger.charge(release(1), FREE)
    reader = ledger.charge(release(1, kind="model", observer="model_reader"), FREE)
    assert reader.epsilon > first.epsilon
    assert ledger.charge(release(2), FREE).epsilon == pytest.approx(reader.epsilon)
    with pytest.raises(BudgetExceeded):  # the budget is over everything
        ledger.charge(release(3), budget_for(3))


def test_a_run_calibrated_to_its_budget_passes_and_one_more_round_does_not(ledger: Ledger) -> None:
    for round in range(1, 11):
        ledger.charge(release(round), budget_for(10))
    with pytest.raises(
        BudgetExceeded, match=r"epsilon=.* budget epsilon=.* run=run-1 party=a \(round=11"
    ):
        ledger.charge(release(11), budget_for(10))
    assert ledger.verify().count == 10


def test_sampled_rounds_add_up(ledger: Ledger) -> None:
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.2)), 20)
    limit = Budget(epsilon=epsilon(SelfComposedDpEvent(event, 3), DELTA).quoted)
    charge = release(1, event=event, sigma=1.2)
    assert ledger.would_exceed([(charge, 3)], limit) is None
    ledger.prepare(charge, 3)
    for round in range(1, 4):
        row = ledger.charge(replace(charge, round=round), limit)
        assert row.epsilon_pld is not None
        assert row.epsilon_pld < row.epsilon_rdp
    with pytest.raises(BudgetExceeded):
        ledger.charge(replace(charge, round=4), limit)


def test_would_exceed_counts_planned_rounds_once(ledger: Ledger) -> None:
    limit = budget_for(10)
    assert ledger.would_exceed([(release(1), 10)], limit) is None
    reason = ledger.would_exceed([(release(1), 11)], limit)
    assert reason is not None
    assert "\n" not in reason
    for round in range(1, 5):
        ledger.charge(release(round), limit)
    assert ledger.would_exceed([(release(1), 10)], limit) is None  # four of the ten are charged
    assert ledger.would_exceed([(release(5), 6), release(3)], limit) is None
    assert ledger.would_exceed([(release(5), 7)], limit) is not None
    assert ledger.would_exceed([(release(5), 6), release(1, kind="statistics")], limit) is not None
    assert ledger.would_exceed([], limit) is None
    assert len(ledger.rows()) == 4
    with pytest.raises(PrivacyError, match="rounds=-1"):
        ledger.would_exceed([(release(1), -1)], limit)


def test_the_same_release_is_charged_once(ledger: Ledger) -> None:
    first = ledger.charge(release(1), budget_for(1))
    assert ledger.charge(release(1), budget_for(1)) == first
    assert ledger.charged("run-1", "a", 1, "update") == first
    assert ledger.charged("run-1", "a", 2, "update") is None
    assert ledger.head() == Head(1, first.hash)


@pytest.mark.parametrize(
    "change",
    [
        {"event": GaussianDpEvent(21.0)},
        {"dataset": "other"},
        {"unit": "user"},
        {"delta": 1e-6},
        {"sigma": 1.0},
        {"observer": "model_reader"},
        {"message_sha256": "00"},
        {"noise": "secure noise"},
    ],
)
def test_another_release_under_the_same_round_is_refused(
    ledger: Ledger, change: dict[str, Any]
) -> None:
    ledger.charge(release(1), FREE)
    with pytest.raises(LedgerError, match="row=1"):
        ledger.charge(release(1, **change), FREE)
    assert ledger.head().count == 1


def test_one_relation_a_run(ledger: Ledger) -> None:
    ledger.charge(release(1), FREE)
    with pytest.raises(LedgerError, match="relation=replace_one"):
        ledger.charge(release(2, relation="replace_one"), FREE)


@pytest.mark.parametrize(
    "change",
    [
        {"run": ""},
        {"party": "a\nb"},
        {"kind": "k" * 201},
        {"unit": "row"},
        {"relation": "neighbour"},
        {"observer": "server"},
        {"round": -1},
        {"round": True},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"sigma": 0.0},
        {"sigma": math.inf},
        {"event": NonPrivateDpEvent()},
    ],
)
def test_a_charge_out_of_range_cannot_be_made(change: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError) as error:
        replace(release(1), **change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.0}, {"lifetime_epsilon": 3.0}, {"lifetime_delta": 2.0}]
)
def test_a_budget_out_of_range_cannot_be_made(change: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError):
        Budget(**change)


def test_a_lifetime_budget_holds_over_runs(ledger: Ledger) -> None:
    """Exactly the number of releases that RDP allows, however they are spread over runs and
    parties.
    """
    event = to_json(EVENT)
    lifetime = Budget(lifetime_epsilon=rdp_epsilon({event: 12}, 1e-6), lifetime_delta=1e-6)
    for release_number in range(12):
        ledger.charge(release(release_number, run=f"run-{release_number // 5}"), lifetime)
    with pytest.raises(BudgetExceeded, match=r"lifetime_epsilon=.* dataset=table would be passed"):
        ledger.charge(release(1, run="run-9"), lifetime)
    assert "lifetime_epsilon" in (
        ledger.would_exceed([release(1, run="run-9", party="b")], lifetime) or ""
    )
    assert ledger.would_exceed([release(1, run="run-9", dataset="other")], lifetime) is None
    for other in ({"unit": "user"}, {"relation": "replace_one"}):
        assert "lifetime_epsilon" in (
            ledger.would_exceed([release(1, run="run-9", **other)], lifetime) or ""
        )
    assert ledger.charge(release(1, run="run-9"), FREE).row == 13  # no lifetime asked for
    assert ledger.verify().count == 13


@pytest.mark.parametrize("change", [{"dataset": "renamed"}, {"unit": "user"}])
def test_a_run_keeps_its_data_and_unit(ledger: Ledger, change: dict[str, Any]) -> None:
    """A rename in the middle of a run would let its total start anew."""
    for number in (1, 2):
        ledger.charge(release(number), budget_for(2))
    (name,) = change
    for call in (ledger.charge, lambda charge, budget: ledger.would_exceed([charge], budget)):
        with pytest.raises(
            LedgerError,
            match=rf"{name}={change[name]} but run=run-1 party=a was charged with {name}=",
        ):
            call(release(3, **change), budget_for(2))
    assert ledger.charge(release(1, run="run-2", **change), FREE).row == 3, "another run may"


@pytest.mark.parametrize("other", [{"unit": "user"}, {"relation": "replace_one"}])
def test_one_lifetime_over_units_and_relations(ledger: Ledger, other: dict[str, Any]) -> None:
    """Whoever picks the mechanism does not find a second budget; mixed, add-or-remove counts at
    twice the distance.
    """
    event = to_json(EVENT)
    # a Gaussian at twice the distance has four times the divergence
    replaced = 4 if "unit" in other else 1
    limit = rdp_epsilon({event: 4 * 3 + replaced}, DELTA)
    enough, scarce = (
        Budget(lifetime_epsilon=limit * share, lifetime_delta=DELTA) for share in (1.01, 0.99)
    )
    for number in (1, 2, 3):
        ledger.charge(release(number), enough)
    second = release(1, run="run-2", **other)
    assert "lifetime_epsilon" in (ledger.would_exceed([second], scarce) or "")
    with pytest.raises(BudgetExceeded, match="lifetime_epsilon"):
        ledger.charge(second, scarce)
    ledger.charge(second, Budget(lifetime_epsilon=limit * 1.2, lifetime_delta=DELTA))
    spent = ledger.spent("table", DELTA)
    assert spent.mixed
    assert spent.epsilon.pld is None
    assert spent.epsilon.rdp == pytest.approx(limit)


def test_twice_the_distance_costs_more_for_every_mechanism() -> None:
    """A replaced record is never cheaper than one that is added or removed, and no cheaper than
    known bounds.
    """
    fixed = SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(1.0))
    sampled = PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0))
    for event in (EVENT, sampled, LaplaceDpEvent(5.0), SelfComposedDpEvent(sampled, 7)):
        assert np.all(renyi({to_json(event): 1}, doubled=True) >= renyi({to_json(event): 1}))
    assert np.allclose(renyi({to_json(sampled): 1}, doubled=True), renyi({to_json(fixed): 1}))
    assert np.allclose(
        renyi({to_json(EVENT): 1}, doubled=True), renyi({to_json(EVENT): 4}), rtol=1e-6
    )


NOISES = 20.0, 30.0


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ([("1", "a", 20.0), ("2", "b", 20.0)], (2, 0)),  # renamed, or dealt out anew
        # no record is with two parties of a run
        ([("1", "a", 20.0), ("1", "b", 20.0), ("2", "a", 20.0)], (2, 0)),
        # first with a, then with b
        ([("1", "a", 20.0), ("1", "b", 30.0), ("2", "a", 30.0), ("2", "b", 20.0)], (2, 0)),
        ([("1", "a", 30.0), ("1", "a", 30.0), ("1", "b", 20.0), ("2", "b", 30.0)], (1, 1)),
    ],
)
def test_a_lifetime_budget_is_that_of_a_record_wherever_it_was(
    ledger: Ledger, given: list[tuple[str, str, float]], counted: tuple[int, int]
) -> None:
    together = {
        to_json(GaussianDpEvent(noise)): count for noise, count in zip(NOISES, counted, strict=True)
    }
    limit = rdp_epsilon(together, DELTA)
    enough, scarce = (
        Budget(lifetime_epsilon=limit * share, lifetime_delta=DELTA) for share in (1.0001, 0.999)
    )
    planned = [
        release(number, run=run, party=party, event=GaussianDpEvent(noise))
        for number, (run, party, noise) in enumerate(given)
    ]
    assert ledger.would_exceed(planned, enough) is None
    assert "lifetime_epsilon" in (ledger.would_exceed(planned, scarce) or "")
    for each in planned[:-1]:
        ledger.charge(each, scarce)
    with pytest.raises(BudgetExceeded, match="lifetime_epsilon"):
        ledger.charge(planned[-1], scarce)
    ledger.charge(planned[-1], enough)
    spent = ledger.spent("table", DELTA).epsilon
    assert spent.rdp == pytest.approx(limit)
    assert spent.pld == pytest.approx(epsilon(event_of(together), DELTA).pld)


def test_spent_is_no_less_than_what_any_party_of_a_run_spent(ledger: Ledger) -> None:
    """RDP finds that the sample told more, PLD the contrary, by far: a run's party is not chosen
    by an order.
    """
    events = {"a": GaussianDpEvent(2.7), "b": PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8))}
    rows = [
        ledger.charge(release(1, party=party, event=event), FREE) for party, event in events.items()
    ]
    spent = ledger.spent("table", DELTA).epsilon
    assert spent.quoted >= max(row.epsilon for row in rows)
    assert spent.rdp >= max(row.epsilon_rdp for row in rows)


def test_spent_by_pld_covers_parties_of_different_sizes(ledger: Ledger) -> None:
    """As in a simulation: each party has its own rate, and its own noise for the same target."""
    sizes = {"a": (50 / 151, 1.003), "b": (50 / 152, 1.001), "c": (50 / 153, 1.0)}
    for run in ("run-1", "run-2"):
        for party, (rate, noise) in sizes.items():
            event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), 4)
            ledger.charge(release(1, run=run, party=party, event=event), FREE)
    spent = ledger.spent("table", DELTA).epsilon
    each = [
        epsilon(
            SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), 8), DELTA
        ).pld
        or 0.0
        for rate, noise in sizes.values()
    ]
    assert spent.pld is not None
    assert max(each) <= spent.pld <= spent.rdp


def test_spent_shows_both_accountants(ledger: Ledger) -> None:
    for run in ("run-1", "run-2"):
        ledger.charge(release(1, run=run), FREE)
    spent = ledger.spent("table", DELTA)
    assert spent.releases == 2
    assert spent.epsilon == epsilon(SelfComposedDpEvent(EVENT, 2), DELTA)
    assert spent.epsilon.pld is not None
    assert spent.epsilon.rdp == pytest.approx(rdp_epsilon({to_json(EVENT): 2}, DELTA))
    nothing = ledger.spent("other", DELTA)
    assert (nothing.releases, nothing.epsilon.quoted) == (0, 0.0)


def test_the_order_of_the_filter_is_fixed_by_the_first_release(tmp_path: Path) -> None:
    lifetime = Budget(lifetime_epsilon=2.0, lifetime_delta=DELTA)
    sampled = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)), 50)
    training = release(1, event=sampled, sigma=1.1)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert (
            ledger.would_exceed([release(0, kind="statistics"), (training, 10)], lifetime) is None
        )
        order = ledger.charge(release(0, kind="statistics"), lifetime).lifetime_order
    assert order == best_order(
        renyi({}), renyi({to_json(EVENT): 1, to_json(sampled): 10}), 2.0, DELTA
    )
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        row = ledger.charge(training, lifetime)
        assert row.lifetime_order == order
        assert ledger.spent("table", DELTA).lifetime_order == order


@pytest.mark.parametrize("limit", [0.3, 1.0, 3.0, 10.0])
def test_a_fixed_order_costs_nothing_when_one_mechanism_is_repeated(limit: float) -> None:
    event = to_json(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.5)))
    order = best_order(renyi({}), renyi({event: 1}), limit, DELTA)
    low, high = 0, 2**24
    while high - low > 1:  # the most repetitions that the best of all orders allows
        middle = (low + high) // 2
        low, high = (
            (middle, high) if rdp_epsilon({event: middle}, DELTA) <= limit else (low, middle)
        )
    assert epsilon_at_order(renyi({event: low}), order, DELTA) <= limit * (1 + 1e-9)
    assert epsilon_at_order(renyi({event: low + 1}), order, DELTA) > limit


def test_a_fixed_order_is_never_below_the_best_one() -> None:
    texts = [
        to_json(GaussianDpEvent(5.0)),
        to_json(PoissonSampledDpEvent(0.1, GaussianDpEvent(0.8))),
    ]
    for first, second in ((1, 0), (3, 40), (0, 200)):
        counts = {texts[0]: first, texts[1]: second}
        for order in (1.5, 4.0, 20.0):
            assert (
                epsilon_at_order(renyi(counts), order, DELTA) >= rdp_epsilon(counts, DELTA) - 1e-12
            )


def test_rows_extract_and_json_have_stable_names(ledger: Ledger) -> None:
    ledger.charge(release(1), FREE)
    ledger.charge(release(1, party="b"), FREE)
    ledger.charge(release(1, run="run-2", event=_fixed_size(), relation="replace_one"), FREE)
    assert [row.party for row in ledger.rows(run="run-1")] == ["a", "b"]
    assert [row.row for row in ledger.rows(party="a")] == [1, 3]
    (row,) = ledger.extract("run-2")
    names = (
        "row run dataset unit relation party round kind event delta epsilon_pld epsilon_rdp sigma "
        "observer noise time"
    )
    assert list(row) == [
        *(
            *names.split(),
            "message_sha256",
            "lifetime_order",
            "previous_hash",
            "hash",
            "salt",
            "first_row",
            "epsilon",
        )
    ]
    assert row["event"]["type"] == "SampledWithoutReplacementDpEvent"
    assert row["epsilon_pld"] is None
    assert row["epsilon"] == row["epsilon_rdp"]
    assert (
        json.loads(json.dumps([each.to_dict() for each in ledger.rows()], allow_nan=False))[2]
        == row
    )
    assert ledger.extract("none") == []


def test_a_row_says_where_its_noise_came_from(ledger: Ledger) -> None:
    labels = [source.label for source in (secure_noise(), OrdinaryNoise(), SeededNoise(1))]
    rows = [
        ledger.charge(release(1, party=f"p{i}", noise=label), FREE)
        for i, label in enumerate(labels)
    ]
    assert [row.private for row in rows] == [True, True, False]
    assert [row["noise"] for row in ledger.extract("run-1")] == labels
    assert [row["epsilon"] is None for row in ledger.extract("run-1")] == [False, False, True]
    assert "NOT PRIVATE" in ledger.extract("run-1")[2]["noise"]


def _fixed_size() -> Any:
    return SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(2.0))


def test_two_open_ledgers_see_each_other(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as one, Ledger(tmp_path / "ledger.sqlite") as other:
        for round in range(1, 7):
            (one, other)[round % 2].charge(release(round), budget_for(6))
        for ledger in (one, other):
            with pytest.raises(BudgetExceeded):
                ledger.charge(release(7), budget_for(6))
        assert one.verify() == other.head()
        assert one.extends(Head(3, other.rows()[2].hash))
        assert not one.extends(Head(3, "0" * 64))
        assert not one.extends(Head(9, other.rows()[2].hash))


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    def charge(party: str) -> None:
        for round in range(1, 6):
            ledger.charge(release(round, party=party), budget_for(5))

    threads = [threading.Thread(target=charge, args=(party,)) for party in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.verify().count == 20


def test_two_processes_share_a_ledger(tmp_path: Path) -> None:
    path, go = tmp_path / "ledger.sqlite", tmp_path / "go"
    processes = [
        parts.start(parts.charge_rounds, path, name, 25, budget_for(25), go) for name in "ab"
    ]
    go.touch()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    with Ledger(path) as ledger:
        assert ledger.verify().count == 50
        assert json.loads((tmp_path / "ledger.sqlite.head").read_text())["count"] == 50
        assert len(ledger.rows(party="a")) == 25


def test_two_processes_cannot_spend_one_budget_twice(tmp_path: Path) -> None:
    path, go = tmp_path / "ledger.sqlite", tmp_path / "go"
    processes = [
        parts.start(parts.charge_rounds, path, name, 30, budget_for(20), go)
        for name in ("shared1", "shared2")
    ]
    go.touch()
    for process in processes:
        process.join(120)
    with Ledger(path) as ledger:
        rows = ledger.rows()
    assert len(rows) == 20
    assert rows[-1].epsilon <= (budget_for(20).epsilon or 0.0) * (1 + 1e-9)


def test_a_forked_process_opens_its_own(tmp_path: Path) -> None:
    assert in_process(parts.fork_with_open_ledger, tmp_path / "ledger.sqlite") == 0


def test_read_only_reads_and_does_not_create(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(tmp_path / "none.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []
    path = parts.ledger_of(tmp_path, 2)
    with Ledger(path, read_only=True) as ledger:
        assert ledger.verify().count == 2
        with pytest.raises(LedgerError, match="read only"):
            ledger.charge(release(3), FREE)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = parts.ledger_of(tmp_path / "new" / "folder", 1)
    assert path.stat().st_mode & 0o077 == 0
    assert path.with_name("ledger.sqlite.head").stat().st_mode & 0o077 == 0


def test_charge_is_what_the_contract_names() -> None:
    names = [
        "run",
        "dataset",
        "unit",
        "relation",
        "party",
        "round",
        "kind",
        "event",
        "delta",
        "sigma",
        "observer",
    ]
    assert list(Charge.__dataclass_fields__)[: len(names)] == names


@pytest.mark.parametrize("kind", FREE_KINDS)
def test_a_mark_that_costs_nothing_fits_a_budget_that_was_lowered_below_what_is_spent(
    ledger: Ledger, kind: str
) -> None:
    """A party could not sign for the survivors of a round that it had paid for, and the others'
    round was lost.
    """
    spent = ledger.charge(release(1), FREE)
    low = Budget(
        epsilon=spent.epsilon / 2, lifetime_epsilon=spent.epsilon / 2, lifetime_delta=DELTA
    )
    mark = replace(release(1), kind=kind, event=NoOpDpEvent())
    assert ledger.would_exceed([mark], low) is None
    row = ledger.charge(mark, low)
    assert (row.epsilon, row.lifetime_order) == (spent.epsilon, None)
    for budget in (low, replace(low, epsilon=None)):
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(2), budget)
