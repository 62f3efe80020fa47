"""Releases lie on a public grid, in every mode of training, and their low bits tell no attack anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.discrete_gaussian import FRACTIONS, WIDTH, draw_around
from homo_dp.privacy.noise.grid import Grid, neglected_delta, noised, noised_share, on_grid
from homo_dp.privacy.noise.source import NoiseSource, OrdinaryNoise, SecureNoise, SeededNoise, secure_noise
from homo_dp.privacy.opacus.engine import PrivacyEngine
from tests.privacy.broken_noise import four_fold_float32
from tests.privacy.engine_parts import made_private
from tests.privacy.low_bits import MULTIPLIER, check_low_bits, record
from tests.privacy.noise_checks import check_frequencies, check_normality, check_variance
from tests.privacy.training_parts import training

SIZES = [300, 1000, 10_000]
SIGMA = MULTIPLIER
SOURCES: dict[str, NoiseSource] = {"secure": SecureNoise(), "ordinary": OrdinaryNoise()}


# The grid


@pytest.mark.parametrize("sigma", [1e-9, 0.3, 1.0, 1.999, 2.0, 77.7, 1e12])
def test_sixty_four_to_128_steps_make_a_sigma(sigma: float) -> None:
    step = Grid.of(sigma).step
    assert 64 <= sigma / step < 128
    assert math.frexp(step)[0] == 0.5


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_has_no_grid(sigma: float) -> None:
    with pytest.raises(PrivacyError, match="sigma="):
        Grid.of(sigma)


def test_float32_sums_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"dtype=torch\.float32"):
        Grid.of(1.0).round_(torch.zeros(3))


def test_rounding_is_a_function_of_the_sum_alone() -> None:
    """The same sum of data and noise, made of different parts, gives the same release."""
    grid, total = Grid.of(1.0), torch.linspace(-3, 3, 1001, dtype=torch.float64)
    parts = [grid.round_(total * share + total * (1 - share)) for share in (0.0, 0.5, 0.25)]
    assert torch.equal(parts[0], parts[1])
    assert torch.equal(parts[0], parts[2])


def test_sums_too_large_for_their_noise_are_refused() -> None:
    grid = Grid.of(1e-9)
    grid.check(1e3)
    with pytest.raises(PrivacyError, match="too large"):
        grid.check(1e9)


@pytest.mark.parametrize(("summands", "bits"), [(1, 32), (10**7, 32), (10**8, 64), (10**16, 64)])
def test_no_sum_wraps(summands: int, bits: int) -> None:
    grid = Grid.of(1.0)
    assert grid.modulus_bits(summands, 1.0, 1.0, parties=3) == bits
    most = int((summands + 3 * 40 * grid.share_std(1.0)) * grid.scale)
    assert most < 2 ** (bits - 1)
    assert bits == 32 or most >= 2**31


def test_sums_beyond_64_bits_are_refused() -> None:
    with pytest.raises(PrivacyError, match="64 bits"):
        Grid.of(1.0).modulus_bits(10**18, 1.0, 1.0)


def test_what_is_neglected_is_small_and_grows_with_the_numbers() -> None:
    assert neglected_delta(1e9, 1.0) < 1e-7
    assert neglected_delta(4e6, 1.0) == pytest.approx(2 * neglected_delta(1e6, 1.0))


# The law


@pytest.mark.parametrize("release", [noised, noised_share])
@pytest.mark.parametrize("source", [secure_noise(), OrdinaryNoise()])
def test_noise_on_the_grid_is_still_normal(release: Callable[..., Tensor], source: NoiseSource) -> None:
    released = release(torch.full((100_000,), 0.3), 2.5, source)
    assert on_grid(released, 2.5)
    values = released - 0.3
    std = math.hypot(2.5, Grid.of(2.5).step * (WIDTH if release is noised_share else 12**-0.5))
    check_variance(values, std)
    check_normality(values + (torch.rand(100_000, dtype=torch.float64) - 0.5) * Grid.of(2.5).step, std)


def test_seeded_releases_repeat() -> None:
    for release in (noised, noised_share):
        one, other = (release(torch.zeros(100), 1.0, SeededNoise(3)) for _ in range(2))
        assert torch.equal(one, other)
        assert not torch.equal(one, release(torch.zeros(100), 1.0, SeededNoise(4)))


def discrete(mean: float, std: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Integers within 12 deviations and their discrete Gaussian probabilities, by direct summation."""
    values = np.arange(math.floor(mean - 12 * std), math.ceil(mean + 12 * std) + 1)
    weights = np.exp(-((values - mean) ** 2) / (2 * std**2))
    return values, weights / weights.sum()


def exact_discrete_gaussian(std: int, size: int, seed: int) -> NDArray[np.int64]:
    """Canonne, Kairouz & Steinke 2020, algorithm 3, with exact coins of NumPy's: slow, and the judge of ours."""
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


@pytest.mark.parametrize(("std", "parties", "mean"), [(64.0, 1, 0.3), (20.0, 4, -3.7), (5.0, 10, 0.0)])
def test_a_sum_of_shares_is_one_discrete_gaussian(std: float, parties: int, mean: float) -> None:
    """Chi-squared against exact probabilities in cells of 1,000 draws or more; false alarms once in 1e9."""
    source, size = SecureNoise(), 200_000
    total = np.zeros(size, np.int64)
    for party in range(parties):
        centres = source.normal([size], std, torch.float64).numpy() + mean * (party == 0)
        total += draw_around(centres, source.words)
    values, probabilities = discrete(mean, math.sqrt(parties * (std**2 + WIDTH**2)))
    _, cells = np.unique(np.minimum((np.cumsum(probabilities) * 150).astype(int), 149), return_inverse=True)
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
        stats.norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * stats.norm.cdf(-ratio / 2 - epsilon / ratio)
    )


