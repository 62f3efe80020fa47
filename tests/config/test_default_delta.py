"""The delta of a run whose user sets none."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homo_dp.config.load import load_config
from homo_dp.config.privacy import default_delta
from homo_dp.core.errors import ConfigError
from homo_dp.federation.sessions.plan import agree, make_plan


@given(st.integers(1, 10**12))
def test_it_is_the_largest_power_of_ten_at_or_below_a_tenth_of_one_row(rows: int) -> None:
    delta = Fraction(str(default_delta(rows)))
    assert delta * 10 * rows <= 1
    assert delta <= Fraction(1, 10**5)
    assert delta * 10 * 10 * rows > 1 or delta == Fraction(1, 10**5)
    assert math.log10(default_delta(rows)) == pytest.approx(round(math.log10(default_delta(rows))))


@pytest.mark.parametrize(
    ("rows", "delta"),
    [(None, 1e-5), (1, 1e-5), (10_000, 1e-5), (10_001, 1e-6), (100_000, 1e-6), (125_000, 1e-7)],
)
def test_values_at_the_borders(rows: int | None, delta: float) -> None:
    assert default_delta(rows) == delta


def test_the_largest_declared_count_decides_and_a_delta_that_is_set_is_kept() -> None:
    rows = {"data.files.a": "a.csv", "data.files.b": "b.csv", "data.rows.a": 40}
    assert load_config(None, rows | {"data.rows.b": 300_000}).delta == 1e-7
    assert load_config(None, rows | {"data.rows.b": 300_000, "privacy.delta": 3e-6}).delta == 3e-6
    with pytest.raises(ConfigError, match="delta=1e-05: must be below 1 / data"):
        load_config(None, rows | {"data.rows.b": 300_000, "privacy.delta": 1e-5})


def test_users_count_where_a_user_is_hidden() -> None:
    keys: dict[str, Any] = {
        "privacy.mechanism": "dp_fedavg",
        "privacy.cohort_size": 100,
        "privacy.trust_aggregator": True,
        "data.rows.a": 10,
    }
    assert load_config(None, keys | {"privacy.population": 60_000}).delta == 1e-6
    assert load_config(None, keys).delta == 1e-5


def test_the_plan_carries_it_and_a_party_keeps_the_smaller_one() -> None:
    asked = load_config(
        None, {"data.columns_from": "digits", "federation.run": "r", "data.rows.b": 300_000}
    )
    plan = make_plan(asked, {"b": 300_000}, {})
    assert plan["privacy"]["delta"] == 1e-7
    own = {"data.files.a": "a.csv", "federation.run": "r"}
    assert agree(load_config(None, own), plan).delta == 1e-7
    assert agree(load_config(None, own | {"privacy.delta": 1e-9}), plan).delta == 1e-9
    large = load_config(None, own | {"data.rows.a": 20_000_000})
    assert agree(large, plan).delta == 1e-9
