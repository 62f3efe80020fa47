"""The bound for fixed-size samples against dp-accounting's, and its rounding."""

import decimal
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.fixed_size_rdp import _log_differences, fixed_size_rdp
from homo_dp.privacy.sampling.samplers import FixedSizeSampler

ORDERS = np.array([1.1, 1.5, 2, 2.7, 3, 5.5, 8, 17, 32, 50, 100, 256, 512])


def theirs(population: int, size: int, noise: float) -> np.ndarray:
    drawn = dp_event.SampledWithoutReplacementDpEvent(
        population, size, dp_event.GaussianDpEvent(noise)
    )
    rdp: np.ndarray = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE).compose(drawn).rdp
    return rdp


@pytest.mark.parametrize(
    ("population", "size", "noise"),
    [
        (60_000, 256, 0.55),
        (1000, 10, 2.0),
        (10, 5, 0.3),
        (10_000, 1, 1.0),
        (20, 18, 0.05),
        (100, 100, 3.0),
    ],
)
def test_equals_dp_accounting(population: int, size: int, noise: float) -> None:
    ours = fixed_size_rdp(size / population, noise, ORDERS)
    np.testing.assert_allclose(ours, theirs(population, size, noise), rtol=1e-10)


@pytest.mark.parametrize(
    ("population", "size", "noise"), [(100, 10, 10.0), (10, 3, 100.0), (1000, 1, 1e4)]
)
def test_with_much_noise_rounding_takes_no_amplification_away(
    population: int, size: int, noise: float
) -> None:
    """There the differences cancel: dp-accounting's floats keep what is left of them, which is
    more than the truth.
    """
    ours, reference = (
        fixed_size_rdp(size / population, noise, ORDERS),
        theirs(population, size, noise),
    )
    assert np.all(ours <= reference * (1 + 1e-6))
    np.testing.assert_allclose(ours[ORDERS < 20], reference[ORDERS < 20], rtol=1e-4)


@pytest.mark.parametrize("noise", [1.0, 3.9, 4.0, 10.0, 100.0])
def test_differences_are_never_below_the_true_ones_and_close(noise: float) -> None:
    """The true ones as alternating sums with 400 digits."""
    found = _log_differences(noise, 61)
    with decimal.localcontext() as context:
        context.prec = 400
        square = decimal.Decimal(noise) ** 2
        values = [(decimal.Decimal(x * (x - 1)) / (2 * square)).exp() for x in range(62)]
        for order in (1, 2, 3, 4, 7, 12, 25, 60, 61):
            terms = (
                math.comb(order, x) * values[x] * (-1) ** (order - x) for x in range(order + 1)
            )
            true = abs(sum(terms, decimal.Decimal(0)))
            log_true = float(true.ln()) if order > 1 else -math.inf
            assert found[order - 1] >= log_true - 1e-12 * abs(log_true)
            assert order == 1 or found[order - 1] <= log_true + 1e-3


def test_much_noise_on_a_small_sample_costs_what_sampling_saves() -> None:
    """1 of 7 with noise 47 C, twice: floats gave 0.0614 (ours) and 0.0580 (dp-accounting 0.6)."""
    event = FixedSizeSampler(7, 1).event(47.373, 2)
    assert epsilon(event, 1.6e-5).rdp == pytest.approx(0.0399, abs=2e-4)
