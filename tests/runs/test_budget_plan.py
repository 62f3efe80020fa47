"""Plans of a budget: what they cost, and what each knob changes."""

from __future__ import annotations

import pytest

from homo_dp.privacy.errors import PrivacyError
from homo_dp.runs.budget_plan import BudgetPlan, changes

STANDARD = BudgetPlan(total=60_000, drawn=256, epochs=15, delta=1e-5)


def test_noise_for_a_target_keeps_it() -> None:
    noise = STANDARD.noise_for(2.0)
    assert 0.99 * 2.0 <= STANDARD.epsilon(noise).quoted <= 2.0


@pytest.mark.parametrize(
    "options", [{"drawn": 70_000}, {"delta": 0.5}, {"epochs": -1.0}, {"total": 0}]
)
def test_plans_that_promise_nothing(options: dict[str, float]) -> None:
    with pytest.raises(PrivacyError):
        BudgetPlan(**{"total": 60_000, "drawn": 256, "epochs": 15, "delta": 1e-5, **options})  # type: ignore[arg-type]


def test_users_count_rounds() -> None:
    plan = BudgetPlan(total=1000, drawn=50, rounds=20)
    assert (plan.steps, plan.sample_rate, plan.names) == (20, 0.05, ("cohort", "population"))
    assert plan.epsilon(1.0).pld is not None
    fixed = BudgetPlan(total=1000, drawn=50, rounds=20, sampling="fixed", relation="replace_one")
    assert fixed.epsilon(1.0).pld is None


def test_each_knob_turns_the_right_way() -> None:
    found = {
        change.knob: change
        for change in changes(BudgetPlan(total=6000, drawn=256, epochs=3, delta=1e-5), 1.1)
    }
    assert list(found) == ["noise multiplier", "batch size", "epochs", "rows", "delta"]
    for knob, more_is_less in (
        ("noise multiplier", True),
        ("epochs", False),
        ("rows", True),
        ("delta", True),
    ):
        change = found[knob]
        assert change.result_at_half is not None
        assert change.result_at_twice is not None
        assert (change.result_at_twice < change.result_at_half) is more_is_less


def test_a_knob_that_cannot_be_turned_says_why() -> None:
    found = {
        change.knob: change
        for change in changes(BudgetPlan(total=300, drawn=256, epochs=1, delta=1e-5), 1.1)
    }
    assert found["batch size"].result_at_twice is None
    assert "must be at most" in found["batch size"].refusals[0]
