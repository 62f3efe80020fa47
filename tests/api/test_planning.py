"""A plan costs what the run then costs, and needs no rows."""

from __future__ import annotations

from typing import Any

import pytest

import homo_dp
from homo_dp.core.errors import ConfigError
from tests.api.parts import QUICK, table


def test_a_plan_costs_what_the_run_then_costs() -> None:
    rows = {"a": 160, "b": 120}
    settings = {**QUICK, "data.rows": rows}
    planned = homo_dp.plan(
        {"a": table(200, 1), "b": table(150, 2)},
        label="outcome",
        epsilon=3,
        bounds=(0, 10),
        settings=settings,
    )
    assert planned.epsilon is not None
    assert planned.epsilon <= 3
    assert planned.refused is None
    declared = homo_dp.plan(
        rows=rows,
        label="outcome",
        epsilon=3,
        settings={**QUICK, "data.columns": {"age": {"bounds": [0, 1]}}},
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


def test_rows_of_frames_are_counted_and_the_plan_reads_as_text() -> None:
    wanted: dict[str, Any] = {
        "label": "outcome",
        "epsilon": 3,
        "bounds": (0, 10),
        "classes": ["well", "ill"],
    }
    planned = homo_dp.plan(
        {"a": table(200, 1), "b": table(150, 2)}, settings={"data.test_fraction": 0.0}, **wanted
    )
    assert planned.parties["rows"].tolist() == [200, 150]
    said = repr(planned).splitlines()
    assert said[0].startswith("Plan: epsilon 2.99")
    assert said[1].startswith("  a: rows 200, steps ")
    assert "releases:" in said
    one = homo_dp.plan(table(200, 1), settings={"data.partition.parties": 2}, **wanted)
    assert list(one.parties.index) == ["party_1", "party_2"]
