"""Words about roles and transport: what is known is said, and what is not is not stated."""

from __future__ import annotations

import pytest

from homo_dp.tracking.report.run_files_schema import Setup
from homo_dp.tracking.report.setup_text import (
    NOT_STATED,
    aggregator_words,
    bounds_words,
    how_it_ran,
    parties_words,
    simulation_words,
)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (Setup(role="simulation"), "one process held the rows of all parties"),
        (Setup(role="aggregator", transport="nats"), "a process without rows of parties; messages"),
        (Setup(role="party", party="a", transport="my.module:Way"), "went over my.module:Way"),
        (Setup(), NOT_STATED),
    ],
)
def test_roles_and_transport(setup: Setup, words: str) -> None:
    assert words in how_it_ran(setup)


def test_an_aggregator_is_named_by_its_key_where_it_was_apart() -> None:
    assert aggregator_words(Setup()) is None
    assert "0a1b" in str(aggregator_words(Setup(role="party", aggregator="0a1b")))
    assert "same process" in str(aggregator_words(Setup(role="simulation")))


def test_a_party_tells_how_many_there_were() -> None:
    assert parties_words(Setup(role="party", parties=3), ["a"]).startswith("3 in the run")
    assert parties_words(Setup(role="aggregator", parties=2), ["a", "b"]) == "2: a, b"


def test_sources_of_bounds() -> None:
    assert bounds_words(None).startswith(NOT_STATED)
    own = {"source": "codebook", "given_by": "own config", "columns": {"age": "a law"}}
    assert bounds_words(own) == "codebook; stated by the party itself; age: a law"


def test_the_headline_of_a_simulation_names_epsilon_only_where_there_is_one() -> None:
    private, plain = simulation_words(private=True), simulation_words(private=False)
    assert private.startswith("This was a simulation: one process held the rows of all parties.")
    assert plain.endswith("sees all rows.")
    assert "epsilon" in private
    assert "epsilon" not in plain
