"""A plan costs what the run then costs, and needs no rows."""

from __future__ import annotations

import pytest

import homo_dp
from homo_dp.core.errors import ConfigError
from tests.api.parts import QUICK, table


def test_a_plan_costs_what_the_run_then_costs() -> None:
    rows = {"a": 160, "b": 120}
    settings = {**QUICK, "data.rows": rows}
    planned = homo_dp.plan(
        {"a": table(200, 1), "b": table(150, 2)}, label="outcome", epsilon=3, bounds=(0, 10), settings=settings
    )
    assert planned.epsilon is not None
    assert planned.epsilon <= 3
    assert planned.refused is None
    declared = homo_dp.plan(
        rows=rows, label="outcome", epsilon=3, settings={**QUICK, "data.columns": {"age": {"bounds": [0, 1]}}}
    )
    assert declared.epsilon == pytest.approx(planned.epsilon)


def test_a_plan_needs_no_tables() -> None:
    bounds = {"age": (0, 120), "dose": (0, 50)}
    planned = homo_dp.plan(rows={"n": 4000, "s": 2500}, label="outcome", epsilon=2, bounds=bounds)
    assert list(planned.parties.index) == ["n", "s"]
    assert planned.epsilon is not None
    assert planned.epsilon <= 2
    with pytest.raises(ConfigError, match="bounds by column"):
        homo_dp.plan(rows={"n": 4000}, label="outcome", epsilon=2, bounds=(0, 1))
