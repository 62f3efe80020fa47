"""What a run of statistics leaves."""

import json
from pathlib import Path

import pytest

from homo_dp.commands.stats import main


def test_mlflow_keeps_statistics_without_looking_for_a_training_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--ask", "rows", "--json", "--params", "tracking.uri=sqlite:///runs.db"]) == 0
    printed = capsys.readouterr()
    assert "refused a part" not in printed.err
    assert json.loads(printed.out)["mlflow_run"] is not None
