"""What ``make test-pages`` runs is every command block of README and of the tutorials, and a command
that fails is found.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from pipelines.try_install import ROOT
from tests.pasted_commands import (
    HANDLED,
    INTERPRETER,
    PAGES,
    PRELUDE,
    RUN,
    SHELL_LINE,
    SHOWN,
    Pasted,
    Place,
    blocks_of,
    commands_of,
    retry,
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    blocks = (block.text for block in blocks_of(text_of(page)) if block.language == "sh")
    return [command for text in blocks for command in commands_of(text)]


def test_every_tutorial_is_run() -> None:
    shown = re.search(r"^nav:\n(?:.|\n)*", text_of("mkdocs.yml"), re.MULTILINE)
    assert shown is not None
    nav = yaml.safe_load(shown[0])["nav"]
    (tutorials,) = (part["Tutorials"] for part in nav if "Tutorials" in part)
    pages = {f"docs/{page}" for entry in tutorials for page in entry.values()}
    assert pages | {"README.md"} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_code_is_run_or_said_to_be_shown_only(page: str) -> None:
    """An indented block would be neither."""
    blocks = blocks_of(text_of(page))
    assert {block.language for block in blocks} <= {*RUN, *SHOWN}
    assert any(block.language in RUN for block in blocks)
    prose = re.sub(r"(?ms)^( *)```\w*\n.*?^\1```$", "", text_of(page))
    assert re.findall(r"^\n {4,}\S.*$", prose, re.MULTILINE) == []
    assert "```" not in prose


def test_every_exception_is_a_command_of_a_page() -> None:
    assert set(HANDLED) <= {command for page in PAGES for command in commands(page)}


def test_the_chinese_readme_has_the_commands_of_the_readme() -> None:
    assert set(commands("docs/zh/README.md")) <= set(commands("README.md"))
    assert len(commands("docs/zh/README.md")) > 20


def test_a_shell_that_is_pasted_into_keeps_its_state_and_says_what_failed(tmp_path: Path) -> None:
    place = Place(tmp_path, os.environ)
    place.checkout.mkdir()
    shell = Pasted(["bash"], SHELL_LINE, place, "shell")
    try:
        assert shell.paste(PRELUDE) == 0
        assert shell.paste("mkdir inner && cd inner && given=3") == 0
        assert shell.paste('test "$given" = 3 && test "$(basename "$PWD")" = inner') == 0
        assert shell.paste("ls nothere") == 2
        assert "nothere" in shell.log.read_text()
        assert [shell.paste(line) for line in ("true &", "(exit 7) &", "wait")] == [0, 0, 7]
        assert shell.paste("echo once >> tries") == 0
        assert retry(shell, "echo again >> tries && test $(wc -l < tries) = 3", 0) == 0
        assert shell.paste("exit 5") == 5
    finally:
        shell.close()
    assert shell.process.poll() is not None


def test_blocks_of_python_share_their_names(tmp_path: Path) -> None:
    place = Place(tmp_path, os.environ)
    place.checkout.mkdir()
    program = [sys.executable, "-u", "-c", INTERPRETER]
    python = Pasted(program, "{step} {done}", place, "interpreter")
    try:
        assert python.paste("given = 3") == 0
        assert python.paste("assert given == 3") == 0
        assert python.paste("given.nothing") == 1
        assert "AttributeError" in python.log.read_text()
    finally:
        python.close()
