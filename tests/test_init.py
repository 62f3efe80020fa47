"""homo-dp init: a project that loads, or nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from homo_dp import init
from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.train import main as train
from tests.shell import TABLE, CommandLine


def test_init_writes_a_project_whose_config_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.main(["bundled", "--yes", "--epsilon", "2", "--quiet"]) == 0
    bundled = load_config("bundled/config.yaml")
    assert bundled.privacy.target_epsilon == 2
    assert bundled.train.auto is True
    # so that the rules may take curves of numbers
    assert "name" not in bundled.model.model_fields_set
    arguments = [
        "own",
        "--yes",
        "--table",
        f"a={TABLE}",
        "--table",
        f"b={TABLE}",
        "--label",
        "y",
        "--quiet",
    ]
    assert init.main(arguments) == 0
    config = load_config("own/config.yaml")
    assert set(config.data.files) == {"a", "b"}
    assert "mean radius" in config.data.columns
    assert "no epsilon covers" in " ".join(Path("own/config.yaml").read_text().split())
    assert {path.name for path in Path("own/parties").iterdir()} == {"a", "b"}


def test_init_says_what_it_guessed_and_quotes_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a: b.csv").write_text("id,age,outcome\n1,40,no\n2,50,yes\n")
    assert init.main(["my trial", "--yes", "--table", "no=a: b.csv"]) == 0
    printed = capsys.readouterr().out
    assert (
        "guessed label=outcome: its name, and it has two values; change it in config.yaml if it is "
        "wrong" in printed
    )
    config = load_config("my trial/config.yaml")
    assert config.data.files == {"no": "../a: b.csv"}
    assert config.data.label == "outcome"
    assert "next: cd 'my trial', read README.md, then homo-dp train" in printed


def test_init_drafts_a_table_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("clinic.db") as opened:
        opened.executescript(
            "create table p (age int, y int); insert into p values (40, 0), (60, 1);"
        )
    assert init.main(["new", "--yes", "--quiet", "--table", "a=sqlite:///clinic.db#p"]) == 0
    assert load_config("new/config.yaml").data.files == {"a": "sqlite:///../clinic.db#p"}


def test_a_project_trains_in_its_own_folder_by_its_own_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.main(["trial", "--yes", "--quiet"]) == 0
    monkeypatch.chdir(tmp_path / "trial")
    config = Path("config.yaml")
    config.write_text(config.read_text().replace("target_epsilon: 4", "target_epsilon: 1"))
    done = CommandLine(monkeypatch, capsys).run(train, [])
    assert done.code == 0
    assert "config: config.yaml" in done.out.splitlines()[0]
    assert json.loads(Path("out/indicator.json").read_text())["privacy"]["epsilon"] <= 1
    assert Path("ledger.sqlite").exists()
    assert not Path("trial").exists()


def test_questions_are_asked_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("age,outcome\n40,no\n50,yes\n")
    answers = iter(["a=a.csv", "", "outcome", "2"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert init.main(["new", "--quiet"]) == 0
    config = load_config("new/config.yaml")
    assert (config.data.label, config.privacy.target_epsilon) == ("outcome", 2)


def test_init_refuses_what_is_there_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
