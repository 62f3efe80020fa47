"""Write a commented project to start from: ``homo-dp init DIR``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from homo_dp.config.addresses import masked
from homo_dp.console.options import Parser, add_screen_arguments, run, screen_from_arguments
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import write_whole

EXAMPLES = """examples:
  homo-dp init trial
      asks for tables, label and epsilon; without a terminal the answers are the defaults
  homo-dp init trial --table a=hospital_a.csv --table b=hospital_b.csv --label outcome --epsilon 2
      copies nothing: the config names the tables, and its columns are drafted from them"""

_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)([^/:?#][^?#]*)(.*)")  # by a relative path
CONFIG = """\
# A federation in one process; all keys and defaults: docs/config.md. Run `homo-dp train` in this folder: it reads this
# file, and relative paths below start here.
{model}
{data}
privacy:
  target_epsilon: {epsilon:g}        # what the whole run may cost each party: 1 is strong, 8 is weak
  ledger: ledger.sqlite    # what was spent on these data, over all runs: keep it
train:
  auto: true               # mechanism, rounds, rate, batch and clip follow by rule from row counts, columns, epsilon;
                           # --dry-run says which (docs/auto.md). What you write here stays, for example rounds: 30
output:
  predictFileName: out/predict.csv
  indicatorFileName: out/indicator.json
  modelFileName: out/model.safetensors
tracking:
  enabled: false           # true: runs go to MLflow, which `homo-dp ui` shows
"""
CLASSES = """\
# model.name is left out: classes get logistic regression, with curves of the numbers where rows and epsilon are enough
# for them (docs/auto.md). A name is taken as it is, for example model: {name: mlp}; see docs/models.md"""
NUMBERS = """\
model:
  name: linear_regression  # or mlp with task: regression; see docs/models.md"""
README = """\
# {name}

A federation of {parties}, with differential privacy (epsilon {epsilon:g} for each party).

Run the commands in this folder; they read `config.yaml`.

1. Read `config.yaml`. {todo}
2. `homo-dp train --dry-run` says what would be released; it only counts rows.
3. `homo-dp train` trains; results are in `out/`.
4. `homo-dp report out -o report.html` makes the page for whoever signs it off.

`ledger.sqlite` keeps what was spent on these data. Do not delete it: the guarantee over several runs rests on it.
`parties/NAME/` is a place for local files of a party (they never leave it).
"""
_DRAFTED = (
    "Its bounds and categories were read from rows, which epsilon does not cover:\n   every run "
    "says so, and parties on their own machines refuse it. Replace each one by public knowledge, "
    "then change\n   `data.bounds_source` to codebook or public."
)
_BUNDLED = (
    "It uses the bundled breast-cancer table, whose bounds are public; put your own tables under "
    "`data.files`."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask or take flags, write the project; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    folder = Path(options.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already and not empty; give a new folder")
    asks = sys.stdin is not None and sys.stdin.isatty() and not options.yes
    tables = _tables(options.table if options.table is not None else _ask_tables(asks))
    label = options.label or (_ask("label column", "", asks) or None if tables else None)
    epsilon = (
        options.epsilon if options.epsilon is not None else _number(_ask("epsilon", "4", asks))
    )
    if not 0 < epsilon < float("inf"):
        raise ConfigError(
            f"--epsilon {epsilon:g}: must be a finite number above 0; 1 is strong, 8 is weak"
        )
    written, guesses = write_project(folder, tables, label, epsilon)
    for line in (*guesses, *(f"wrote {path}" for path in written)):
        screen.line(line)
    screen.line(f"next: cd {shlex.quote(folder.as_posix())}, read README.md, then homo-dp train")
    return 0


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="homo-dp init", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("folder", metavar="DIR", help="the project's folder; must be new or empty")
    parser.add_argument(
        "--table", metavar="PARTY=FILE", action="append", help="a party's table; may be repeated"
    )
    parser.add_argument("--label", metavar="COLUMN", help="the label column")
    parser.add_argument(
        "--epsilon", type=float, help="what the run may cost each party (default: 4)"
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing")
    add_screen_arguments(parser)
    return parser


def write_project(
    folder: Path, tables: dict[str, str], label: str | None, epsilon: float
) -> tuple[list[Path], tuple[str, ...]]:
    """Write config, README and party folders; the files, and what was guessed. Nothing is left
    if a table is bad.
    """
    model = CLASSES
    guesses: tuple[str, ...] = ()
    if tables:
        data, model, guesses = _drafted(folder, tables, label)
        todo, parties = _DRAFTED, f"{len(tables)} parties ({', '.join(tables)})"
    else:
        data = "data:\n  embedded: breast_cancer  # a bundled, public table, split over 3 parties"
        todo, parties = _BUNDLED, "3 simulated parties"
    files = {
        "config.yaml": CONFIG.format(data=data, epsilon=epsilon, model=model),
        "README.md": README.format(name=folder.name, parties=parties, todo=todo, epsilon=epsilon),
    }
    made = not folder.exists()
    try:
        for name in tables or ("party_1", "party_2", "party_3"):
            (folder / "parties" / name).mkdir(parents=True)
        for name, text in files.items():
            write_whole(folder / name, text.encode(), "DIR")
    except BaseException:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return [folder / name for name in files], guesses


def _drafted(
    folder: Path, tables: dict[str, str], label: str | None
) -> tuple[str, str, tuple[str, ...]]:
    from homo_dp.data.describe import draft

    addresses = {party: _seen_from(folder, path) for party, path in tables.items()}
    found = draft(tables, {"label": label}, addresses)
    guesses = tuple(
        f"{line.partition('; --')[0]}; change it in config.yaml if it is wrong"
        if line.startswith("guessed")
        else line
        for line in found.guesses
    )
    model = NUMBERS if "\n  target_bounds:" in found.text else CLASSES
    return found.text.rstrip(), model, guesses


def _seen_from(folder: Path, path: str) -> str:
    """The address of a table for a command that runs in the project's folder."""
    database = _SQLITE_FILE.match(path)
    if database is not None:
        return f"{database[1]}{_relative(folder, database[2])}{database[3]}"
    return path if "://" in path else _relative(folder, path)


def _relative(folder: Path, path: str) -> str:
    return path if os.path.isabs(path) else Path(os.path.relpath(path, folder)).as_posix()


def _tables(given: Sequence[str]) -> dict[str, str]:
    from homo_dp.data.images import is_there

    tables = {}
    for item in given:
        party, equals, path = item.partition("=")
        if not (equals and party and path):
            raise ConfigError(
                f"--table {item}: write it as PARTY=FILE, for example a=hospital_a.csv"
            )
        if not is_there(path):
            raise ConfigError(f"--table {masked(item)}: no such file; correct the path")
        tables[party] = path
    return tables


def _ask_tables(asks: bool) -> list[str]:
    found: list[str] = []
    while asks and (
        answer := _ask(f"table {len(found) + 1} as PARTY=FILE (empty: no more)", "", asks)
    ):
        found.append(answer)
    return found


def _ask(question: str, default: str, asks: bool) -> str:
    if not asks:
        return default
    return input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"epsilon={text}: is not a number; give one above 0") from None


if __name__ == "__main__":
    run(main)
