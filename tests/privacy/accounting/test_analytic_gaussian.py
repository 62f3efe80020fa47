"""The closed form for Gaussians, against an independent implementation and at extreme noise."""

import math

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
