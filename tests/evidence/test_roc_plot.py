"""The picture of an attack: rates of all thresholds, and what the claim allows at them."""

import numpy as np
import pytest

from homo_dp.evidence.audit import Scores
from homo_dp.evidence.roc_plot import claimed_rates, rates
from homo_dp.evidence.tradeoff import Claim


def test_rates_go_from_nobody_to_everybody() -> None:
    false, true = rates(Scores(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0])))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert all(np.diff(false) >= 0)
    assert true[list(false).index(1 / 3)] == pytest.approx(2 / 3)


def test_a_claim_allows_no_more_than_epsilon_and_delta() -> None:
    false = np.array([0.0, 0.01, 0.5, 1.0])
    assert claimed_rates(Claim(None, 0.0, 0.0), false) == pytest.approx(
        false
    )  # perfect privacy: guessing
    allowed = claimed_rates(Claim(None, 1.0, 1e-5), false)
    assert allowed[0] == pytest.approx(1e-5)
    assert allowed[1] == pytest.approx(0.01 * np.e + 1e-5)
    assert allowed[-1] == 1
