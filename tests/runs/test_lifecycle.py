"""A tracked run ends once, whatever ends it, and every run is shown in one order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.console.screen import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.runs import lifecycle
from homo_dp.runs.lifecycle import Ending, Life, Table
from homo_dp.tracking.tracker import NoTracker

STATEMENT = {"statement": "Epsilon is 1."}


class Noting(NoTracker):
    """Keeps how runs ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, dict[str, str]]] = []

    def finish(self, status: str, files: Any, tags: Any, metrics: Any = None) -> str:
        self.ends.append((status, dict(tags)))
        return "run-7"


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Noting:
    noting = Noting()
    monkeypatch.setattr(lifecycle, "open_tracker", lambda config: noting)
    return noting


def test_a_run_that_fails_is_tracked_with_its_reason(tracker: Noting) -> None:
    with (
        pytest.raises(ConfigError),
        Life(load_config(None), Screen(quiet=True)),
    ):
        raise ConfigError("train.rounds=0: must be above 0")
    assert tracker.ends == [("FAILED", {"reason": "train.rounds=0: must be above 0"})]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_stopped_is_tracked_as_killed(
    tracker: Noting, stop: type[BaseException]
) -> None:
    with pytest.raises(stop), Life(load_config(None), Screen(quiet=True)):
        raise stop
    assert tracker.ends == [("KILLED", {})]


def test_an_interrupted_run_with_a_model_is_tracked_as_killed_with_its_statement(
    tracker: Noting,
) -> None:
    with Life(load_config(None), Screen(quiet=True)) as life:
        assert life.track_end(Ending(STATEMENT, {}, (), {}, interrupted=True)) == "run-7"
    assert tracker.ends == [("KILLED", {"statement": "Epsilon is 1."})]


def test_an_ending_is_shown_as_tables_warnings_guarantee_and_files(
    tracker: Noting, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = Ending(
        statement=STATEMENT,
        files={"model": Path("m.safetensors"), "histogram_age": Path("age.png")},
        guarantee=["Epsilon is 1."],
        summary={},
        tables=[Table("privacy", ["party"], [["a"]])],
        warnings=["the model is not better than a constant"],
        lines=["accuracy 0.5"],
    )
    with Life(load_config(None, {"tracking.uri": "sqlite:///m.db"}), Screen()) as life:
        life.finish(ending)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-6:] == [
        "a",
        "accuracy 0.5",
        "Epsilon is 1.",
        "model: m.safetensors",
        "pictures: 1 files beside it, such as age.png",
        "MLflow run: run-7 in sqlite:///m.db",
    ]
    assert "the model is not better than a constant" in shown.err
