"""A recipe as a script: its config goes to the command that was asked for."""

from pathlib import Path

import pytest

from homo_dp.api.recipe import run_recipe


def test_arguments_follow_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []
    for command in ("train", "compare"):

        def main(arguments: list[str], command: str = command) -> int:
            calls.append((command, arguments))
            return 3

        monkeypatch.setattr(f"homo_dp.{command}.main", main)
    assert run_recipe(Path("r.yaml"), ["--quiet"]) == 3
    assert run_recipe(Path("r.yaml"), ["compare", "--jobs", "1"]) == 3
    assert calls[0] == ("train", ["--config", "r.yaml", "--quiet"])
    assert calls[1][0] == "compare"
    assert calls[1][1][-2:] == ["--jobs", "1"]
