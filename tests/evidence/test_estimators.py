"""Estimators against published and closed-form values."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy import stats

from homo_dp.evidence.estimators import Guesses, clopper_pearson, f_dp_one_run, one_run, one_run_p_value
from homo_dp.evidence.tradeoff import claim_of


def test_all_right_guesses_have_a_closed_form() -> None:
    limit = 0.05 ** (1 / 50)
    assert one_run(50, 50, 50, 0.0, 0.95) == pytest.approx(math.log(limit / (1 - limit)), abs=1e-4)


def test_the_p_value_is_that_of_the_authors_loop() -> None:
    for guessed, correct, epsilon, delta in ((100, 90, 1.0, 1e-3), (10, 10, 0.5, 1e-6), (100, 60, 0.0, 0.1)):
        right = 1 / (1 + math.exp(-epsilon))
        alpha = total = 0.0
        for i in range(1, correct + 1):
            total += stats.binom.pmf(correct - i, guessed, right)
            alpha = max(alpha, total / i)
        expected = min(1.0, stats.binom.sf(correct - 1, guessed, right) + 2 * 1000 * delta * alpha)
        assert one_run_p_value(1000, guessed, correct, epsilon, delta) == pytest.approx(expected)


def test_nothing_is_shown_by_guesses_at_random() -> None:
    assert clopper_pearson(Guesses(500, 1000, 500, 1000), 1e-5, 0.95) == 0
    assert one_run(1000, 1000, 500, 1e-5, 0.95) == f_dp_one_run(1000, 1000, 500, 1e-5, 0.95) == 0


@pytest.mark.parametrize(
    "event", [GaussianDpEvent(1.0), SelfComposedDpEvent(PoissonSampledDpEvent(0.3, GaussianDpEvent(2.0)), 20)]
)
def test_a_perfect_attack_stays_below_the_claim_and_half_the_noise_does_not(event: object) -> None:
    claim = claim_of(event, 1e-5)
    profile = claim.profile()
    assert profile is not None
    _, expected = profile.best_threshold(5000, 5000, 0.99)
    assert 0.8 * claim.epsilon < claim.lower_bound(expected, 0.99) < claim.epsilon
    assert claim.point_estimate(profile.separation()) == pytest.approx(claim.epsilon, rel=0.01)
    twice = claim.point_estimate(2 * profile.separation())
    assert twice is not None
    assert twice > 1.5 * claim.epsilon


def test_the_curve_is_the_gaussian_one() -> None:
    profile = claim_of(GaussianDpEvent(2.0), 1e-5).profile()
    assert profile is not None
    for rate in (0.01, 0.3):
        assert profile.allowed(rate) == pytest.approx(float(stats.norm.sf(stats.norm.isf(rate) - 0.5)), abs=1e-4)
    assert np.all(np.diff(profile.in_rate) <= 0)
