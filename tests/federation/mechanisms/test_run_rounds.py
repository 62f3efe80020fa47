"""The rounds of a run: metrics between those of training, by numbers that all sides share."""

from dataclasses import replace

import pytest

from homo_dp.privacy.errors import PrivacyError
from tests.federation.small import small_config, small_mechanism

NOISED = {
    "privacy__noise_multiplier": None,
    "privacy__target_epsilon": 4,
    "metrics__release": "noised",
}


def test_metrics_take_rounds_of_their_own() -> None:
    mechanism = small_mechanism(
        small_config(train__rounds=4, metrics__every=2, **NOISED), {"a": 2000}
    )
    assert list(mechanism.run.sums) == [3, 6]
    assert (mechanism.run.count, mechanism.facts.rounds) == (6, 4)
    assert [mechanism.run.training_round(number) for number in range(1, 7)] == [1, 2, 2, 3, 4, 4]
    plan = mechanism.run.planned(mechanism.facts.parties["a"])
    assert plan.all_rounds == 6
    assert len(plan.releases) == 2  # updates, and counts of test rows


def test_metrics_need_a_mechanism_that_has_a_share_for_them() -> None:
    mechanism = small_mechanism(small_config(train__rounds=2, **NOISED), {"a": 2000})
    type(mechanism).capabilities, before = (
        replace(mechanism.capabilities, metrics=False),
        mechanism.capabilities,
    )
    try:
        with pytest.raises(PrivacyError, match=r"metrics\.release=noised: needs .* not dp_sgd"):
            _ = mechanism.run.sums
    finally:
        type(mechanism).capabilities = before


def test_only_rounds_of_metrics_go_on_from_the_mean_of_models() -> None:
    run = small_mechanism(
        small_config(train__rounds=2, metrics__every=1, **NOISED), {"a": 2000}
    ).run
    assert list(run.sums) == [2, 4]
    assert [run.trains(number) for number in range(1, 5)] == [1, None, 2, None]
    assert [run.starts_from_mean(number) for number in range(1, 5)] == [False, True, False, True]
