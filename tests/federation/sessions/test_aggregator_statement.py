"""What an aggregator can say about privacy: a bound from the plan, and nothing about rows that
were not declared.
"""

from typing import Any

from homo_dp.federation.sessions.aggregator_statement import promised_plans, promised_statement
from homo_dp.federation.sessions.build import build_aggregator, build_mechanism, noise_source
from homo_dp.federation.sessions.plan import facts_for_aggregator, make_plan
from tests.federation.small import RUN, small_config, zeros


def statement(rows: dict[str, int | None], **overrides: Any) -> dict[str, Any]:
    config = small_config(**overrides)
    plan = make_plan(config, rows, {})
    mechanism = build_mechanism(config, facts_for_aggregator(config, plan, 4), noise_source(config))
    return promised_statement(
        config, build_aggregator(config, RUN, zeros(), mechanism, None), plan, 2
    )


def test_with_declared_rows_it_is_what_the_parties_calibrate() -> None:
    found = statement(
        {"a": 100, "b": 200}, privacy__target_epsilon=3.0, privacy__noise_multiplier=None
    )
    assert 2.9 < found["parties"]["a"]["epsilon_pld"] <= 3.0
    assert found["parties"]["b"]["rows"] == 200
    assert "upper bound" in found["basis"]


def test_plans_are_known_with_the_rows_and_with_privacy_only() -> None:
    config = small_config(privacy__target_epsilon=3.0, privacy__noise_multiplier=None)
    for rows, known in (({"a": 100, "b": 200}, ["a", "b"]), ({"a": 100, "b": None}, None)):
        plan = make_plan(config, rows, {})
        mechanism = build_mechanism(
            config, facts_for_aggregator(config, plan, 4), noise_source(config)
        )
        found = promised_plans(
            config, build_aggregator(config, RUN, zeros(), mechanism, None), plan
        )
        assert (None if found is None else list(found)) == known


def test_without_them_it_is_the_promised_target() -> None:
    found = statement(
        {"a": 100, "b": None}, privacy__target_epsilon=3.0, privacy__noise_multiplier=None
    )
    assert found["epsilon"] == 3.0
    assert (found["neighbouring_relation"], found["quoted_observer"]) == (
        "add_or_remove_one",
        "aggregator",
    )
    assert found["parties"]["b"] | {"epsilon_pld": None, "delta": None} == dict.fromkeys(
        found["parties"]["b"]
    )
    assert "at most epsilon 3" in found["statement"]


def test_noise_by_a_declared_smallest_table_needs_no_rows() -> None:
    settings = {
        "privacy__mechanism": "nbafl",
        "privacy__noise_multiplier": None,
        "nbafl__min_dataset_size": 50,
    }
    hidden, declared = (statement({"a": rows, "b": rows}, **settings) for rows in (None, 100))
    assert hidden["epsilon"] == declared["epsilon"] > 0
    assert hidden["statement"] == declared["statement"]
    assert (hidden["parties"]["a"]["rows"], hidden["rows"]) == (None, "kept by the parties")
    assert hidden["parties"]["a"]["steps"] is None


def test_a_fixed_noise_multiplier_promises_no_number() -> None:
    found = statement({"a": None})
    assert found["epsilon"] is None
    assert "Each party knows" in found["statement"]


def test_a_run_without_privacy_says_so() -> None:
    found = statement({"a": None}, privacy__mechanism="none", privacy__noise_multiplier=None)
    assert found["statement"].startswith("NOT PRIVATE")
    assert (found["private"], found["epsilon"]) == (False, None)
