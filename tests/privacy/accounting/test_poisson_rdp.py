"""Renyi divergences of Poisson samples against dp-accounting, term by term there, all at once
here.
"""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from homo_dp.privacy.accounting.accountants import _rdp_vector
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.accounting.poisson_rdp import poisson_rdp
from homo_dp.privacy.accounting.renyi_bounds import ORDERS

RATES = (1e-6, 0.003, 0.032, 0.3, 0.5, 0.95, 0.999)
NOISES = (0.3, 0.8, 1.5, 10.0)


def event(rate: float, noise: float) -> dp_event.DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))


def theirs(rate: float, noise: float) -> np.ndarray:
    rdp: np.ndarray = (
        RdpAccountant(ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event(rate, noise)).rdp
    )
    return rdp


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("noise", NOISES)
def test_equals_dp_accounting(rate: float, noise: float) -> None:
    ours, reference = poisson_rdp(rate, noise, ORDERS), theirs(rate, noise)
    both = np.isfinite(ours) & np.isfinite(reference)
    assert both.mean() > 0.9
    # absolute: what the logarithms cancel to; the accountant adds as much to be on the safe side
    np.testing.assert_allclose(ours[both], reference[both], rtol=1e-12, atol=1e-14)
    assert np.isinf(ours).sum() <= np.isinf(reference).sum()


def test_the_accountant_rounds_up_and_never_reports_less_than_dp_accounting() -> None:
    for rate in RATES:
        for noise in NOISES:
            reference = theirs(rate, noise)
            known = np.isfinite(reference)
            lowest = np.minimum.accumulate(reference[::-1])[::-1]
            assert np.all(_rdp_vector(to_json(event(rate, noise)))[known] >= lowest[known])


def test_all_records_or_none_are_left_to_dp_accounting() -> None:
    everyone = _rdp_vector(to_json(event(1.0, 2.0)))
    np.testing.assert_allclose(everyone, ORDERS / 8, rtol=1e-12)
    assert not np.any(theirs(0.0, 2.0))


def test_extreme_noise_stays_a_number() -> None:
    for rate, noise in [(0.5, 1e-3), (1e-9, 1e-3), (0.5, 1e6), (math.nextafter(1.0, 0.0), 1.0)]:
        divergence = poisson_rdp(rate, noise, ORDERS)
        assert not np.any(np.isnan(divergence))
        assert np.isfinite(divergence[-1])
