"""Continued models: what their weights tell already is stated, and what cannot be read counts as
not private.
"""

from typing import Any

import pytest

from homo_dp.runs.continuation import Earlier, ancestors_of, continued_statement

RECORDS = {"unit": "record", "neighbouring_relation": "add_or_remove_one"}
FIRST: dict[str, Any] = {
    "data": "clinic",
    "private": True,
    "epsilon": 2.0,
    "delta": 1e-5,
    **RECORDS,
}
RUN: dict[str, Any] = {
    "private": True,
    "epsilon": 1.0,
    "delta": 1e-6,
    "statement": "S.",
    "notes": [],
    **RECORDS,
}


def test_epsilons_of_runs_on_the_same_data_add_over_any_number_of_runs() -> None:
    second = continued_statement(RUN, Earlier({}, ancestors_of(FIRST)), "clinic")
    assert second["statement"].endswith(
        "together at most epsilon 3 at delta 1.1e-05 = 1e-05 + 1e-06."
    )
    third = continued_statement(
        RUN, Earlier({}, ancestors_of({**second, "data": "clinic"})), "clinic"
    )
    assert third["statement"].endswith(
        "together at most epsilon 4 at delta 1.2e-05 = 1e-05 + 1e-06 + 1e-06."
    )
    assert continued_statement(RUN, None, "clinic") == RUN


def test_other_data_and_other_units_are_not_added_up() -> None:
    other = continued_statement(RUN, Earlier({}, ancestors_of(FIRST)), "bank")
    assert other["statement"] == "S."
    assert "other data (clinic)" in other["notes"][0]
    users = continued_statement(RUN, Earlier({}, ancestors_of({**FIRST, "unit": "user"})), "clinic")
    kept = continued_statement(RUN, Earlier({}, ancestors_of({**FIRST, "epsilon": None})), "clinic")
    for found in (users, kept):
        assert found["statement"].endswith("the epsilons of all these runs add up.")


def test_a_file_that_does_not_name_its_data_counts_as_of_the_same() -> None:
    unnamed = continued_statement(RUN, Earlier({}, ancestors_of({**FIRST, "data": None})), "clinic")
    assert unnamed["statement"].endswith(
        "together at most epsilon 3 at delta 1.1e-05 = 1e-05 + 1e-06."
    )


@pytest.mark.parametrize(
    "damage",
    [
        {"epsilon": float("inf")},
        {"epsilon": "2"},
        {"epsilon": -1.0},
        {"epsilon": True},
        {"private": "yes"},
        {"delta": float("nan")},
        {"continues": "nobody"},
        {"continues": [1]},
        {"continues": [{}]},
    ],
)
def test_what_cannot_be_read_counts_as_not_private(damage: dict[str, Any]) -> None:
    found = ancestors_of({**FIRST, **damage})
    assert not all(one["private"] for one in found)
    assert [one["private"] for one in ancestors_of(FIRST)] == [True]
