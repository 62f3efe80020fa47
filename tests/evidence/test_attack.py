"""Log likelihood ratios of attacks: those of the two worlds, checked against densities."""

import numpy as np
import pytest
from scipy import stats

from homo_dp.evidence.attack import repeated_losses, sampled_losses

VALUES = np.linspace(-3, 5, 9)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_loss_of_a_sampled_value_is_the_ratio_of_its_densities(rate: float) -> None:
    inside = rate * stats.norm.pdf(VALUES, 1, 2.0) + (1 - rate) * stats.norm.pdf(VALUES, 0, 2.0)
    np.testing.assert_allclose(
        sampled_losses(VALUES, 2.0, rate),
        np.log(inside / stats.norm.pdf(VALUES, 0, 2.0)),
        atol=1e-12,
    )


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_loss_of_a_sum_counts_every_number_of_hits(rate: float) -> None:
    noise = 2.0 * np.sqrt(3)
    inside = sum(
        stats.binom.pmf(hits, 3, rate) * stats.norm.pdf(VALUES, hits, noise) for hits in range(4)
    )
    np.testing.assert_allclose(
        repeated_losses(VALUES, 2.0, rate, 3),
        np.log(inside / stats.norm.pdf(VALUES, 0, noise)),
        atol=1e-12,
    )
