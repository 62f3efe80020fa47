"""A party whose cohort is secret tells no store elsewhere in which rounds it took part."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.runs.processes import tells_who_was_drawn

RECIPE = Path(__file__).parents[2] / "conf" / "dp_fedavg.yaml"


def tells(folder: Path, recipe: Path | None, **tracking: object) -> bool:
    keys = {f"tracking.{key}": value for key, value in tracking.items()}
    config = load_config(recipe, {"output.indicatorFileName": str(folder / "i.json"), **keys})
    mechanism = build_mechanism(
        config, federation_facts(config, {"a": 400, "b": 400}, 4), noise_source(config)
    )
    return tells_who_was_drawn(config, mechanism)


def test_a_store_elsewhere_learns_nothing_about_a_drawn_cohort(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = "http://127.0.0.1:9"
    assert tells(tmp_path, RECIPE, uri=elsewhere)
    assert "when this party was drawn" in caplog.text
    assert not tells(tmp_path, RECIPE, uri=elsewhere, private_metrics=True)
    assert not tells(tmp_path, RECIPE, uri=f"sqlite:///{tmp_path}/m.db")
    # everybody takes part: nothing to hide
    assert not tells(tmp_path, None, uri=elsewhere)