def law(mean: float, std: float, width: float = WIDTH) -> dict[int, float]:
    """The law of an integer drawn around mean + a normal of this deviation: discrete Gaussian, widened."""
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
    ("std", "moved"), list(product([2.0, 3.0, 5.0], [(0.5, 0.5), (2.0, 1.0), (0.1, 4.0), (0.0, 0.3)]))
)
def test_hockey_stick_divergence_in_two_dimensions(std: float, moved: tuple[float, float], width: float) -> None:
    one, other = squares((0.0, 0.2), std, width), squares((moved[0], 0.2 + moved[1]), std, width)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        delta = float(np.maximum(0.0, one - math.exp(epsilon) * other).sum())
        assert delta <= gaussian_delta(epsilon, math.hypot(*moved), std) + 1e-12


@pytest.mark.parametrize(("before", "holds"), [(False, True), (True, False)])
def test_rounding_before_noise_would_need_a_term_in_the_sensitivity(before: bool, holds: bool) -> None:
    """Neighbours 0.028 apart whose sums round to corners sqrt(2) apart, with noise that forgets it."""
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
def test_a_sum_of_roundings_tells_only_the_sum_of_what_was_rounded(std: float, hidden: bool) -> None:
    """Why the precision of tables is no matter of privacy: any rounding will do, at 2 steps of noise already."""
    apart = [np.convolve(rounded(first, std), rounded(0.7 - first, std)) for first in (0.0, 0.2, 0.35, 0.5)]
    differences = [float(np.abs(one - apart[0]).sum()) for one in apart]
    assert (max(differences) < 1e-12) is hidden


def test_the_divergence_check_sees_too_little_noise() -> None:
    one, other = law(0.0, 4.0), law(5.0, 4.0)
    delta = sum(max(0.0, p - math.exp(0.5) * other.get(k, 0.0)) for k, p in one.items())
    assert delta > gaussian_delta(0.5, 5.0, 5.0)


# Low bits


@pytest.mark.parametrize("size", SIZES)
def test_the_four_fold_float32_sum_is_caught(size: int) -> None:
    source, value = SecureNoise(), record(size)
    with pytest.raises(AssertionError, match="guesses are right"):
        check_low_bits(
            lambda: four_fold_float32(torch.zeros(size), SIGMA, source),
            lambda: four_fold_float32(value, SIGMA, source),
            SIGMA,
        )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("release", [noised, noised_share])
def test_low_bits_of_a_release(release: Callable[..., Tensor], source: str, size: int) -> None:
    value, noise = record(size), SOURCES[source]
    check_low_bits(
        lambda: release(torch.zeros(size), SIGMA, noise).float(), lambda: release(value, SIGMA, noise).float(), SIGMA
    )


def linear_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Its gradient at the output is the label: a row's gradient is its features, where the label is 1."""
    return outputs.reshape(-1) * labels.reshape(-1)


def one_step(size: int, present: float, mode: str, noise: NoiseSource) -> Callable[[], Tensor]:
    """A DP-SGD round of one step from zero weights, over and over."""
    module = nn.Linear(size, 1, bias=False)
    features = record(size).unsqueeze(0).repeat(2, 1)
    private = training(
        module,
        linear_loss,
        features,
        torch.tensor([present, 0.0]),
        noise_multiplier=MULTIPLIER,
        grad_sample_mode=mode,
        noise=noise,
    )

    def step() -> Tensor:
        private.load_weights({"weight": torch.zeros(1, size)})
        private.run(1)
        return private.weights()["weight"].flatten()

    return step


@pytest.mark.parametrize("mode", ["fast", "hooks", "functorch", "ew", "ghost"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", SIZES)
def test_low_bits_of_one_step_from_zero_weights(mode: str, source: str, size: int) -> None:
    noise = SOURCES[source]
    check_low_bits(one_step(size, 0.0, mode, noise), one_step(size, 1.0, mode, noise), SIGMA)


class _Sum(nn.Module):
    reduction = "mean"

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = linear_loss(outputs, labels)
        return losses.mean() if self.reduction == "mean" else losses


def one_loop_step(size: int, present: float, mode: str, secure: bool) -> Callable[[], Tensor]:
    module = nn.Linear(size, 1, bias=False)
    features, labels = record(size).unsqueeze(0).repeat(2, 1), torch.tensor([present, 0.0])
    options: dict[str, Any] = {"grad_sample_mode": mode, "noise_multiplier": MULTIPLIER, "criterion": _Sum()}
    private, optimizer, criterion, _ = made_private(
        module, features, labels, engine=PrivacyEngine(secure_mode=secure), **options
    )
    criterion = criterion if mode == "ghost" else _Sum()

    def step() -> Tensor:
        with torch.no_grad():
            module.weight.zero_()
        optimizer.zero_grad()
        criterion(private(features), labels).backward()
        optimizer.step()
        return module.weight.detach().flatten().clone()

    return step


@pytest.mark.parametrize("mode", ["fast", "hooks", "functorch", "ew", "ghost"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", SIZES)
def test_low_bits_of_an_opacus_loop(mode: str, source: str, size: int) -> None:
    secure = source == "secure"
    check_low_bits(one_loop_step(size, 0.0, mode, secure), one_loop_step(size, 1.0, mode, secure), SIGMA)
