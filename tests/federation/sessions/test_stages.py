"""How a stage of a run is made from its plan and from what was found."""

from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.federation.sessions.plan_schema import PlanRefused
from homo_dp.federation.sessions.stages import (
    TYPICAL_CATEGORIES,
    TYPICAL_ROWS,
    Found,
    estimates,
    read_found,
    stage_of,
    with_all_columns,
    with_fixed_sampler,
    with_settings,
)

COLUMNS = {"x": {"bounds": [-1e6, 1e6]}, "w": {"levels": "private"}}
ROWS = {"a": None, "b": 700}
FOUND = Found(levels={"w": ("p", "q")}, rows={"a": 400}, bounds={"x": (-3.0, 5.0)})


def config(**overrides: Any) -> Config:
    keys = {
        "data.columns": COLUMNS,
        "data.scaling": "private",
        "data.counts": "private",
        "privacy.target_epsilon": 8.0,
    }
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_config(None, keys | named)


def test_a_config_that_estimates_nothing_has_one_stage() -> None:
    plain = load_config(None, {})
    stage = stage_of(plain, {"a": 10})
    assert stage.config is plain
    assert stage.reading is plain
    assert not stage.estimating
    assert stage.estimates == {}
    assert with_all_columns(plain) is plain
    assert with_fixed_sampler(plain, {"a": 10}) is plain


def test_public_figures_stand_for_what_is_not_known() -> None:
    stage = stage_of(config(), ROWS)
    assert stage.estimating
    assert stage.rows == {"a": TYPICAL_ROWS, "b": 700}
    levels = stage.config.data.columns["w"].levels
    assert levels is not None
    assert len(levels) == TYPICAL_CATEGORIES
    assert stage.config.data.columns["x"].bounds == (-1e6, 1e6)
    assert estimates(stage.config) == ()
    assert stage.reading.privacy.asks_raw_values
    small = stage_of(config(privacy__delta=0.005), {"a": None})
    assert small.rows == {"a": 199}  # with more, delta would be too large


def test_what_was_found_takes_their_place_and_no_round_changes() -> None:
    first, after = stage_of(config(), ROWS), stage_of(config(), ROWS, FOUND, "study")
    assert not after.estimating
    assert after.rows == {"a": 400, "b": 700}
    assert after.reading is after.config
    assert after.config.data.columns["w"].levels == ("p", "q")
    assert after.config.data.columns["x"].source == "privately estimated in run study"
    assert after.config.data.bounds_source == "private"
    assert estimates(after.config) == ()
    assert after.estimates == first.estimates


def test_the_sampler_is_fixed_before_a_count_is_known() -> None:
    asked = config(train__auto=False, train__batch_size=50, train__local_epochs=2)
    fixed = with_fixed_sampler(asked, {"a": None, "b": None}).train
    assert fixed.sample_rate == 0.05
    assert (fixed.batch_size, fixed.local_epochs, fixed.local_steps) == (None, None, 40)
    given = config(train__sample_rate=0.2)
    assert with_fixed_sampler(given, ROWS) is given


def test_settings_that_do_not_price_go_with_what_was_found() -> None:
    found = with_settings(FOUND, {"privacy.max_grad_norm": 0.25})
    assert read_found(config(), ROWS, found.to_json()) == found
    assert stage_of(config(), ROWS, found).config.privacy.max_grad_norm == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": {"a": 0}},
        {"rows": {"b": 5}},
        {"bounds": {"x": [-1e7, 5.0]}},
        {"bounds": {"x": [5.0, -3.0]}},
        {"levels": {"w": []}},
        {"settings": {"train.rounds": 3.0}},
        {"settings": {"privacy.max_grad_norm": float("nan")}},
        {"noise": 1.0},
    ],
)
def test_findings_that_do_not_fit_the_plan_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanRefused):
        read_found(config(), ROWS, FOUND.to_json() | change)


@pytest.mark.parametrize("raw", [None, 3, "x", [], [1], {"levels": 3}])
def test_what_is_no_finding_is_refused(raw: object) -> None:
    with pytest.raises(PlanRefused):
        read_found(config(), ROWS, raw)
