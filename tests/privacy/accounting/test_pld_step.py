"""One step on a grid: its mass is whole, and it never loses less than the true step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from homo_dp.privacy.accounting.pld_step import Losses, NoisyStep, discretise, spread

MECHANISMS = [
    NoisyStep(1.0),
    NoisyStep(0.7, 0.1),
    NoisyStep(4.0, 0.5),
    NoisyStep(2.0, laplace=True),
]
GRID = 0.01


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_outcome_inverts_loss(mechanism: NoisyStep) -> None:
    x = np.linspace(0.1, 0.9, 17) if mechanism.laplace else np.linspace(-2, 3, 17)
    np.testing.assert_allclose(mechanism.outcome(mechanism.loss(x)), x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_mass_is_lost(mechanism: NoisyStep) -> None:
    step = discretise(mechanism, GRID, 1e-12)
    for losses in (step.removed, step.added):
        assert float(losses.mass.sum()) + losses.infinite == pytest.approx(1.0, abs=1e-12)
        assert losses.infinite <= 1e-11


@pytest.mark.parametrize("noise", [0.8, 1.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.7])
def test_the_divergence_is_at_least_that_of_the_gaussian(noise: float, epsilon: float) -> None:
    """Balle & Wang's formula is exact for the plain Gaussian; a coarse grid may only be above
    it.
    """
    mu = 1 / noise
    exact = float(
        special.ndtr(mu / 2 - epsilon / mu)
        - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu)
    )
    found = _divergence(discretise(NoisyStep(noise), 0.1, 1e-12).removed, 0.1, epsilon)
    assert exact - 1e-12 <= found <= exact + 2e-3


def _divergence(losses: Losses, grid: float, epsilon: float) -> float:
    values = (losses.low + np.arange(len(losses.mass))) * grid
    above = values > epsilon
    return losses.infinite + float(np.sum(losses.mass[above] * -np.expm1(epsilon - values[above])))


def test_less_noise_spreads_losses_further() -> None:
    assert (
        spread(NoisyStep(0.5), 1e-9)
        > spread(NoisyStep(1.0), 1e-9)
        > spread(NoisyStep(1.0, 0.1), 1e-9)
        > 0
    )
