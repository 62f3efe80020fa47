"""Levels above a noisy threshold: a value of one row alone stays away, and a broken threshold is noticed."""

import math
from statistics import NormalDist

import pytest

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.statistics.private_levels import MOST_BYTES, TAIL, LevelsRelease, passing, threshold_of

TRIALS = 40_000


def _share_of_unique_values(threshold: float, sigma: float) -> float:
    """How often a value that one row alone has is let through: one count of 1 a trial."""
    counts = {f"v{number}": 1 for number in range(TRIALS)}
    return len(passing(counts, sigma, threshold, SeededNoise(7))) / TRIALS


def _most(delta: float) -> float:
    """What a binomial share with this chance passes with probability below 1e-6: the test's false-alarm rate."""
    return delta + 4.9 * math.sqrt(delta / TRIALS)


@pytest.mark.parametrize("delta", [0.01, 0.1])
@pytest.mark.parametrize("sigma", [0.5, 4.0])
def test_a_value_of_one_row_passes_no_more_often_than_delta(delta: float, sigma: float) -> None:
    share = _share_of_unique_values(threshold_of(sigma, delta), sigma)
    assert delta / 2 < share <= _most(delta)


@pytest.mark.parametrize("broken", [lambda t: 0.0, lambda t: t - 1.0], ids=["zero", "without the 1"])
def test_the_check_notices_a_broken_threshold(broken) -> None:  # type: ignore[no-untyped-def]
    assert _share_of_unique_values(broken(threshold_of(2.0, 0.01)), 2.0) > _most(0.01)


def test_several_columns_share_noise_and_delta() -> None:
    one, four = LevelsRelease(1, 3.0, 1e-9), LevelsRelease(4, 3.0, 1e-9)
    assert four.sigma == 2 * one.sigma
    assert four.threshold == pytest.approx(1 + 6.0 * -NormalDist().inv_cdf(1e-9 / 4))


def test_the_tail_is_below_the_last_digit_of_delta() -> None:
    for delta in (1e-3, 1e-5, 1e-12):
        assert delta + TAIL * delta == delta


def test_names_are_sorted_short_and_printable() -> None:
    counts = {"z": 900, "a": 900, "x" * (MOST_BYTES + 1): 900, "bad\nline": 900, "": 900, "rare": 1, "gone": 0}
    release = LevelsRelease(1, 2.0, 1e-20)
    for seed in range(5):
        assert release.names(counts, SeededNoise(seed)) == ["a", "z"]
    assert release.names({}, SeededNoise(1)) == []


@pytest.mark.parametrize(("sigma", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 0.5)])
def test_a_threshold_needs_noise_and_delta(sigma: float, delta: float) -> None:
    with pytest.raises(PrivacyError, match="threshold needs noise"):
        threshold_of(sigma, delta)
