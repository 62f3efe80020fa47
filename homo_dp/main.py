"""``homo-dp COMMAND ...``: all commands under one name, grouped by who uses them."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from homo_dp import __version__
from homo_dp.console.completion import SHELLS, completion_script, places
from homo_dp.console.options import BAD_INPUT, run
from homo_dp.core.command_name import use_script_name

# Who uses a command, the command, its module, what it is for.
GROUPS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "data scientist",
        (
            (
                "init",
                "homo_dp.init",
                "write a commented project: config, README, folders of the parties",
            ),
            ("train", "homo_dp.train", "train a federation in one process"),
            ("infer", "homo_dp.infer", "score a table with a trained model"),
            ("ui", "homo_dp.ui", "show the runs in MLflow's pages"),
            ("compare", "homo_dp.compare", "train several settings and compare them"),
            ("tune", "homo_dp.tune", "random search for settings within given ranges"),
            ("primihub", "homo_dp.primihub", "run a PrimiHub command line or task file"),
            ("convert", "homo_dp.convert", "write another system's config as one of ours"),
            ("describe", "homo_dp.data.__main__", "draft the column descriptions of a table"),
        ),
    ),
    (
        "party operator",
        (
            ("party", "homo_dp.commands.party", "run a party beside its own table"),
            ("budget", "homo_dp.budget", "what was spent, what is left, what a run would cost"),
            ("keys", "homo_dp.keys", "make and show keys"),
        ),
    ),
    (
        "aggregator operator",
        (("aggregator", "homo_dp.commands.aggregator", "collect sums and publish the model"),),
    ),
    (
        "privacy officer",
        (
            ("report", "homo_dp.report", "a privacy report from a run's outputs"),
            ("audit", "homo_dp.commands.audit", "attack a training and compare with its epsilon"),
            ("stats", "homo_dp.commands.stats", "private statistics of the parties' tables"),
        ),
    ),
    (
        "anybody",
        (
            ("status", "homo_dp.status", "how the runs of a party or an aggregator are doing"),
            ("doctor", "homo_dp.doctor", "what is installed here, and what is missing"),
            ("completion", "", f"print the completion script of a shell ({', '.join(SHELLS)})"),
        ),
    ),
)

COMPLETION = f"""usage: homo-dp completion [{"|".join(SHELLS)}]

Print the completion script of a shell; without a name, of the one in $SHELL. The script begins
with the command that puts it where the shell looks for it.

examples:
  homo-dp completion bash > ~/.local/share/bash-completion/completions/homo-dp
  source <(homo-dp completion bash)
      for this terminal only"""


def commands() -> dict[str, str]:
    """Every command that this installation has, with its module."""
    listed = {name: module for _, group in GROUPS for name, module, _ in group}
    return {name: module for name, module in listed.items() if not module or _is_there(module)}


def usage() -> str:
    """The help: commands by person."""
    there = commands()
    lines = [
        "usage: homo-dp COMMAND [options]",
        "",
        "Horizontal federated learning with differential privacy.",
        "",
    ]
    for person, group in GROUPS:
        lines.append(f"{person}:")
        lines += [f"  {name:<12}{says}" for name, _, says in group if name in there]
    root = Path(__file__).parents[1]
    # site-packages may have a folder docs of another package
    docs = (
        f"Docs: {root / 'docs' / 'index.md'}"
        if (root / "pyproject.toml").is_file() and (root / "docs" / "index.md").is_file()
        else f"Docs: the folder docs of the source distribution, homo_dp-{__version__}.tar.gz; a "
        "wheel has none"
    )
    lines += [
        "",
        "homo-dp COMMAND --help says more; homo-dp --version prints the version.",
        docs,
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand over to the command; the exit code is its own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if given[0] == "--version":
        print(f"homo_dp {__version__}")
        return 0
    name, rest = given[0], given[1:]
    if name == "data":  # `python -m homo_dp.data describe`, as a command of this name
        return int(importlib.import_module("homo_dp.data.__main__").main(rest) or 0)
    there = commands()
    if name not in there:
        import difflib

        near = difflib.get_close_matches(name, there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(there)}"
        print(
            f"homo-dp: error: {name}: no such command; {hint}; see homo-dp --help", file=sys.stderr
        )
        return BAD_INPUT
    if name == "completion":
        return _complete(rest)
    if name == "describe":
        rest = ["describe", *rest]
    return int(importlib.import_module(there[name]).main(rest) or 0)


def script() -> None:
    """The console script."""
    use_script_name()
    run(main)


def _complete(rest: Sequence[str]) -> int:
    if rest and rest[0] in ("-h", "--help"):
        print(COMPLETION)
        return 0
    shell = rest[0] if rest else os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        known = ", ".join(SHELLS)
        print(
            f"homo-dp completion: error: {shell or 'no shell'}: give one of {known}",
            file=sys.stderr,
        )
        return BAD_INPUT
    print(completion_script(shell, places(_parsers())), end="")
    return 0


def _parsers() -> dict[str, argparse.ArgumentParser | tuple[str, ...]]:
    """The parser of every command; for the one without, the words that it takes."""
    return {
        name: importlib.import_module(module).make_parser() if module else SHELLS
        for name, module in commands().items()
    }


def _is_there(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    from importlib.util import find_spec

    found = find_spec(module)
    return found is not None and (found.loader is not None)


if __name__ == "__main__":
    script()
