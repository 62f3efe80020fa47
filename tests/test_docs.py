"""The docs site: broken links out of docs/ are found, and files and objects that pages name are
there.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import homo_dp

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


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE)
    for name in set(homo_dp.__all__) - {"__version__"}:
        found = getattr(homo_dp, name)
        path = f"{found.__module__}.{found.__qualname__}"
        assert path in listed, f"homo_dp.{name} is not in docs/reference/api.md"


def pages() -> dict[str, str]:
    found = [
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
    ]
    return {path.name: path.read_text(encoding="utf-8") for path in found}


def test_files_that_pages_name_are_there() -> None:
    named = [
        (name, path)
        for name, text in pages().items()
        for path in re.findall(r"\b(?:homo_dp|tests)/[\w/]+\.py\b", text)
    ]
    assert len(named) > 20
    assert [(name, path) for name, path in named if not (ROOT / path).is_file()] == []


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or an object that one has."""
    module, _, name = dotted.rpartition(".")
    try:
        importlib.import_module(dotted)
        return True
    except ModuleNotFoundError:
        return hasattr(importlib.import_module(module), name)


def test_objects_that_pages_name_are_there() -> None:
    dotted = {
        found
        for text in pages().values()
        for found in re.findall(r"`(homo_dp\.[a-z_]+\.[\w.]*\w)`", text)
    }
    assert len(dotted) > 5
    assert [name for name in sorted(dotted) if not is_there(name)] == []


def test_the_readme_shows_what_the_default_recipe_says_today() -> None:
    """Rules of `train.auto` change now and then; a reader compares the first lines of a first
    run with the README's.
    """
    shown = [line.strip() for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()]
    said = homo_dp.plan(epsilon=4, settings={"data.embedded": "breast_cancer"}).notes
    for note in said:
        if note.startswith(("train.auto:", "to expect:")):
            assert note in shown
