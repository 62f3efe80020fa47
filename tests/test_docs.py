"""The docs site: the hook that checks links out of docs/ finds a broken one."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_to_the_repository_are_checked_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    file = SimpleNamespace(abs_src_path=str(ROOT / "docs" / "extend.md"), src_path="extend.md")
    page, config = SimpleNamespace(file=file), {"docs_dir": str(ROOT / "docs")}
    with caplog.at_level(logging.WARNING):
        text = hook().on_page_markdown("[code](../homo_dp/train.py) [page](data.md)", page, config)
        assert text == "code (`homo_dp/train.py`) [page](data.md)"
        assert caplog.records == []
        hook().on_page_markdown("[gone](../homo_dp/no_such.py)", page, config)
    assert "no_such.py" in caplog.text


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in listed and not page.startswith("adr/")] == []
