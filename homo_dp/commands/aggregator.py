"""Run the aggregator of a federation: ``python -m homo_dp.aggregator --config
conf/federation.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Parser,
    add_common_arguments,
    add_log_argument,
    check_outputs,
    screen_from_arguments,
)
from homo_dp.core.heavy_imports import quick_imports

EXAMPLES = """examples:
  python -m homo_dp.keys new aggregator --dir keys
  python -m homo_dp.aggregator --config conf/federation.yaml
      waits for the parties, runs the rounds, writes the model; started again after a crash, it continues"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    loaded = load_from_arguments(options)
    screen.notes(loaded.notes)
    config = loaded.config
    check_outputs(config, ("indicatorFileName", "modelFileName"))
    with quick_imports():
        from homo_dp.runs.aggregator_process import AggregatorProcess
        from homo_dp.runs.run_facts import member_rows, run_line

    screen.line(run_line(config, member_rows(config), loaded.source))
    return AggregatorProcess(config, screen).run()


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.aggregator", description=__doc__, epilog=EXAMPLES)
    add_common_arguments(parser, dry_run=False)
    add_log_argument(parser)
    return parser
