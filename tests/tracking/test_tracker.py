"""Trackers: the interface is the same with and without MLflow."""

import inspect
from pathlib import Path

from homo_dp.config.load import load_config
from homo_dp.tracking.mlflow.tracker import MlflowTracker, open_tracker
from homo_dp.tracking.tracker import NoTracker, Tracker


def test_both_trackers_take_what_the_interface_says() -> None:
    for name in ("start", "log_round", "draw", "finish"):
        asked = list(inspect.signature(getattr(Tracker, name)).parameters)
        for kind in (NoTracker, MlflowTracker):
            assert list(inspect.signature(getattr(kind, name)).parameters) == asked, (kind, name)


def test_nothing_is_opened_where_tracking_is_off(tmp_path: Path) -> None:
    config = load_config(
        None, {"tracking.enabled": False, "output.indicatorFileName": str(tmp_path / "i.json")}
    )
    assert isinstance(open_tracker(config), NoTracker)
    assert not list(tmp_path.iterdir())
