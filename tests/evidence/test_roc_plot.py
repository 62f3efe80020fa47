"""The picture of an attack: rates of all thresholds, and what the claim allows at them."""

import numpy as np
import pytest
from scipy import stats

from homo_dp.evidence.audit import Scores
from homo_dp.evidence.roc_plot import band, claimed_rates, rates
from homo_dp.evidence.tradeoff import Claim


def test_rates_go_from_nobody_to_everybody() -> None:
    false, true = rates(Scores(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0])))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert all(np.diff(false) >= 0)
    assert true[list(false).index(1 / 3)] == pytest.approx(2 / 3)


def test_a_claim_allows_no_more_than_epsilon_and_delta() -> None:
    false = np.array([0.0, 0.01, 0.5, 1.0])
    # perfect privacy: guessing
    assert claimed_rates(Claim(None, 0.0, 0.0), false) == pytest.approx(false)
    allowed = claimed_rates(Claim(None, 1.0, 1e-5), false)
    assert allowed[0] == pytest.approx(1e-5)
    assert allowed[1] == pytest.approx(0.01 * np.e + 1e-5)
    assert allowed[-1] == 1


def test_the_band_contains_the_attack_and_in_repetitions_the_true_curve() -> None:
    generator = np.random.default_rng(0)
    misses = 0
    for _ in range(100):
        scores = Scores(generator.normal(1.0, size=200), generator.normal(0.0, size=200))
        grid, lower, upper = band(scores, 0.999)
        attack = np.interp(grid, *rates(scores))
        assert np.all(lower <= attack + 1e-9)
        assert np.all(attack <= upper + 1e-9)
        truth = stats.norm.sf(stats.norm.isf(grid) - 1.0)
        at = 120  # one rate, fixed beforehand: a false alarm in 1,000 on either side
        misses += not lower[at] <= truth[at] <= upper[at]
    assert misses <= 2


def test_the_band_of_few_runs_is_wide_and_ends_in_the_corners() -> None:
    def width(runs: int) -> float:
        scores = Scores(np.linspace(0.5, 1.5, runs), np.linspace(0, 1, runs))
        _, lower, upper = band(scores, 0.999)
        assert (lower[0], upper[-1]) == (0.0, 1.0)
        return float(np.mean(upper - lower))

    assert width(20) > 2 * width(400) > 0
