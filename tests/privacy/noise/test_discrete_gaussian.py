"""Integer noise: exact probabilities, sums of shares, and a divergence never above that of the
normal it stands for.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from homo_dp.privacy.noise.discrete_gaussian import FRACTIONS, WIDTH, draw_around
from homo_dp.privacy.noise.source import SecureNoise, secure_noise
from tests.privacy.noise_checks import check_frequencies


def discrete(mean: float, std: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Integers within 12 deviations and their discrete Gaussian probabilities, by direct
    summation.
    """
    values = np.arange(math.floor(mean - 12 * std), math.ceil(mean + 12 * std) + 1)
    weights = np.exp(-((values - mean) ** 2) / (2 * std**2))
    return values, weights / weights.sum()


def exact_discrete_gaussian(std: int, size: int, seed: int) -> NDArray[np.int64]:
    """Canonne, Kairouz & Steinke 2020, algorithm 3, with exact coins of NumPy's: slow, and the
    judge of ours.
    """
    draw = np.random.default_rng(seed)
    scale = std + 1
    found: list[int] = []
    while len(found) < size:
        magnitude = draw.geometric(1 - math.exp(-1 / scale), 4 * size) - 1
        negative = draw.random(4 * size) < 0.5
        kept = ~(negative & (magnitude == 0))
        signed = np.where(negative, -magnitude, magnitude)[kept]
        accept = np.exp(-((np.abs(signed) - std**2 / scale) ** 2) / (2 * std**2))
        found += signed[draw.random(len(signed)) < accept].tolist()
    return np.array(found[:size])


@pytest.mark.parametrize("centre", [0.0, 0.25, -7.5, 1000 + 1 / FRACTIONS])
def test_integers_around_a_centre_have_their_exact_probabilities(centre: float) -> None:
    drawn = draw_around(np.full(300_000, centre), secure_noise().words)
    values, probabilities = discrete(centre, WIDTH)
    check_frequencies(np.array([(drawn == value).sum() for value in values]), probabilities)


@pytest.mark.parametrize(
    ("std", "parties", "mean"), [(64.0, 1, 0.3), (20.0, 4, -3.7), (5.0, 10, 0.0)]
)
def test_a_sum_of_shares_is_one_discrete_gaussian(std: float, parties: int, mean: float) -> None:
    """Chi-squared against exact probabilities in cells of 1,000 draws or more; false alarms once
    in 1e9.
    """
    source, size = SecureNoise(), 200_000
    total = np.zeros(size, np.int64)
    for party in range(parties):
        centres = source.normal([size], std, torch.float64).numpy() + mean * (party == 0)
        total += draw_around(centres, source.words)
    values, probabilities = discrete(mean, math.sqrt(parties * (std**2 + WIDTH**2)))
    _, cells = np.unique(
        np.minimum((np.cumsum(probabilities) * 150).astype(int), 149), return_inverse=True
    )
    expected = np.bincount(cells, probabilities) * size
    counts = np.bincount(cells[total - values[0]], minlength=len(expected))
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-9


def test_the_judge_and_the_sampler_agree() -> None:
    """Kolmogorov-Smirnov over two samples of 20,000; false alarms about once in 1e9."""
    source = SecureNoise()
    centres = source.normal([20_000], math.sqrt(12**2 - WIDTH**2), torch.float64).numpy()
    ours = draw_around(centres, source.words)
    assert stats.ks_2samp(ours, exact_discrete_gaussian(12, 20_000, 1)).pvalue > 1e-9


# The divergence: never above that of the continuous Gaussian, by direct summation


def gaussian_delta(epsilon: float, moved: float, std: float) -> float:
    """Balle & Wang 2018, theorem 5."""
    ratio = moved / std
    return float(
        stats.norm.cdf(ratio / 2 - epsilon / ratio)
        - math.exp(epsilon) * stats.norm.cdf(-ratio / 2 - epsilon / ratio)
    )


def law(mean: float, std: float, width: float = WIDTH) -> dict[int, float]:
    """The law of an integer drawn around mean + a normal of this deviation: discrete Gaussian,
    widened.
    """
    values, probabilities = discrete(mean, math.hypot(std, width))
    return dict(zip(values.tolist(), probabilities.tolist(), strict=True))


@pytest.mark.parametrize("width", [1.0, WIDTH, 4.0])
@pytest.mark.parametrize(("std", "moved"), list(product([2.0, 5.0, 40.0], [0.3, 1.0, 2.5, 7.0])))
def test_hockey_stick_divergence_in_one_dimension(std: float, moved: float, width: float) -> None:
    for start in (0.0, 0.37):
        one, other = law(start, std, width), law(start + moved, std, width)
        for epsilon in (0.0, 0.01, 0.1, 0.5, 1.0, 3.0):
            delta = sum(max(0.0, p - math.exp(epsilon) * other.get(k, 0.0)) for k, p in one.items())
            assert delta <= gaussian_delta(epsilon, moved, std) + 1e-12


