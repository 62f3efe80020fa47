"""Events of a run in a file: small, private, and about the round they belong to."""

from pathlib import Path

import pytest

from homo_dp.console.options import Screen
from homo_dp.core.event_log import about, kept_events, read_events


def test_events_of_a_run_are_kept_small_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homo_dp.core.event_log._MOST_BYTES", 2000)
    with kept_events(tmp_path):
        about(run="loans", round=1, party="party_1")
        for number in range(100):
            Screen(quiet=True).line(f"line {number}")
    about(run=None, round=None, party=None)
    events = read_events(tmp_path)
    assert events[-1]["event"] == "line 99"
    assert (events[-1]["run"], events[-1]["round"], events[-1]["party"]) == ("loans", 1, "party_1")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6000
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
