"""What the folders of runs say about them."""

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
    for error, state in ((PlanRefused("operator", "no"), "refused"), (ValueError("no"), "ended with an error")):
        with pytest.raises(ValueError, match="no"), kept_events(tmp_path / "loans"), told_errors(PlanRefused):
            raise error
        assert status_of(own)["runs"][0]["state"] == state


def test_a_run_that_was_told_to_end_is_stopped_and_not_in_error(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    for error in (KeyboardInterrupt("SIGTERM"), SystemExit(0)):  # the second is how Flower ends a ServerApp
        with pytest.raises(type(error)), kept_events(tmp_path / "loans"), told_errors():
            raise error
        assert status_of(own)["runs"][0]["state"] == "stopped"
