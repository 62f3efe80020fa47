"""Scripts that shells read without complaint, and that know the options of each command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from homo_dp.console.completion import SHELLS, completion_script, places
from homo_dp.console.options import Parser
from homo_dp.main import _parsers


def parsers() -> dict[str, Parser | tuple[str, ...]]:
    train, budget = Parser(prog="train"), Parser(prog="budget")
    train.add_argument("--config")
    budget.add_argument("word", choices=("approve", "refuse"))
    inner = budget.add_subparsers(dest="command")
    inner.add_parser("plan").add_argument("--rows")
    inner.add_parser("ledger").add_subparsers().add_parser("show").add_argument("--dataset")
    return {"train": train, "budget": budget, "completion": SHELLS}


def bash(script: str, *words: str) -> list[str]:
    found = shutil.which("bash")
    if found is None:
        pytest.skip("there is no bash here")
    typed = " ".join(f"'{word}'" for word in words)
    asked = (
        f"\nCOMP_WORDS=(homo-dp {typed}); COMP_CWORD={len(words)}; _homo_dp; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        [found, "-c", script + asked], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_words_and_the_options_of_each() -> None:
    script = completion_script("bash", places(parsers()))
    assert bash(script, "tr") == ["train"]
    assert bash(script, "train", "--") == ["--help", "--config"]
    assert bash(script, "train", "--config", "a.yaml", "--c") == ["--config"]
    assert bash(script, "budget", "pl") == ["plan"]
    assert bash(script, "budget", "app") == ["approve"]
    assert bash(script, "budget", "plan", "--r") == ["--rows"]
    assert bash(script, "budget", "ledger", "show", "--d") == ["--dataset"]
    assert bash(script, "completion", "z") == ["zsh"]


def test_bash_completes_files(tmp_path: Path) -> None:
    for name in ("my.yaml", "other file.yaml"):
        (tmp_path / name).touch()
    script = completion_script("bash", places(parsers()))
    assert bash(script, "train", "--config", f"{tmp_path}/o") == [f"{tmp_path}/other", "file.yaml"]
    assert bash(script, "train", "--config", f"{tmp_path}/m") == [f"{tmp_path}/my.yaml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_read_the_script_of_all_commands(shell: str) -> None:
    script = completion_script(shell, places(_parsers()))
    for word in ("--keep", "--canaries", "--noise-multiplier", "revoke", "approve", "--outer"):
        assert word.removeprefix("--") in script
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([found, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
