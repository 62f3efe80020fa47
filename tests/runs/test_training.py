"""One training in this process: refused before it is tracked as running, and nothing is written
without a round.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.console.options import Interrupted, Screen
from homo_dp.core.errors import ConfigError
from homo_dp.privacy.errors import PrivacyError
from homo_dp.runs.training import check_rounds, prepared
from homo_dp.tracking.tracker import NoTracker


class Noting(NoTracker):
    """What a tracker was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, *given: Any, **named: Any) -> None:
        self.told.append("start")

    def finish(self, status: str, *given: Any, **named: Any) -> None:
        self.told.append(status)


def test_a_party_that_is_not_there_is_refused_before_a_run_is_tracked(tmp_path: Path) -> None:
    tracker = Noting()
    config = load_config(
        None, {"output.parties.nobody.modelFileName": "x", "privacy.ledger": str(tmp_path / "l")}
    )
    with (
        pytest.raises(ConfigError, match="no such party"),
        prepared(config, Screen(quiet=True), tracker),
    ):
        pass
    assert tracker.told == []


def test_a_run_that_privacy_refuses_is_tracked_as_refused(tmp_path: Path) -> None:
    tracker = Noting()
    config = load_config(None, {"privacy.delta": 0.5, "privacy.ledger": str(tmp_path / "l")})
    with pytest.raises(PrivacyError), prepared(config, Screen(quiet=True), tracker):
        pass
    assert tracker.told == ["start"]


def test_an_interruption_before_the_first_round_leaves_nothing() -> None:
    outcome = SimpleNamespace(interrupted=True, rounds=[])
    with pytest.raises(Interrupted, match="nothing was written"):
        check_rounds(outcome)  # type: ignore[arg-type]
