"""Our privacy loss distributions against dp-accounting's, from above and from below."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs

from homo_dp.privacy.accounting.pld import loss_epsilons
from homo_dp.privacy.accounting.pld_step import NoisyStep, discretise, spread


def their_epsilon(mechanism: NoisyStep, steps: int, delta: float, pessimistic: bool) -> float:
    """dp-accounting 0.6: an upper bound (connect the dots) or a lower one (rounded down)."""
    make = theirs.from_laplace_mechanism if mechanism.laplace else theirs.from_gaussian_mechanism
    one = make(
        mechanism.noise,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=spread(mechanism, 1e-12) / 60,
        sampling_prob=mechanism.sample_rate,
        use_connect_dots=pessimistic,
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


POINTS = [
    (NoisyStep(1.0, 0.01), 1000, 1e-5),
    (NoisyStep(2.0, 0.05), 200, 1e-6),
    (NoisyStep(0.8, 0.2), 3, 1e-6),
    (NoisyStep(4.0, 0.001), 500, 1e-7),
    (NoisyStep(3.0), 1, 1e-5),
    (NoisyStep(2.0, laplace=True), 4, 1e-6),
]


@pytest.mark.parametrize(("mechanism", "steps", "delta"), POINTS)
def test_between_a_lower_bound_and_a_per_mille_above_an_upper_bound(
    mechanism: NoisyStep, steps: int, delta: float
) -> None:
    ours = loss_epsilons({}, {mechanism: steps}, [1], delta)[0]
    upper = their_epsilon(mechanism, steps, delta, pessimistic=True)
    assert their_epsilon(mechanism, steps, delta, pessimistic=False) < ours < upper * 1.001


@pytest.mark.parametrize(("mechanism", "steps", "delta"), POINTS)
def test_a_coarser_grid_stays_above(mechanism: NoisyStep, steps: int, delta: float) -> None:
    fine, usual, coarse = (
        loss_epsilons({}, {mechanism: steps}, [1], delta, r)[0] for r in (120, 30, 5)
    )
    assert fine <= usual * (1 + 1e-9)
    assert usual <= coarse * (1 + 1e-9)
    assert coarse < 1.05 * fine


@pytest.mark.parametrize(
    "mechanism", [NoisyStep(1.1, 0.004), NoisyStep(0.7, 0.5), NoisyStep(0.5, laplace=True)]
)
def test_one_step_keeps_both_neighbours(mechanism: NoisyStep) -> None:
    """Discretising moves mass inside cells only: each side sums to 1, and so does its image
    under exp(-loss).
    """
    grid = spread(mechanism, 1e-12) / 30
    step = discretise(mechanism, grid, tail=1e-18)
    for losses in (step.removed, step.added):
        at = (losses.low + np.arange(len(losses.mass))) * grid
        assert np.all(losses.mass >= 0)
        assert losses.mass.sum() + losses.infinite == pytest.approx(1, abs=1e-12)
        assert losses.mass @ np.exp(-at) == pytest.approx(1, abs=1e-9)


def test_a_curve_is_the_compositions_one_by_one() -> None:
    statistic, step = NoisyStep(5.0), NoisyStep(1.0, 0.01)
    curve = loss_epsilons({statistic: 1}, {step: 30}, [1, 2, 7, 40], 1e-6)
    alone = [
        loss_epsilons({}, {statistic: 1, step: 30 * rounds}, [1], 1e-6)[0]
        for rounds in (1, 2, 7, 40)
    ]
    np.testing.assert_allclose(curve, alone, rtol=2e-4)
    assert curve[-1] == pytest.approx(alone[-1], rel=1e-6)


@pytest.mark.parametrize(
    ("mechanism", "steps", "delta", "low", "high"),
    [
        # sanity intervals: mean of the loss for tiny noise, the analytic value where sampling
        # hardly matters
        (NoisyStep(0.01, 0.5), 10, 1e-5, 25_000, 60_000),
        (NoisyStep(0.05, 0.01), 1000, 1e-5, 4_000, 5_500),
        (NoisyStep(1.0, 0.999999), 10, 1e-5, 17.85, 17.90),
        (NoisyStep(0.05, 1e-6), 5, 1e-5, 0.0, 1e-6),  # the whole sample rate is below delta
        (NoisyStep(0.6, 1e-4), 100_000, 1e-6, 0.95, 0.97),
        (NoisyStep(1000.0, 0.01), 1000, 1e-8, 0.00114, 0.00117),
    ],
)
def test_extremes_are_finite_and_small_in_memory(
    mechanism: NoisyStep, steps: int, delta: float, low: float, high: float
) -> None:
    assert low <= loss_epsilons({}, {mechanism: steps}, [1], delta)[0] <= high


def test_a_delta_below_floating_point_is_infinite_not_wrong() -> None:
    assert loss_epsilons({}, {NoisyStep(1.0, 0.01): 1000}, [1], 1e-15) == [math.inf]
