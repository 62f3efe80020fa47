"""A party whose cohort is secret tells no store elsewhere in which rounds it took part."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.runs.processes import discreet
from homo_dp.tracking.mlflow.tracker import MlflowTracker, open_tracker
from homo_dp.tracking.tracker import NoTracker, Tracker

RECIPE = Path(__file__).parents[2] / "conf" / "dp_fedavg.yaml"


def kept(folder: Path, recipe: Path | None, **tracking: object) -> Tracker:
    keys = {f"tracking.{key}": value for key, value in tracking.items()}
    config = load_config(recipe, {"output.indicatorFileName": str(folder / "i.json"), **keys})
    mechanism = build_mechanism(
        config, federation_facts(config, {"a": 400, "b": 400}, 4), noise_source(config)
    )
    tracker = discreet(open_tracker(config), config, mechanism)
    tracker.finish("FINISHED", {}, {})
    return tracker


def test_a_store_elsewhere_learns_nothing_about_a_drawn_cohort(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = "http://127.0.0.1:9"
    assert isinstance(kept(tmp_path, RECIPE, uri=elsewhere), NoTracker)
    assert "when this party was drawn" in caplog.text
    assert isinstance(kept(tmp_path, RECIPE, uri=elsewhere, private_metrics=True), MlflowTracker)
    assert isinstance(kept(tmp_path, RECIPE, uri=f"sqlite:///{tmp_path}/m.db"), MlflowTracker)
    # everybody takes part: nothing to hide
    assert isinstance(kept(tmp_path, None, uri=elsewhere), MlflowTracker)
    assert not list(tmp_path.iterdir())
