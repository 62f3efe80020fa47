"""homo-dp init: a project that loads, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp import init
from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from tests.commands import TABLE


def test_init_writes_a_project_whose_config_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.main(["bundled", "--yes", "--epsilon", "2", "--quiet"]) == 0
    bundled = load_config("bundled/config.yaml")
    assert bundled.privacy.target_epsilon == 2
    assert bundled.train.auto is True
    arguments = ["own", "--yes", "--table", f"a={TABLE}", "--table", f"b={TABLE}", "--label", "y", "--quiet"]
    assert init.main(arguments) == 0
    config = load_config("own/config.yaml")
    assert set(config.data.files) == {"a", "b"}
    assert "mean radius" in config.data.columns
    assert "LEAK" in Path("own/config.yaml").read_text()
    assert {path.name for path in Path("own/parties").iterdir()} == {"a", "b"}


def test_init_refuses_what_is_there_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/kept.txt").write_text("kept")
    with pytest.raises(ConfigError, match="not empty"):
        init.main(["full", "--yes"])
    with pytest.raises(ConfigError, match="no such file"):
        init.main(["new", "--yes", "--table", "a=missing.csv"])
    with pytest.raises(ConfigError, match="above 0"):
        init.main(["new", "--yes", "--epsilon", "0"])
    assert not Path("new").exists()
