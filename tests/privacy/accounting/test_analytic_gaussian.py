"""The closed form for Gaussians, against an independent implementation and at extreme noise."""

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

from homo_dp.privacy.accounting.analytic_gaussian import gaussian_epsilons


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.3])
def test_agrees_with_dp_accounting(delta: float) -> None:
    noises = np.array([1e-3, 0.01, 0.1, 0.3, 1.0, 5.0, 50.0, 1e3, 1e4])
    theirs = [get_epsilon_gaussian(float(noise), delta) for noise in noises]
    np.testing.assert_allclose(gaussian_epsilons(1 / noises, delta), theirs, rtol=1e-9, atol=1e-12)


def test_extreme_noise_has_a_finite_safe_answer() -> None:
    tiny, huge = gaussian_epsilons(np.array([1e9, 1e-12]), 1e-5)
    assert tiny == pytest.approx(5e17, rel=1e-6)  # mu**2 / 2, the mean of the loss
    assert tiny > 5e17
    assert huge == 0.0
    assert math.isfinite(gaussian_epsilons(np.array([1.0]), 1e-300)[0])


def test_epsilon_falls_with_delta_and_grows_with_sensitivity() -> None:
    mu = np.geomspace(1e-3, 1e3, 200)
    curves = [gaussian_epsilons(mu, delta) for delta in (1e-3, 1e-5, 1e-9)]
    assert all(np.all(np.diff(curve) >= 0) for curve in curves)
    assert np.all(curves[0] <= curves[1])
    assert np.all(curves[1] <= curves[2])


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Balle & Wang, theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        ratio, half = mpmath.mpf(epsilon) / mu, mpmath.mpf(mu) / 2
        return mpmath.ncdf(half - ratio) - mpmath.exp(epsilon) * mpmath.ncdf(-half - ratio)


@pytest.mark.parametrize("delta", [1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-12])
def test_it_is_never_below_the_exact_epsilon(delta: float) -> None:
    """Where mu is small two nearly equal numbers are subtracted: rounded to nearest, a fifth of
    these were below, by up to 1e-8.
    """
    noises = np.geomspace(1e-6, 30.0, 40)
    for mu, epsilon in zip(noises.tolist(), gaussian_epsilons(noises, delta).tolist(), strict=True):
        assert exact_delta(epsilon, mu) <= delta, mu
        if epsilon > 0:
            assert exact_delta(epsilon * (1 - 1e-5), mu) > delta, mu  # and hardly above it
