"""Ask private statistics of the parties' tables: ``python -m homo_dp.stats --ask
rows,classes,means,histograms``.
"""

from __future__ import annotations

from collections.abc import Sequence

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Parser,
    add_common_arguments,
    check_outputs,
    screen_from_arguments,
)
from homo_dp.core.heavy_imports import quick_imports

EXAMPLES = """questions: rows, classes, means, variances, second_moments, histograms, levels, missing,
    quantiles, bounds (of wide ones), level_names (of columns with levels: private)
All questions of a command share privacy.target_epsilon, and every answer comes with its standard error.

examples:
  python -m homo_dp.stats --ask rows,classes --params privacy.target_epsilon=0.1
      how many rows and of which class, in the embedded breast-cancer data of three parties
  python -m homo_dp.stats --ask rows,histograms,quantiles --columns 'mean radius'
      fewer columns get less noise
  python -m homo_dp.stats --config conf/federation.yaml --ask rows
      between processes: this is the aggregator, and each party runs `python -m homo_dp.party` with its own config
  python -m homo_dp.stats --ask means --dry-run
      what would be released, at what epsilon, without touching data"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, ask, show; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    with quick_imports():
        from homo_dp.runs.statistics import asking

    loaded = load_from_arguments(options, [("privacy.mechanism", "statistics")])
    screen.notes(loaded.notes)
    config = asking(loaded.config, _words(options.ask), _words(options.columns))
    if options.dry_run:
        with quick_imports():
            from homo_dp.runs.dry_run import show_plan

        show_plan(config, screen, loaded.source)
        return 0
    check_outputs(config, ("indicatorFileName",))
    if config.federation.parties:
        with quick_imports():
            from homo_dp.runs.aggregator_process import AggregatorProcess
            from homo_dp.runs.run_facts import member_rows, run_line

        screen.line(run_line(config, member_rows(config), loaded.source))
        return AggregatorProcess(config, screen).run()
    with quick_imports():
        from homo_dp.runs.statistics import ask_and_publish

    ask_and_publish(config, screen, loaded.source)
    return 0


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.stats", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--ask",
        metavar="QUESTION,...",
        help="the questions (default: statistics.ask, rows,classes)",
    )
    parser.add_argument(
        "--columns", metavar="COLUMN,...", help="the columns asked about (default: all)"
    )
    add_common_arguments(parser)
    return parser


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())
