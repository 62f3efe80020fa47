"""The command that drafts a data block: its exit codes, and one line for what is wrong."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.data.__main__ import main
from homo_dp.train import main as train
from tests.data.parts import people, save


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, "t.csv", people(20))
    assert main(["describe", path]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("# WARNING")
    assert "WARNING" in printed.err
    assert main(["describe", path, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["describe", str(tmp_path / "absent.csv")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "no such file" in printed.err


def test_the_draft_of_two_files_trains_by_the_command_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for party in "ab":
        save(tmp_path, f"{party}.csv", people(80))
    assert main(["describe", "a.csv", "b.csv", "-o", "my draft.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    ending = printed.err.splitlines()[-1]
    command = shlex.split(ending.removeprefix("next: python -m homo_dp."))
    assert command == ["train", "--config", "my draft.yaml"]
    assert train([*command[1:], "--params", "train.rounds=1,tracking.enabled=false"]) == 0
    assert "Epsilon does not cover bounds" in capsys.readouterr().out
    privacy = json.loads(Path("out/indicator.json").read_text())["privacy"]
    assert set(privacy["parties"]) == {"a", "b"}
    assert main(["describe", "a.csv", "-o", "my draft.yaml"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_draft_of_a_table_with_many_label_values_trains_a_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = people(80)
    table["price"] = [17.5 + 3.25 * number for number in range(len(table))]
    save(tmp_path, "a.csv", table)
    assert main(["describe", "a.csv", "--label", "price", "-o", "a.yaml"]) == 0
    assert train(["--config", "a.yaml", "--dry-run", "--quiet"]) == 0
    assert load_config("a.yaml").model.name == "linear_regression"


def test_no_command_is_printed_that_could_not_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, "t.csv", people(20))
    assert main(["describe", path, "--label", "none", "-o", str(tmp_path / "t.yaml")]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("next: name the label column")


@pytest.mark.parametrize("arguments", [[], ["undescribe"], ["describe", "a", "--colour"]])
def test_wrong_arguments_leave_with_2_and_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_names_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["describe", "--help"])
    assert left.value.code == 0
    assert "python -m homo_dp.data describe" in capsys.readouterr().out
