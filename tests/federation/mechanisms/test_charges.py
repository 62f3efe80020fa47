"""Charges follow from the plan: one kind a sum, as often as it comes, and none above it."""

from dataclasses import replace

import pytest
from dp_accounting.dp_event import GaussianDpEvent

from homo_dp.federation.mechanisms.charges import Account, check_within_plan
from homo_dp.privacy.errors import PrivacyError
from tests.federation.small import small_config, small_mechanism

ACCOUNT = Account("run-1", "table", "a")
MECHANISM = small_mechanism(small_config(train__rounds=3), {"a": 20})
PLAN = MECHANISM.run.planned(MECHANISM.facts.parties["a"])


def test_a_charge_names_run_data_party_round_and_what_was_done() -> None:
    charge = ACCOUNT.planned(MECHANISM, PLAN, "aggregator", 2)
    assert (charge.run, charge.dataset, charge.party, charge.round) == ("run-1", "table", "a", 2)
    assert (charge.kind, charge.unit, charge.relation) == ("update", "record", "add_or_remove_one")
    assert (charge.event, charge.sigma, charge.delta) == (
        PLAN.events["aggregator"],
        PLAN.sigma,
        PLAN.delta,
    )
    assert charge.noise == MECHANISM.noise.label


def test_a_reader_of_the_model_is_charged_for_the_model() -> None:
    charge = ACCOUNT.planned(MECHANISM, PLAN, "model_reader", 2)
    assert (charge.kind, charge.observer) == ("model", "model_reader")


def test_all_rounds_are_planned_once_each() -> None:
    ((charge, times),) = ACCOUNT.all_planned(MECHANISM, PLAN, "aggregator")
    assert (charge.round, times) == (1, 3)
    late = replace(PLAN, schedule=(2, 3))
    ((charge, times),) = ACCOUNT.all_planned(MECHANISM, late, "aggregator")
    assert times == 2


def test_metrics_are_charged_beside_training() -> None:
    config = small_config(
        train__rounds=3,
        privacy__noise_multiplier=None,
        privacy__target_epsilon=4,
        metrics__release="noised",
        metrics__every=3,
    )
    mechanism = small_mechanism(config, {"a": 2000})
    plan = mechanism.run.planned(mechanism.facts.parties["a"])
    found = {
        charge.kind: times for charge, times in ACCOUNT.all_planned(mechanism, plan, "aggregator")
    }
    assert found == {"update": 3, "metrics": 1}
    assert sum(found.values()) == plan.all_rounds


def test_a_release_may_cost_less_than_its_plan_and_never_more() -> None:
    check_within_plan(MECHANISM, GaussianDpEvent(2.0), GaussianDpEvent(2.0), 1e-5)
    check_within_plan(MECHANISM, GaussianDpEvent(2.1), GaussianDpEvent(2.0), 1e-5)
    with pytest.raises(PrivacyError, match="the plan of dp_sgd says"):
        check_within_plan(MECHANISM, GaussianDpEvent(1.99), GaussianDpEvent(2.0), 1e-5)
