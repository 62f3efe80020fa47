"""The command of statistics: numbers, pictures, what it cost, and a training's config that is
asked with.
"""

import json
from pathlib import Path

import pytest

from homo_dp.commands.stats import main


def test_the_command_writes_numbers_pictures_and_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    params = "privacy.target_epsilon=1,tracking.enabled=false"
    ask = [
        "--ask",
        "rows,histograms,quantiles",
        "--columns",
        "mean radius",
        "--json",
        "--params",
        params,
    ]
    assert main(ask) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "out" / "indicator_statistics.json").read_text())
    assert printed["questions"] == written["questions"]
    assert printed["privacy"]["epsilon"] <= 1.0
    assert set(printed["questions"]) == {"rows", "histograms", "quantiles"}
    assert (
        (tmp_path / "out" / "indicator_histogram_mean_radius.png")
        .read_bytes()
        .startswith(b"\x89PNG")
    )
    assert "histogram" in " ".join(printed["files"])


def test_the_config_of_a_training_can_be_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path(__file__).resolve().parents[2] / "conf" / "homo_lr_dpsgd.yaml"
    monkeypatch.chdir(tmp_path)
    assert main(["--config", str(recipe), "--ask", "rows", "--dry-run"]) == 0
    assert "rows of all rows" in capsys.readouterr().out
    assert not (tmp_path / "ledger.sqlite").exists()
