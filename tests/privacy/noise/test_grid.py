"""Releases lie on a public grid, in every mode of training, and their low bits tell no attack
anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.discrete_gaussian import WIDTH
from homo_dp.privacy.noise.grid import Grid, grown_by, neglected, noised, noised_share, on_grid
from homo_dp.privacy.noise.source import (
    NoiseSource,
    OrdinaryNoise,
    SecureNoise,
    SeededNoise,
    secure_noise,
)
from tests.privacy.broken_noise import four_fold_float32
from tests.privacy.engine_parts import made_private
from tests.privacy.low_bits import MULTIPLIER, check_low_bits, record
from tests.privacy.noise_checks import check_normality, check_variance
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


@pytest.mark.parametrize(
    ("summands", "bits"), [(1, 32), (10**7, 32), (10**8, 64), (6 * 10**10, 64)]
)
def test_no_sum_wraps(summands: int, bits: int) -> None:
    grid = Grid.of(1.0)
    assert grid.modulus_bits(summands, 1.0, 1.0, parties=3) == bits
    most = int((summands + 3 * 40 * grid.share_std(1.0)) * grid.scale)
    assert most < 2 ** (bits - 1)
    assert bits == 32 or most >= 2**31


def test_sums_that_no_integer_is_drawn_around_are_refused_by_public_numbers() -> None:
    """Whatever is accepted can be drawn, so that no row decides whether a party fails."""
    grid = Grid.of(1.0)
    with pytest.raises(PrivacyError, match="steps of their grid"):
        grid.modulus_bits(7 * 10**10, 1.0, 1.0)
    assert grid.modulus_bits(6 * 10**10, 1.0, 1.0) == 64
    total = torch.full((3,), 6e10, dtype=torch.float64)
    grid.share(total, torch.zeros_like(total), SecureNoise())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_what_is_neglected_is_small_and_grows_with_the_numbers(epsilon: float) -> None:
    """100,000 numbers x 100 rounds x 10 parties, with any epsilon: below what anybody reads of
    either figure.
    """
    found = neglected(1e8, epsilon, 1e-6)
    assert found.epsilon < 1e-6
    assert found.delta < 1e-5 * 1e-6
    assert neglected(4e10, epsilon, 1e-6).epsilon == pytest.approx(
        2 * neglected(1e10, epsilon, 1e-6).epsilon, rel=0.02
    )


def coins_delta(epsilon: float, one: float, other: float, numbers: int) -> float:
    """The hockey-stick divergence of so many coins with these chances, by direct summation."""
    heads = np.arange(numbers + 1)
    laws = [stats.binom.logpmf(heads, numbers, chance) for chance in (one, other)]
    return float(np.maximum(0.0, np.exp(laws[0]) - np.exp(epsilon + laws[1])).sum())


@pytest.mark.parametrize(("share", "holds"), [(1.0, True), (0.05, False)])
def test_probabilities_that_are_off_cost_what_is_stated(share: float, holds: bool) -> None:
    """Coins of two neighbours, each off by a factor 1 +- r to the worse side; a twentieth of it
    is not enough.
    """
    found = []
    for numbers, chance, r in product([10, 100, 300], [0.5, 0.52, 0.55], [0.001, 0.01, 0.05]):
        for delta in (1e-3, 1e-6):
            epsilons = np.linspace(0.0, 20.0, 401)
            epsilon = next(
                float(e) for e in epsilons if coins_delta(float(e), chance, 0.5, numbers) <= delta
            )
            grown = grown_by(numbers, epsilon, delta, 1.6 * r**2, 1.6 * r)
            off = coins_delta(
                epsilon + share * grown.epsilon, chance * (1 + r), 0.5 * (1 - r), numbers
            )
            found.append(off <= delta + share * grown.delta)
    assert all(found) is holds


# The law


@pytest.mark.parametrize("release", [noised, noised_share])
@pytest.mark.parametrize("source", [secure_noise(), OrdinaryNoise()])
def test_noise_on_the_grid_is_still_normal(
    release: Callable[..., Tensor], source: NoiseSource
) -> None:
    released = release(torch.full((100_000,), 0.3), 2.5, source)
    assert on_grid(released, 2.5)
    values = released - 0.3
    std = math.hypot(2.5, Grid.of(2.5).step * (WIDTH if release is noised_share else 12**-0.5))
    check_variance(values, std)
    check_normality(
        values + (torch.rand(100_000, dtype=torch.float64) - 0.5) * Grid.of(2.5).step, std
    )


def test_seeded_releases_repeat() -> None:
    for release in (noised, noised_share):
        one, other = (release(torch.zeros(100), 1.0, SeededNoise(3)) for _ in range(2))
        assert torch.equal(one, other)
        assert not torch.equal(one, release(torch.zeros(100), 1.0, SeededNoise(4)))


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
        lambda: release(torch.zeros(size), SIGMA, noise).float(),
        lambda: release(value, SIGMA, noise).float(),
        SIGMA,
    )


def linear_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Its gradient at the output is the label: a row's gradient is its features, where the label
    is 1.
    """
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
    options: dict[str, Any] = {
        "grad_sample_mode": mode,
        "noise_multiplier": MULTIPLIER,
    }
    if mode == "ghost":
        options["criterion"] = _Sum()
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
    check_low_bits(
        one_loop_step(size, 0.0, mode, secure), one_loop_step(size, 1.0, mode, secure), SIGMA
    )
