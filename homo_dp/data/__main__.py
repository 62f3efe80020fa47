"""`python -m homo_dp.data describe FILE ...`: draft a config for tables."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from homo_dp.core.command_name import as_typed
from homo_dp.core.errors import InputError, printable
from homo_dp.core.files import write_whole

_EXAMPLES = """examples:
  python -m homo_dp.data describe a.csv b.csv -o my.yaml
      a config with a table for each party; the command that trains on it is printed
  python -m homo_dp.data describe north=data/2024.csv south=data/2025.csv --label outcome
  python -m homo_dp.data describe hospital.csv --outer --label outcome
      wide outer bounds by the names of the columns; no row is read

The draft goes to FILE or stdout, the warning and each guess to stderr. Its bounds and categories are
read from the rows: a run in one process says so, parties refuse it. Replace them by public knowledge.
exit codes: 0 done, 2 bad input, 130 interrupted"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _Parser(
        prog=as_typed("python -m homo_dp.data"), description="Tools for tables.", allow_abbrev=False
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="describe", parser_class=_Parser
    )
    describe = make_parser()
    commands.add_parser(
        "describe",
        help="draft a config for tables",
        parents=[describe],
        add_help=False,
        prog=describe.prog,
        description=describe.description,
        epilog=describe.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    given = parser.parse_args(arguments)
    try:
        from homo_dp.data.describe import WARNING, draft, tables_of
        from homo_dp.data.outer_bounds import outer_draft

        roles = {"label": given.label, "id": given.id, "user": given.user, "party": given.party}
        if given.files and given.config:
            raise InputError(
                f"--config {given.config}: names the tables, and so does {given.files[0]}; give "
                "one of them"
            )
        taken = [] if given.files else [_take_from_config(given.config, given.files, roles)]
        tables = tables_of(given.files)
        drafted = (outer_draft if given.outer else draft)(
            tables, roles, {} if given.no_files else None
        )
        if given.output is None:
            sys.stdout.write(drafted.text)
            sys.stdout.flush()
        else:
            _write_new(given.output, drafted.text)
        notes = (*taken, *(() if given.outer else (WARNING,)), *drafted.guesses)
        config = shlex.quote(given.output or "FILE")
        kept = "" if given.output else ", once the draft is saved as FILE"
        ending = as_typed(f"next: python -m homo_dp.train --config {config}{kept}")
        if "\n  label:" not in drafted.text:
            ending = "next: name the label column by --label COLUMN; nothing trains without one"
        for line in () if given.quiet else (*notes, *(() if given.no_files else (ending,))):
            print(line, file=sys.stderr)
    except InputError as error:
        print(printable(as_typed(f"error: {' '.join(str(error).split())}")), file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _take_from_config(named: str | None, files: list[str], roles: dict[str, str | None]) -> str:
    """Take tables, and columns in special roles, from a configuration.

    Args:
        named: the configuration; None: ``config.yaml`` of the working folder.
        files: where its tables are added.
        roles: where its columns are put, but for roles that are given already.

    Returns:
        The line that says what was taken.
    """
    from homo_dp.config.load import load_config, working_config

    path = working_config() if named is None else named
    if path is None:
        raise InputError("FILE: is missing, and no config.yaml is here; give the tables")
    data = load_config(path).data
    if not data.files:
        raise InputError(f"FILE: is missing, and {path} names no tables; give the tables")
    files += [f"{party}={table}" for party, table in data.files.items()]
    keys = {"label": "label", "id": "id", "user": "user_column", "party": "party_column"}
    for role, key in keys.items():
        if roles[role] is None and key in data.model_fields_set:
            roles[role] = getattr(data, key)
    return f"tables: {', '.join(files)}; config: {path}"


def _write_new(path: str, text: str) -> None:
    if Path(path).exists():
        raise InputError(f"--output {path}: is there already; give the name of a new file")
    write_whole(path, text.encode(), "--output")


def make_parser() -> _Parser:
    """The options of `describe`."""
    parser = _Parser(
        prog=as_typed("python -m homo_dp.data describe"),
        description=(
            "Draft a config that trains on tables (CSV, .csv.gz, Parquet, .npz, IDX), for you to "
            "edit."
        ),
        epilog=as_typed(_EXAMPLES),
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help=(
            "the table of a party, or PARTY=FILE; the party is called like the file otherwise "
            "(default: the tables of config.yaml in this folder)"
        ),
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="take the tables of this config")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the draft to a new file (default: stdout)"
    )
    for role in ("label", "id", "user", "party"):
        parser.add_argument(
            f"--{role}", metavar="COLUMN", help=f"the {role} column, or none (default: guessed)"
        )
    parser.add_argument(
        "--outer",
        action="store_true",
        help="outer bounds by the columns' names alone, for data.scaling: private",
    )
    parser.add_argument(
        "--no-files",
        action="store_true",
        help="leave out data.name and data.files: a second --config for a config that names tables",
    )
    parser.add_argument("--quiet", action="store_true", help="no warning and no guesses on stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
