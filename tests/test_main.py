"""homo-dp: the commands under one name, init, doctor, completion."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from homo_dp import main
from homo_dp.console.completion import SHELLS
from tests.commands import TABLE


def test_help_groups_the_commands_by_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [
        shown.index(word) for word in ("data scientist:", "train ", "party operator:", "budget ", "aggregator op")
    ]
    assert places == sorted(places)


def test_a_subcommand_is_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.main(["train", "--dry-run", "--quiet", "--config", "homo_lr_dpsgd"]) == 0
    with pytest.raises(SystemExit) as left:
        main.main(["infer", "--help"])
    assert left.value.code == 0
    assert main.main(["describe", str(TABLE), "--quiet"]) == 0
    assert "mean radius" in capsys.readouterr().out


def test_an_unknown_command_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["trian"]) == 2
    shown = capsys.readouterr().err
    assert "did you mean train?" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in main.commands())


def test_bash_completes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["completion", "bash"])
    code = capsys.readouterr().out + '\nCOMP_WORDS=(homo-dp inf) COMP_CWORD=1; _homo_dp; echo "${COMPREPLY[*]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["infer"]


def test_help_has_no_markup_and_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in main.commands():
        try:
            code = main.main([name, "--help"])
        except SystemExit as left:
            code = int(left.code or 0)
        shown = capsys.readouterr().out
        assert code == 0, name
        assert shown.startswith("usage: "), name
        assert "``" not in shown, name
