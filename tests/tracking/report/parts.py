"""A training that is reported on, in a folder of the test's own."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from homo_dp import report
from tests.shell import Finished, run_command


class Shell:
    """Runs the command in a folder of the test's own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def report(self, *arguments: str) -> Finished:
        return run_command(
            report.main, [*arguments, "-o", "report.html"], self.monkeypatch, self.capsys
        )

    @property
    def text(self) -> str:
        """What a reader sees."""
        page = (self.folder / "report.html").read_text()
        return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<style>.*</style>", "", page)))


def change(path: Path, edit: Any) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))
