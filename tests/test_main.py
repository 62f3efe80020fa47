"""homo-dp: the commands under one name, init, doctor, completion."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from homo_dp import doctor, main
from homo_dp.console.completion import SHELLS
from homo_dp.core import command_name
from homo_dp.core.errors import ConfigError
from tests.shell import TABLE


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
    assert set(doctor.EXTRAS) == set(extras) - {"dev", "docs"}  # of a checkout


def test_help_names_docs_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = main.usage().rpartition("Docs: ")[2]
    assert Path(named).is_file()
    # an installed wheel, beside another package that has a folder docs
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").touch()
    monkeypatch.setattr(main, "__file__", str(tmp_path / "homo_dp" / "main.py"))
    assert "source distribution" in main.usage()
    assert "index.md" not in main.usage()


def test_help_of_a_command_lists_exit_codes_once() -> None:
    for name, module in main.commands().items():
        if module:
            text = importlib.import_module(module).make_parser().format_help()
            assert text.count("exit codes:") <= 1, name
    own = importlib.import_module("homo_dp.commands.audit").make_parser().format_help()
    assert "1 it was refuted" in own


FIRST_LINES = [
    "train",
    "train --dry-run",
    "infer --params modelFileName=model",
    "infer --params modelFileName=model --data test.csv",
    "stats --ask rows",
    "stats --ask rows --dry-run",
    "audit --runs 40 --jobs 1",
    "tune --range train.learning_rate=0.1:1 --trials 1 --jobs 1",
    "compare --vary train.rounds=1,2 --jobs 1",
    "party --dry-run",
]


@pytest.mark.parametrize("line", FIRST_LINES)
def test_the_first_line_of_a_run_says_on_what_it_works(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data, parties with their rows, model and configuration."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(
        "data: {files: {a: a.csv}, name: ward, test_file: {a: test.csv}, rows: {a: 60},"
        " public_test: true, columns: {x: {bounds: [0, 10]}}, classes: [0, 1]}\n"
        "party: {name: a}\n"
        "federation: {run: r}\n"
        "tracking: {enabled: false}\n"
    )
    rows = "".join(f"{n % 10},{n % 2}\n" for n in range(60))
    for name in ("a.csv", "test.csv"):
        Path(name).write_text(f"x,y\n{rows}")
    quick = ["--params", "train.rounds=1,output.modelFileName=model"]
    assert main.main(["train", *quick, "--quiet"]) == 0
    capsys.readouterr()
    main.main(line.split() + (quick if line == "train" else []))
    first = capsys.readouterr().out.splitlines()[0]
    command = line.partition(" ")[0]
    data, _, rest = first.partition("; ")
    assert data == ("data: test.csv" if command == "infer" else "data: ward")
    assert first.endswith("; config: config.yaml")
    if command == "infer":
        assert rest.startswith("model: model (logistic_regression)")
    else:
        assert rest.startswith("1 party (a 60 rows); ")
        asked = {"stats": "statistics: rows", "party": "model: by the aggregator's plan"}
        assert asked.get(command, "model: logistic_regression") in rest


def test_a_module_with_a_command_of_its_own_is_a_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`homo-dp data describe` for `python -m homo_dp.data describe`."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x,y\n" + "".join(f"{n % 10},{n % 2}\n" for n in range(60)))
    assert main.main(["data", "describe", "a.csv", "-o", "a.yaml", "--quiet"]) == 0
    assert "    x: {" in Path("a.yaml").read_text()
    assert main.main(["data", "describe", "nothere.csv", "-o", "b.yaml"]) == 2
    assert not Path("b.yaml").exists()
    capsys.readouterr()
    assert main.main(["describe"]) == 2
    assert "no config.yaml is here; give the tables" in capsys.readouterr().err
    Path("config.yaml").write_text("data: {files: {north: a.csv}, columns: {x: {bounds: [0, 9]}}}")
    assert main.main(["describe"]) == 0
    shown = capsys.readouterr()
    assert "north: a.csv" in shown.out
    assert shown.err.startswith("tables: north=a.csv; config: config.yaml\n")
    with pytest.raises(SystemExit) as left:
        main.main(["data"])
    assert left.value.code == 2


def test_describe_takes_the_tables_of_a_named_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("x,y\n" + "".join(f"{n % 10},{n % 2}\n" for n in range(60)))
    Path("config.yaml").write_text("services: {web: 1}")
    assert main.main(["describe"]) == 2
    assert "name the configuration to use with --config FILE" in capsys.readouterr().err
    Path("other.yaml").write_text("data: {files: {south: b.csv}, columns: {x: {bounds: [0, 9]}}}")
    assert main.main(["describe", "--config", "other.yaml"]) == 0
    shown = capsys.readouterr()
    assert "south: b.csv" in shown.out
    assert shown.err.startswith("tables: south=b.csv; config: other.yaml\n")
    Path("other.yaml").write_text("model: {name: mlp}")
    for typed, answer in (
        (["--config", "other.yaml"], "other.yaml names no tables"),
        (["--config", "other.yaml", "a.csv"], "give one of them"),
    ):
        assert main.main(["describe", *typed]) == 2
        assert answer in capsys.readouterr().err


def test_an_error_in_the_config_of_the_working_folder_names_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its user may not know that it is read; it may be of another program."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("data: {dir: /srv/web}")
    for command in ("train", "infer", "stats", "audit", "compare"):
        with pytest.raises(
            ConfigError, match=r"^data\.dir: unknown key.*; config\.yaml of this fol"
        ):
            main.main([command, *(["--vary", "train.rounds=1"] if command == "compare" else [])])
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
