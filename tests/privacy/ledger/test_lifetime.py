"""One lifetime budget over all runs, for any record wherever it was."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from homo_dp.privacy.accounting.accountants import renyi
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.ledger.lifetime import Lifetime, number_of
from homo_dp.privacy.ledger.rows import Spend

EVENTS = [to_json(GaussianDpEvent(noise)) for noise in (5.0, 8.0, 20.0)]
RECORD = ("record", "add_or_remove_one")


def test_the_bound_holds_for_every_way_in_which_a_record_moved() -> None:
    """Brute force: a record may be with any party in each run; the sum is at least that of each
    assignment.
    """
    told = {
        "1": {"a": [0, 0], "b": [2]},
        "2": {"x": [1], "y": [1, 1], "z": [2]},
        "3": {"a": [2, 1]},
    }
    lifetime = Lifetime()
    for run, parties in told.items():
        for party, events in parties.items():
            for event in events:
                lifetime.add(run, party, Spend(EVENTS[event], *RECORD))
    worst = np.zeros_like(renyi({}))
    for chosen in itertools.product(*(parties.values() for parties in told.values())):
        worst = np.maximum(
            worst, sum((renyi({EVENTS[e]: 1}) for events in chosen for e in events), renyi({}))
        )
    assert bool(np.all(lifetime.renyi() >= worst - 1e-12))
    assert (lifetime.runs, lifetime.releases) == (3, 9)


def test_planned_releases_count_on_top_without_being_kept() -> None:
    lifetime = Lifetime()
    lifetime.add("1", "a", Spend(EVENTS[0], *RECORD))
    before = lifetime.renyi()
    other = Lifetime()
    other.add("2", "a", Spend(EVENTS[1], *RECORD), times=3)
    planned = other._runs
    assert number_of(planned) == 3
    assert bool(np.allclose(lifetime.renyi(planned), renyi({EVENTS[0]: 1, EVENTS[1]: 3})))
    assert bool(np.array_equal(lifetime.renyi(), before))


def test_another_unit_finds_no_fresh_budget() -> None:
    lifetime = Lifetime()
    lifetime.add("1", "a", Spend(EVENTS[0], *RECORD))
    alone = lifetime.renyi()
    lifetime.add("2", "a", Spend(EVENTS[0], "user", "add_or_remove_one"))
    assert lifetime.mixed
    assert bool(np.all(lifetime.renyi() >= 2 * alone))
    assert lifetime.epsilon(1e-5).pld is None


def test_pld_is_quoted_where_one_bound_holds_for_all_parties() -> None:
    lifetime = Lifetime()
    for party, rate in (("a", 0.1), ("b", 0.2)):
        event = to_json(PoissonSampledDpEvent(rate, GaussianDpEvent(1.5)))
        lifetime.add("1", party, Spend(event, *RECORD), times=50)
    found = lifetime.epsilon(1e-5)
    assert found.pld is not None
    assert found.pld <= found.rdp
    assert found.rdp == pytest.approx(lifetime.epsilon(1e-5).rdp)
