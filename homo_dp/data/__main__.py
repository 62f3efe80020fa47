"""`python -m homo_dp.data describe FILE`: draft a `data` block for a table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from homo_dp.core.command_name import as_typed
from homo_dp.core.errors import InputError, printable

_EXAMPLES = """examples:
  python -m homo_dp.data describe hospital.csv
  python -m homo_dp.data describe hospital.csv --outer --label outcome
      wide outer bounds by the names of the columns; no row is read
  python -m homo_dp.data describe hospital.csv.gz --label outcome --id patient > block.yaml

The draft goes to stdout, the warning to stderr and into the draft. Edit it: bounds and levels
must be public knowledge, not what the rows happen to hold.
exit codes: 0 done, 2 bad input, 130 interrupted"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _Parser(
        prog="python -m homo_dp.data", description="Tools for tables.", allow_abbrev=False
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="describe", parser_class=_Parser
    )
    describe = make_parser()
    commands.add_parser(
        "describe",
        help="draft the column descriptions of a table",
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
        from homo_dp.data.describe import WARNING, draft
        from homo_dp.data.outer_bounds import outer_draft

        roles = {"label": given.label, "id": given.id, "user": given.user, "party": given.party}
        drafted = (outer_draft if given.outer else draft)(given.file, roles)
        for line in () if given.quiet else (*(() if given.outer else (WARNING,)), *drafted.guesses):
            print(line, file=sys.stderr)
        sys.stdout.write(drafted.text)
        sys.stdout.flush()
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


def make_parser() -> _Parser:
    """The options of `describe`."""
    parser = _Parser(
        prog=as_typed("python -m homo_dp.data describe"),
        description="Draft a `data` block from a table (CSV, .csv.gz, Parquet, .npz, IDX) for you to edit.",
        epilog=as_typed(_EXAMPLES),
    )
    parser.add_argument("file", metavar="FILE", help="the table")
    for role in ("label", "id", "user", "party"):
        parser.add_argument(
            f"--{role}", metavar="COLUMN", help=f"the {role} column, or none (default: guessed)"
        )
    parser.add_argument(
        "--outer",
        action="store_true",
        help="outer bounds by the columns' names alone, for data.scaling: private",
    )
    parser.add_argument("--quiet", action="store_true", help="no warning and no guesses on stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
