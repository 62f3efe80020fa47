"""What a claim allows: a perfect attack stays below it, half the noise does not."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy import stats

from homo_dp.evidence.tradeoff import claim_of


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(1.0),
        SelfComposedDpEvent(PoissonSampledDpEvent(0.3, GaussianDpEvent(2.0)), 20),
    ],
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
        assert profile.allowed(rate) == pytest.approx(
            float(stats.norm.sf(stats.norm.isf(rate) - 0.5)), abs=1e-4
        )
    assert np.all(np.diff(profile.in_rate) <= 0)
