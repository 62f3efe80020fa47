"""Refused messages: counted by sender, and no sender can fill the log."""

from __future__ import annotations

import logging

import pytest

from homo_dp.federation.protocol.refusals import STRANGERS, Refusals


def test_a_flood_costs_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals({"a"})
    with caplog.at_level(logging.WARNING):
        for _ in range(5000):
            refusals.note("a", "a message", "why")
    assert refusals.counts["a"] == 5000
    assert len(caplog.records) == 10 + 2  # the first ten, then at 100 and at 1000


def test_made_up_names_take_no_memory() -> None:
    refusals = Refusals({"a"})
    for number in range(1000):
        refusals.note(f"made up {number}", "a message", "why")
    assert dict(refusals.counts) == {STRANGERS: 1000}


def test_names_and_reasons_reach_the_log_as_one_printable_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Refusals(set()).note("x", "a\nmessage", "\x1b[2J", count=3)
    (record,) = caplog.records
    assert record.getMessage() == "refused a\\nmessage and 2 more: \\x1b[2J"
