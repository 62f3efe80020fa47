"""homo-dp: the commands under one name, init, doctor, completion."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from homo_dp import doctor, main
from homo_dp.console.completion import SHELLS
from homo_dp.core import command_name
from tests.commands import TABLE


def test_help_groups_the_commands_by_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [
        shown.index(word)
        for word in ("data scientist:", "train ", "party operator:", "budget ", "aggregator op")
    ]
    assert places == sorted(places)


def test_a_subcommand_is_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.main(["train", "--dry-run", "--quiet", "--config", "homo_lr_dpsgd"]) == 0
    with pytest.raises(SystemExit) as left:
        main.main(["infer", "--help"])
    assert left.value.code == 0
    assert main.main(["describe", str(TABLE), "--quiet"]) == 0
    assert "mean radius" in capsys.readouterr().out


def test_a_command_is_called_what_the_user_typed(tmp_path: Path) -> None:
    python, script = (
        [sys.executable, "-m", "homo_dp.keys"],
        [sys.executable, "-m", "homo_dp.main", "keys"],
    )
    for typed, name in ((python, "python -m homo_dp.keys"), (script, "homo-dp keys")):
        shown = subprocess.run(
            [*typed, "new", "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert shown.startswith(f"usage: {name} new ")
        done = subprocess.run([*typed, "nwe"], capture_output=True, text=True, cwd=tmp_path)
        assert done.stderr.startswith(f"{name}: error: ")


@pytest.mark.parametrize("name", [name for name in main.commands() if name != "completion"])
def test_no_help_of_the_script_speaks_of_modules(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_name, "_by_script", True)
    with pytest.raises(SystemExit):
        main.main([name, "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: homo-dp {name} ")
    assert "python -m homo_dp" not in shown


def test_an_unknown_command_is_one_line_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    code = (
        capsys.readouterr().out
        + '\nCOMP_WORDS=(homo-dp inf) COMP_CWORD=1; _homo_dp; echo "${COMPREPLY[*]}"'
    )
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


def test_doctor_knows_every_extra() -> None:
    with open(Path(__file__).parents[1] / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(extras) - {"dev"}