def squares(means: tuple[float, float], std: float, width: float) -> NDArray[np.float64]:
    """The law of two integers, each drawn around its mean + a normal."""
    reach = np.arange(-80, 81)
    found = [law(mean, std, width) for mean in means]
    return np.outer(*(np.array([one.get(int(k), 0.0) for k in reach]) for one in found))


@pytest.mark.parametrize("width", [1.0, WIDTH, 4.0])
@pytest.mark.parametrize(
    ("std", "moved"),
    list(product([2.0, 3.0, 5.0], [(0.5, 0.5), (2.0, 1.0), (0.1, 4.0), (0.0, 0.3)])),
)
def test_hockey_stick_divergence_in_two_dimensions(
    std: float, moved: tuple[float, float], width: float
) -> None:
    one, other = squares((0.0, 0.2), std, width), squares((moved[0], 0.2 + moved[1]), std, width)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        delta = float(np.maximum(0.0, one - math.exp(epsilon) * other).sum())
        assert delta <= gaussian_delta(epsilon, math.hypot(*moved), std) + 1e-12


@pytest.mark.parametrize(("before", "holds"), [(False, True), (True, False)])
def test_rounding_before_noise_would_need_a_term_in_the_sensitivity(
    before: bool, holds: bool
) -> None:
    """Neighbours 0.028 apart whose sums round to corners sqrt(2) apart, with noise that forgets
    it.
    """
    one, other, std = (0.49, 0.49), (0.51, 0.51), 1.5
    if before:
        one, other = (0.0, 0.0), (1.0, 1.0)
    delta = float(np.maximum(0.0, squares(one, std, WIDTH) - squares(other, std, WIDTH)).sum())
    assert (delta <= gaussian_delta(0.0, math.hypot(0.02, 0.02), std) + 1e-12) is holds


def rounded(mean: float, std: float) -> NDArray[np.float64]:
    """The law of the integer nearest to a normal, on -60 .. 60: a rounding without any coins."""
    edges = np.arange(-60, 62) - 0.5
    return np.asarray(np.diff(stats.norm.cdf(edges, mean, std)))


@pytest.mark.parametrize(("std", "hidden"), [(2.0, True), (0.3, False)])
def test_a_sum_of_roundings_tells_only_the_sum_of_what_was_rounded(
    std: float, hidden: bool
) -> None:
    """Why the precision of tables is no matter of privacy: any rounding will do, at 2 steps of
    noise already.
    """
    apart = [
        np.convolve(rounded(first, std), rounded(0.7 - first, std))
        for first in (0.0, 0.2, 0.35, 0.5)
    ]
    differences = [float(np.abs(one - apart[0]).sum()) for one in apart]
    assert (max(differences) < 1e-12) is hidden


def test_the_divergence_check_sees_too_little_noise() -> None:
    one, other = law(0.0, 4.0), law(5.0, 4.0)
    delta = sum(max(0.0, p - math.exp(0.5) * other.get(k, 0.0)) for k, p in one.items())
    assert delta > gaussian_delta(0.5, 5.0, 5.0)


def coins_that_stay(fractions: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the 2^26 coins of a slot give the slot's own integer, by trying coins; and the
    integer that the others give.
    """
    low, high = np.zeros(len(slots), np.int64), np.full(len(slots), 2**26)
    own = drawn_by(fractions, slots, np.zeros(len(slots), np.int64))
    others = drawn_by(fractions, slots, high - 1)
    same = own == others  # all coins give one integer
    while (low < high).any():
        middle = np.minimum((low + high) // 2, 2**26 - 1)
        stays = (drawn_by(fractions, slots, middle) == own) & (low < high)
        low, high = np.where(stays, middle + 1, low), np.where(stays, high, middle)
    return np.stack([own, np.where(same, 2**26, low), others])


def drawn_by(
    fractions: NDArray[np.int64], slots: NDArray[np.int64], coins: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The integers that ``draw_around`` gives for these random words."""
    words = (coins * 64 + slots).astype(np.uint32)
    padded = np.append(words, np.zeros(len(words) % 2, np.uint32)).view(np.uint64)
    given = iter(np.split(padded, range(1 << 14, len(padded), 1 << 14)))
    return draw_around(fractions / FRACTIONS, lambda size: next(given).copy())


def test_every_integer_has_its_probability_to_2_to_the_minus_32() -> None:
    """All words of all tables are counted: the sampler has no other probabilities."""
    fractions, slots = (
        each.reshape(-1) for each in np.meshgrid(range(FRACTIONS), range(64), indexing="ij")
    )
    own, stay, others = coins_that_stay(fractions, slots)
    worst = 0.0
    for fraction in range(FRACTIONS):
        rows = fractions == fraction
        values = np.arange(-40, 42)
        found = np.zeros(len(values))
        np.add.at(found, own[rows] + 40, stay[rows])
        np.add.at(found, others[rows] + 40, 2**26 - stay[rows])
        exact = np.exp(-((values - fraction / FRACTIONS) ** 2) / (2 * WIDTH**2))
        worst = max(worst, float(np.abs(found / 2**32 - exact / exact.sum()).max()))
    assert worst <= 2.0**-32
