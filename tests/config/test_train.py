"""The train section: learning rates over a run."""

import math

import pytest

from homo_dp.config.schema import ScheduleConfig


def test_optimal_schedule_equals_scikit_learn() -> None:
    # scikit-learn's SGDClassifier(learning_rate="optimal"): eta = 1 / (alpha (t0 + t)), t0 = 1 /
    # (typw alpha) since the loss derivative at -typw is below 1, typw = sqrt(1 / sqrt(alpha));
    # PrimiHub's homo_lr copies it.
    alpha = 1e-4
    schedule = ScheduleConfig(kind="optimal")
    typw = math.sqrt(1 / math.sqrt(alpha))
    for step in (0, 1, 99):
        expected = 1 / (alpha * (1 / (typw * alpha) + step))
        assert schedule.rate(123.0, step, 100, alpha=alpha) == pytest.approx(expected, rel=1e-12)
    assert schedule.rate(1.0, 99, 100, alpha=alpha) == pytest.approx(9.099, abs=1e-3)


def test_other_schedules() -> None:
    assert ScheduleConfig().rate(0.5, 7, 10) == 0.5
    assert ScheduleConfig(kind="inverse_sqrt").rate(1.0, 3, 10) == 0.5
    step = ScheduleConfig(kind="step")
    assert [step.rate(1.0, s, 8) for s in range(8)] == [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1]
    assert ScheduleConfig(kind="cosine").rate(1.0, 10, 10) == pytest.approx(0.0)
