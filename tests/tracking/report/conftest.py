"""A training that is reported on, in a folder of the test's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tracking.conftest import Trained
from tests.tracking.report.parts import Shell


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.fixture
def folder(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the outputs alone, without the ledger."""
    copied = tmp_path / "archive"
    shutil.copytree(trained.out, copied)
    config = copied / "numbers_config.yaml"
    config.write_text(
        config.read_text().replace(str(trained.folder / "ledger.sqlite"), "elsewhere.sqlite")
    )
    return copied
