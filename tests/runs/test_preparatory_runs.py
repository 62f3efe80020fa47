"""Runs that learn something before a training: a step that is over is not asked again, and names
are its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.federation.sessions.party_session import STEPS
from homo_dp.runs import preparatory_runs
from homo_dp.runs.processes import learning_config, learning_screen


def test_a_step_that_is_over_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(None, {"federation.run": "r", "federation.state_dir": str(tmp_path)})
    place = tmp_path / "r-counts" / preparatory_runs.FOUND
    place.parent.mkdir()
    place.write_text(json.dumps({"questions": {}}))
    taken: list[Any] = []

    def with_counts(config: Config, found: Any, names: list[str]) -> Config:
        taken.append(found)
        return config

    monkeypatch.setattr(preparatory_runs, "with_counts", with_counts)
    monkeypatch.setattr(preparatory_runs, "AggregatorProcess", None)  # to ask again would fail
    assert preparatory_runs._learn(config, "counts", 0.1, Screen(quiet=True)) is config
    assert taken == [{"questions": {}}]


def test_a_step_has_a_run_and_files_of_its_own_and_is_not_tracked() -> None:
    config = load_config(None, {"federation.run": "r"})
    step = learning_config(config, "r-bounds", "bounds")
    assert step.federation.run == "r-bounds"
    assert step.output.indicatorFileName != config.output.indicatorFileName
    assert not step.tracking.enabled
    with pytest.raises(ValueError, match="run"):
        learning_config(config, "../r", "bounds")


def test_one_command_has_one_summary() -> None:
    assert not learning_screen(Screen(as_json=True)).as_json


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_named_as_a_step_can_have_none_and_is_told_so(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parties believe no word of a step before a step, so all sides waited for ever."""
    monkeypatch.setattr(preparatory_runs, "_learn", None)  # to ask anything would fail
    keys = {
        "federation.run": f"study-{step}",
        "data.scaling": "private",
        "privacy.target_epsilon": 4.0,
    }
    with pytest.raises(
        ConfigError, match=rf"federation\.run=study-{step}: .* end the name on another word"
    ):
        preparatory_runs.aggregate(load_config(None, keys), Screen(quiet=True))
