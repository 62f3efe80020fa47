"""Run one party of a federation beside its own table: ``python -m homo_dp.party --config
conf/party_a.yaml``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Parser,
    Screen,
    add_common_arguments,
    add_log_argument,
    check_outputs,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.core.heavy_imports import quick_imports

if TYPE_CHECKING:
    from homo_dp.config.schema import Config

EXAMPLES = """examples:
  python -m homo_dp.keys new party_a --dir keys
  python -m homo_dp.party --config conf/party_a.yaml --dry-run
      what this party would release, and what its caps refuse
  python -m homo_dp.party --config conf/party_a.yaml
      joins the run and answers its rounds; started again after a crash, it continues
  python -m homo_dp.party --serve --config conf/party_a.yaml
      stays up and takes runs as they come, under the rules of party.serve
  python -m homo_dp.party approve hospitals-7 --config conf/party_a.yaml
      says what the plan that waits would release, and approves it; `refuse` turns it down"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    loaded = load_from_arguments(options)
    screen.notes(loaded.notes)
    if options.word is not None:
        return _answer(options, loaded.config, screen)
    with quick_imports():
        from homo_dp.runs.run_facts import run_line

    own = loaded.config
    rows = {} if own.party.name is None else {own.party.name: own.data.rows.get(own.party.name)}
    screen.line(run_line(own, rows, loaded.source, model="by the aggregator's plan"))
    if options.dry_run:
        from homo_dp.runs.party_dry_run import show_party_plan

        show_party_plan(loaded.config, screen)
        return 0
    if options.serve:
        from homo_dp.runs.serving import PartyServer

        return PartyServer(loaded.config, _given(options), screen).run()
    check_outputs(loaded.config)
    with quick_imports():
        from homo_dp.runs.party_process import PartyProcess

    return PartyProcess(loaded.config, screen).run()


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.party", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "word",
        nargs="?",
        choices=("approve", "refuse"),
        help="approve or refuse a waiting plan",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run that it is about")
    parser.add_argument(
        "--serve", action="store_true", help="stay up and take runs as they come (party.serve)"
    )
    add_common_arguments(parser)
    add_log_argument(parser)
    return parser


def _answer(options: argparse.Namespace, config: Config, screen: Screen) -> int:
    from homo_dp.federation.protocol.ids import check_id
    from homo_dp.runs.approval import answer

    if options.run is None:
        raise InputError(f"{options.word}: names no run; `homo-dp status` lists those that wait")
    if config.party.name is None:
        raise ConfigError(
            f"{options.word}: party.name is not given; name the party's config by --config FILE"
        )
    answer(config.party.folder / check_id("run", options.run), options.run, options.word, screen)
    return 0


def _given(options: argparse.Namespace) -> list[str]:
    """The options that named the config, for the processes of single runs."""
    if options.cfg:
        raise ConfigError("--cfg: --serve takes --config and --params; name the file by --config")
    given = [word for path in options.config or () for word in ("--config", path)]
    given += [word for group in options.params for word in ("--params", *group)]
    return [*given, *(("--log-format", options.log_format) if options.log_format else ())]
