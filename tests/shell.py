"""Run a command in this process as a shell would: its exit code and what it printed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homo_dp import budget
from homo_dp.console import options as cli


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """The lines on stderr that say why it stopped."""
        return [
            line
            for line in self.err.splitlines()
            if line.startswith(("error:", "refused:", "interrupted", "bug:"))
        ]


def run_command(
    main: Callable[[Sequence[str] | None], int | None],
    arguments: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Finished:
    """Call ``main`` through the wrapper that gives exit codes."""
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    before: Any = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as stopped:
            cli.run(main)
    finally:
        signal.signal(signal.SIGTERM, before)
    shown = capsys.readouterr()
    return Finished(int(stopped.value.code or 0), shown.out, shown.err)


class CommandLine:
    """Runs our commands in the folder of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def run(
        self, main: Callable[[Sequence[str] | None], int | None], arguments: Sequence[str]
    ) -> Finished:
        """One command to its end."""
        return run_command(main, arguments, self.monkeypatch, self.capsys)


TABLE = Path(__file__).parents[1] / "data" / "breast_cancer_party_1_train.csv"


def budget_command(*arguments: str) -> int:
    """As `python -m homo_dp.budget` does it, in this process."""
    try:
        return budget.main(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except BaseException as error:
        return cli.report(error)
