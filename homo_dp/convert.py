"""Write a config of another system as one of ours: ``python -m homo_dp.convert FILE [-o FILE]``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from homo_dp.compat.load import in_our_words
from homo_dp.compat.systems import SYSTEMS
from homo_dp.compat.translation import Translation
from homo_dp.config.layers import put
from homo_dp.config.load import config_from, read_tree
from homo_dp.config.schema import Config
from homo_dp.config.yaml_text import to_yaml
from homo_dp.console.options import Parser, add_screen_arguments, run, screen_from_arguments
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import check_writable, write_whole

WIDTH = 100
EXAMPLES = """examples:
  python -m homo_dp.convert hfl_binclass_dpsgd.json -o task.yaml
      a task file of PrimiHub; then: python -m homo_dp.train --config task.yaml
  python -m homo_dp.convert examples/federatedscope.yaml
      a config of FederatedScope, onto the screen
  python -m homo_dp.convert conf.json -o chapter.yaml
      the conf.json of the DP-FedAvg chapter
  python -m homo_dp.convert ours.yaml
      a config of ours in which keys have names of Flower or flower-dp
what is written:
  Our YAML. Comments above it say what has another meaning here, what is left aside, and what is still to be given.
  The commands take these files as they are too (--config FILE); docs/coming_from.md lists every name.
exit codes:
  0 done, 2 bad input"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, translate, write; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    tree, notes = convert(options.file)
    text = "".join(_comment(note) for note in [f"From {options.file}.", *notes]) + to_yaml(tree)
    if options.output is None:
        print(text, end="")
        return 0
    if Path(options.output).exists():
        raise ConfigError(f"--output {options.output}: is there already; give another name")
    check_writable(options.output, "--output")
    write_whole(options.output, text.encode(), "--output")
    screen.notes(notes)
    screen.line(f"configuration: {options.output}")
    screen.summary({"notes": notes, "files": {"config": options.output}})
    return 0


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.convert", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a task file of PrimiHub (JSON), a config of FederatedScope (YAML), the conf.json of "
        "the DP-FedAvg chapter, or a config with names of Flower or flower-dp",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="a new file, instead of the screen (stdout)"
    )
    add_screen_arguments(parser)
    return parser


def convert(path: str) -> tuple[dict[str, Any], list[str]]:
    """A file of another system as sections of ours, and what its reader should know.

    Raises:
        ConfigError: no system recognises the file, or it asks for something that is not built.
    """
    if path.endswith(".py"):
        raise ConfigError(
            f"{path}: is Python; a task of PrimiHub in Python runs by python -m homo_dp.primihub "
            f"--task_code={path}"
        )
    tree = read_tree(Path(path))
    ours = in_our_words([(path, tree)], {})
    if not ours.translations and ours.files == [tree]:
        raise ConfigError(f"{path}: {_unknown(tree)}")
    merged = ours.merged()
    notes: list[str] = []
    for each in ours.translations:
        notes += [*each.notes, *each.fill(merged), *_open(each, merged)]
    if all(each.process == "train" for each in ours.translations):
        notes += _invalid(merged)
    else:
        notes.append("process predict: score by python -m homo_dp.infer --config with this file")
    for name in (name for each in ours.translations for name in each.tables_to_name(merged)):
        # null is refused; without it, the configuration would train on the built-in table
        put(merged, ("data", "files", name), None)
    return merged, list(dict.fromkeys(notes))


def _unknown(tree: dict[str, Any]) -> str:
    """Why a file is not converted, and what to do."""
    if set(tree) <= set(Config.model_fields):
        return "is a configuration of homo_dp; use it as it is"
    names = ", ".join(system.name for system in SYSTEMS)
    return (
        f"is recognised as a config of none of {names}, and has no name of Flower or flower-dp; "
        f"its first key is {next(iter(tree))}; docs/coming_from.md says what is read"
    )


def _open(translation: Translation, merged: dict[str, Any]) -> list[str]:
    """What is to be given: first what nothing runs without."""
    needed = translation.missing(merged)
    asked = [ask.text for ask in translation.asks if ask.is_open(merged)]
    return [f"to be given: {text}" for text in dict.fromkeys([*needed, *asked])]


def _invalid(merged: dict[str, Any]) -> list[str]:
    """What the configuration is refused for as it stands."""
    try:
        config_from(merged)
    except ConfigError as error:
        return [f"to be corrected: {error}"]
    return []


def _comment(note: str) -> str:
    lines = textwrap.wrap(note, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {'  ' if number else ''}{line}\n" for number, line in enumerate(lines))


if __name__ == "__main__":
    run(main)
