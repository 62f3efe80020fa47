"""Estimators against published and closed-form values."""

import math

import pytest
from scipy import stats

from homo_dp.evidence.estimators import (
    Guesses,
    clopper_pearson,
    f_dp_one_run,
    one_run,
    one_run_p_value,
)


def test_all_right_guesses_have_a_closed_form() -> None:
    limit = 0.05 ** (1 / 50)
    assert one_run(50, 50, 50, 0.0, 0.95) == pytest.approx(math.log(limit / (1 - limit)), abs=1e-4)


def test_the_p_value_is_that_of_the_authors_loop() -> None:
    for guessed, correct, epsilon, delta in (
        (100, 90, 1.0, 1e-3),
        (10, 10, 0.5, 1e-6),
        (100, 60, 0.0, 0.1),
    ):
        right = 1 / (1 + math.exp(-epsilon))
        alpha = total = 0.0
        for i in range(1, correct + 1):
            total += stats.binom.pmf(correct - i, guessed, right)
            alpha = max(alpha, total / i)
        expected = min(1.0, stats.binom.sf(correct - 1, guessed, right) + 2 * 1000 * delta * alpha)
        assert one_run_p_value(1000, guessed, correct, epsilon, delta) == pytest.approx(expected)


def test_nothing_is_shown_by_guesses_at_random() -> None:
    assert clopper_pearson(Guesses(500, 1000, 500, 1000), 1e-5, 0.95) == 0
    assert one_run(1000, 1000, 500, 1e-5, 0.95) == f_dp_one_run(1000, 1000, 500, 1e-5, 0.95) == 0
