"""Noise for a target epsilon: on the safe side, close to it, for whole compositions."""

import math
from collections.abc import Callable

import pytest
from dp_accounting import dp_event

from homo_dp.privacy.accounting.accountants import calibrate, compose, epsilon
from homo_dp.privacy.accounting.calibration import smallest_noise
from homo_dp.privacy.accounting.events import DpEvent
from homo_dp.privacy.errors import PrivacyError


def steps(noise: float) -> DpEvent:
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(256 / 60_000, dp_event.GaussianDpEvent(noise)), 14_063
    )


def statistic_and_steps(noise: float) -> DpEvent:
    rounds = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(noise)), 1000
    )
    return compose(dp_event.GaussianDpEvent(4 * noise), dp_event.LaplaceDpEvent(50.0), rounds)


def everybody(noise: float) -> DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), 20)


def fixed_size(noise: float) -> DpEvent:
    drawn = dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(noise / 2))
    return dp_event.SelfComposedDpEvent(drawn, 100)


@pytest.mark.parametrize("target", [0.1, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("event_of", [steps, statistic_and_steps, everybody, fixed_size])
def test_within_half_a_percent_below_the_target(
    event_of: Callable[[float], DpEvent], target: float
) -> None:
    noise = calibrate(event_of, target, 1e-5)
    assert 0.995 * target <= epsilon(event_of(noise), 1e-5).quoted <= target
    assert epsilon(event_of(noise * 0.98), 1e-5).quoted > target or target < 0.2


def test_golden_back_and_forth() -> None:
    """2.382 at noise multiplier 1.1 (see test_accounting): the way back gives 1.1 within the
    tolerance.
    """
    assert calibrate(steps, 2.382, 1e-5) == pytest.approx(1.1, rel=2.5e-3)


def test_extreme_targets() -> None:
    assert epsilon(everybody(calibrate(everybody, 1e-6, 1e-5)), 1e-5).quoted <= 1e-6
    assert 0.995e6 <= epsilon(everybody(calibrate(everybody, 1e6, 1e-5)), 1e-5).quoted <= 1e6


def test_a_jump_is_crossed_on_the_safe_side() -> None:
    """RDP of fixed-size samples falls from 0.0105 to 0 at one noise; there is nothing within 0.5
    % of 0.01.
    """
    noise = calibrate(fixed_size, 0.01, 1e-4)
    assert epsilon(fixed_size(noise), 1e-4).quoted <= 0.01
    assert epsilon(fixed_size(noise * 0.999), 1e-4).quoted > 0.01


def test_what_other_releases_cost_is_said() -> None:
    def with_a_costly_statistic(noise: float) -> DpEvent:
        return compose(steps(noise), dp_event.LaplaceDpEvent(0.5))

    with pytest.raises(PrivacyError, match=r"target_epsilon=1 must be > 2\b.*other releases"):
        calibrate(with_a_costly_statistic, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("target", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0)]
)
def test_wrong_targets_are_refused(target: float, delta: float) -> None:
    with pytest.raises(PrivacyError, match=r"target_epsilon=|delta="):
        calibrate(steps, target, delta)


def test_a_bad_stand_in_cannot_make_it_unsafe() -> None:
    def exact(noise: float) -> float:
        return 3 / noise + 1 / noise**2

    for rough in (
        exact,
        lambda noise: 0.2 / noise,
        lambda noise: 5 / noise**3,
        lambda noise: 0.0 if noise > 1 else 9.0,
    ):
        found = smallest_noise(exact, rough, 1.0)
        assert 0.995 <= exact(found) <= 1.0
