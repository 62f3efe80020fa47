"""Words about who ran what: the roles, the transport, and where bounds come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homo_dp.tracking.report.run_files_schema import Setup

NOT_STATED = "not stated"
_SIMULATION = (
    "This was a simulation: one process held the rows of all parties. Whoever runs that process "
    "sees all rows"
)
_TRANSPORTS = {"directory": "a shared folder", "nats": "a NATS queue", "flower": "Flower"}


def simulation_words(*, private: bool) -> str:
    """The headline of a run in one process: who saw the rows, and what its epsilon is about."""
    if not private:
        return f"{_SIMULATION}."
    return (
        f"{_SIMULATION}; epsilon is about what parties in processes of their own would send and "
        "about the model."
    )


def how_it_ran(setup: Setup) -> str:
    """The roles and the transport, for the facts of the run.

    >>> how_it_ran(Setup(role="party", transport="directory", party="a", parties=3))
    'party a, a process of its own; messages went over a shared folder'
    """
    way = f"messages went over {_TRANSPORTS.get(setup.transport, setup.transport)}"
    match setup.role:
        case "simulation":
            return "simulation: one process held the rows of all parties; no message left it"
        case "party":
            return f"party {setup.party}, a process of its own; {way}"
        case "aggregator":
            return f"aggregator, a process without rows of parties; {way}"
    return NOT_STATED


def aggregator_words(setup: Setup) -> str | None:
    """Which aggregator the run had, by its key; None in a simulation."""
    if setup.role == "simulation":
        return "none apart: a part of the same process"
    return None if setup.aggregator is None else f"the holder of the key {setup.aggregator}"


def parties_words(setup: Setup, names: list[str]) -> str:
    """How many parties there were, and of which this report is."""
    if setup.role == "party":
        return f"{setup.parties} in the run; this report is of {', '.join(names)} alone"
    return f"{len(names)}: {', '.join(names)}"


def bounds_words(bounds: Mapping[str, Any] | None) -> str:
    """Where bounds and categories come from, in general and for the columns that say it.

    >>> bounds_words({"source": "public", "shipped": "digits", "given_by": "plan"})
    'public: the description of digits that homo_dp ships; given by the plan of the aggregator'
    """
    found = bounds or {}
    source = str(found.get("source", NOT_STATED))
    if source == NOT_STATED:
        source += " (data.bounds_source)"
    if found.get("shipped"):
        source += f": the description of {found['shipped']} that homo_dp ships"
    by = {"plan": "given by the plan of the aggregator", "own config": "stated by the party itself"}
    given = by.get(str(found.get("given_by")))
    columns = found.get("columns")
    each = (
        [f"{name}: {text}" for name, text in columns.items()] if isinstance(columns, dict) else []
    )
    return "; ".join([source, *([given] if given else []), *each])
