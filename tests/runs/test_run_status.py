"""What the folders of runs say about them."""

import json
from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.event_log import kept_events, told_errors
from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.runs.run_status import status as status_of


def test_a_run_that_its_operator_refused_is_called_refused(tmp_path: Path) -> None:
    own = load_config(None, {"party.name": "party_1", "party.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    for error, state in (
        (PlanRefused("operator", "no"), "refused"),
        (ValueError("no"), "ended with an error"),
    ):
        with (
            pytest.raises(ValueError, match="no"),
            kept_events(tmp_path / "loans"),
            told_errors(PlanRefused),
        ):
            raise error
        assert status_of(own)["runs"][0]["state"] == state


def test_a_run_that_was_told_to_end_is_stopped_and_not_in_error(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    for error in (
        KeyboardInterrupt("SIGTERM"),
        SystemExit(0),
    ):  # the second is how Flower ends a ServerApp
        with pytest.raises(type(error)), kept_events(tmp_path / "loans"), told_errors():
            raise error
        assert status_of(own)["runs"][0]["state"] == "stopped"


def test_runs_that_were_heard_of_last_come_first(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    for run, hour in (("loans-1", 9), ("loans-10", 11), ("loans-2", 10)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "lock").touch()
        event = {"time": f"2027-01-01T{hour:02}:00:00.000Z", "level": "INFO", "event": "replied"}
        (tmp_path / run / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert [run["run"] for run in status_of(own)["runs"]] == ["loans-10", "loans-2", "loans-1"]
