"""Plain mechanisms and the conversion to epsilon against dp-accounting, which has the same
formulas.
"""

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from homo_dp.privacy.accounting.renyi_bounds import ORDERS, converted, gaussian_rdp, laplace_rdp


def _theirs(event: dp_event.DpEvent) -> np.ndarray:
    return np.asarray(
        RdpAccountant(ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).rdp
    )


def test_orders_are_those_of_dp_accounting() -> None:
    assert ORDERS.tolist() == [float(order) for order in DEFAULT_RDP_ORDERS]


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.1, 30.0, 1e4])
def test_divergences_are_those_of_dp_accounting(noise: float) -> None:
    np.testing.assert_allclose(
        gaussian_rdp(noise, ORDERS), _theirs(dp_event.GaussianDpEvent(noise)), rtol=1e-12
    )
    np.testing.assert_allclose(
        laplace_rdp(noise, ORDERS), _theirs(dp_event.LaplaceDpEvent(noise)), rtol=1e-9, atol=1e-15
    )


@pytest.mark.parametrize("scale", [1e-14, 1e-4, 0.02, 1.0, 1e6, np.inf])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_epsilon_is_that_of_dp_accounting(scale: float, delta: float) -> None:
    divergence = scale * ORDERS
    assert converted(ORDERS, divergence, delta).min() == pytest.approx(
        compute_epsilon(ORDERS, divergence, delta)[0], rel=1e-12
    )


def test_an_order_without_a_bound_is_infinite() -> None:
    assert converted(np.array([8.0]), np.array([np.nan]), 1e-5)[0] == np.inf
    assert converted(np.array([1.001]), np.array([0.5]), 1e-5)[0] == np.inf
