"""The command that drafts a data block: its exit codes, and one line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.data.__main__ import main
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


@pytest.mark.parametrize(
    "arguments", [[], ["undescribe"], ["describe"], ["describe", "a", "--colour"]]
)
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
