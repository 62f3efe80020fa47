"""The cost of a search whose winner alone is published: dp-accounting's own figures, and the
draw.
"""

import math
from itertools import pairwise

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from homo_dp.privacy.accounting.accountants import epsilon, renyi, renyi_epsilon
from homo_dp.privacy.accounting.events import from_json, to_json
from homo_dp.privacy.accounting.renyi_bounds import ORDERS
from homo_dp.privacy.accounting.selection import Distribution, secret_number, selected, shape_of
from homo_dp.privacy.errors import PrivacyError

SHAPES = {"poisson": math.inf, "geometric": 1.0}  # as RepeatAndSelectDpEvent calls them


@pytest.mark.parametrize("distribution", ["poisson", "geometric"])
@pytest.mark.parametrize("mean", [1.0, 8.0, 60.0])
@pytest.mark.parametrize("noise", [0.8, 5.0, 40.0])
def test_epsilon_is_that_of_dp_accounting(
    noise: float, mean: float, distribution: Distribution
) -> None:
    gaussian = dp_accounting.GaussianDpEvent(noise)
    sampled = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.05, gaussian), 100
    )
    # their bound of a sample is larger at orders near 1
    for event, slack in ((gaussian, 1e-9), (sampled, 0.05)):
        repeated = RepeatAndSelectDpEvent(event, mean, SHAPES[distribution])
        theirs = RdpAccountant(orders=ORDERS.tolist()).compose(repeated).get_epsilon(1e-5)
        ours = renyi_epsilon(selected(renyi({to_json(event): 1}), mean, distribution), 1e-5)
        assert theirs * (1 - slack) - 1e-9 <= ours <= theirs * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("distribution", ["poisson", "geometric"])
def test_a_search_costs_more_than_a_trial_and_more_with_more_trials(
    distribution: Distribution,
) -> None:
    trial = renyi({to_json(dp_accounting.GaussianDpEvent(4.0)): 1})
    costs = [
        renyi_epsilon(trial, 1e-5),
        *(renyi_epsilon(selected(trial, m, distribution), 1e-5) for m in (2, 8, 50)),
    ]
    assert all(less < more for less, more in pairwise(costs))


def test_the_number_of_trials_has_the_distribution_that_is_charged() -> None:
    poisson = np.array([secret_number(6, "poisson") for _ in range(4000)])
    geometric = np.array([secret_number(6, "geometric") for _ in range(4000)])
    assert abs(poisson.mean() - 6) < 6 * np.sqrt(6 / 4000)
    assert abs(poisson.var() - 6) < 1.2
    assert abs(geometric.mean() - 6) < 6 * np.sqrt(30 / 4000)
    assert geometric.min() == 1
    assert abs((geometric == 1).mean() - 1 / 6) < 0.036


def test_a_mean_without_a_bound_is_refused() -> None:
    for mean in (0.0, 0.5, 1e6, float("nan")):
        with pytest.raises(PrivacyError, match="--trials"):
            selected(renyi({}), mean, "poisson")


@pytest.mark.parametrize("distribution", ["poisson", "geometric"])
def test_a_search_is_one_event_that_is_kept_and_priced(distribution: Distribution) -> None:
    trial = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8.0), 4)
    event = RepeatAndSelectDpEvent(trial, 8.0, shape_of(distribution))
    assert from_json(to_json(event)) == event
    spent = epsilon(event, 1e-5)
    assert spent.pld is None
    theirs = RdpAccountant(orders=ORDERS.tolist()).compose(event).get_epsilon(1e-5)
    assert spent.rdp == pytest.approx(theirs, rel=1e-6)
    doubled = renyi({to_json(event): 1}, doubled=True)
    near = RepeatAndSelectDpEvent(
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 4), 8.0, event.shape
    )
    assert np.allclose(doubled, renyi({to_json(near): 1}), rtol=1e-9)


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(1.0), 8.0, 0.0), "shape=0"),
        (RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(1.0), 0.5, 1.0), "mean"),
        (RepeatAndSelectDpEvent(dp_accounting.NoOpDpEvent(), 8.0, 1.0), "no release"),
    ],
)
def test_a_search_without_a_bound_is_refused(event: RepeatAndSelectDpEvent, refusal: str) -> None:
    with pytest.raises(PrivacyError, match=refusal):
        to_json(event)
