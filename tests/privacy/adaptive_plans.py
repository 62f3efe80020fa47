"""The best that an aggregator can do that chooses a plan after it has seen an earlier answer.

The first answer is a Gaussian release, the second a sample of the rows in one step, whose rate the
aggregator chooses. Both have hockey-stick divergences in closed form, and an adaptive choice has
E[max over plans of H(epsilon - loss of the first)] at every epsilon, so nothing here depends on an
accountant.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from homo_dp.privacy.accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 5e-5, 3e-5)
Plan = tuple[float, float]  # rate and noise multiplier


def event_of(plan: Plan) -> DpEvent:
    """What one step costs."""
    rate, noise = plan
    event = GaussianDpEvent(noise)
    return event if rate == 1 else PoissonSampledDpEvent(rate, event)


def least_noise(admitted: Callable[[DpEvent], bool]) -> list[Plan]:
    """The plan with the least noise that is admitted at each rate, where there is one."""
    found = []
    for rate in RATES:
        low, high = 0.05, 200.0
        if not admitted(event_of((rate, high))):
            continue
        for _ in range(14):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if admitted(event_of((rate, middle))) else (middle, high)
        found.append((rate, high))
    return found


def adaptive_epsilon(first: float, plans: list[Plan], delta: float) -> float:
    """The epsilon at delta of a first release with this noise multiplier and of the plan that is
    worst for the answer that came.
    """

    def excess(epsilon: float) -> float:
        answers = np.linspace(-12.0, 12.0, 4001)
        weights = norm.pdf(answers) / norm.pdf(answers).sum()
        losses = answers / first + 1 / (2 * first**2)
        worst = np.max([_divergence(plan, epsilon - losses) for plan in plans], axis=0)
        return float(np.log(max((weights * worst).sum(), 1e-300) / delta))

    return float(brentq(excess, 0.01, 40.0))


def _divergence(plan: Plan, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hockey-stick divergence of (1 - q) N(0, z^2) + q N(1, z^2) from N(0, z^2)."""
    rate, noise = plan
    odds = (np.exp(epsilon) - (1 - rate)) / rate
    edge = np.where(odds > 0, noise**2 * np.log(np.maximum(odds, 1e-300)) + 0.5, -np.inf)
    with_row = (1 - rate) * norm.sf(edge / noise) + rate * norm.sf((edge - 1) / noise)
    found: NDArray[np.float64] = with_row - np.exp(epsilon) * norm.sf(edge / noise)
    return np.maximum(found, 0.0)
