"""The bound for fixed-size samples against dp-accounting's, and its rounding."""

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from homo_dp.privacy.fixed_size import fixed_size_rdp

ORDERS = np.array([1.1, 1.5, 2, 2.7, 3, 5.5, 8, 17, 32, 50, 100, 256, 512])


def theirs(population: int, size: int, noise: float) -> np.ndarray:
    drawn = dp_event.SampledWithoutReplacementDpEvent(population, size, dp_event.GaussianDpEvent(noise))
    rdp: np.ndarray = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE).compose(drawn).rdp
    return rdp


@pytest.mark.parametrize(
    ("population", "size", "noise"),
    [(60_000, 256, 0.55), (1000, 10, 2.0), (10, 5, 0.3), (10_000, 1, 1.0), (20, 18, 0.05), (100, 100, 3.0)],
)
def test_equals_dp_accounting(population: int, size: int, noise: float) -> None:
    ours = fixed_size_rdp(size / population, noise, ORDERS)
    np.testing.assert_allclose(ours, theirs(population, size, noise), rtol=1e-10)


@pytest.mark.parametrize(("population", "size", "noise"), [(100, 10, 10.0), (10, 3, 100.0), (1000, 1, 1e4)])
def test_with_much_noise_rounding_counts_against_us(population: int, size: int, noise: float) -> None:
    """There the differences cancel: dp-accounting keeps what is left, ours adds what may have been lost."""
    ours, reference = fixed_size_rdp(size / population, noise, ORDERS), theirs(population, size, noise)
    assert np.all(ours >= reference * (1 - 1e-10))
    np.testing.assert_allclose(ours[ORDERS < 20], reference[ORDERS < 20], rtol=1e-4)
