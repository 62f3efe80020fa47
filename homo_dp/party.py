"""Run one party of a federation beside its own table: ``python -m homo_dp.party --config conf/party_a.yaml``."""

from __future__ import annotations

from collections.abc import Sequence

from homo_dp.console.options import (
    Parser,
    add_common_arguments,
    check_outputs,
    load_from_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.heavy_imports import quick_imports

EXAMPLES = """examples:
  python -m homo_dp.keys new party_a --dir keys
  python -m homo_dp.party --config conf/party_a.yaml --dry-run
      what this party would give away, and what its caps refuse
  python -m homo_dp.party --config conf/party_a.yaml
      joins the run and answers its rounds; started again after a crash, it continues"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; the exit code."""
    parser = Parser(prog="python -m homo_dp.party", description=__doc__, epilog=EXAMPLES)
    add_common_arguments(parser)
    options = parser.parse_args(arguments)
    screen = screen_from_arguments(options)
    loaded = load_from_arguments(options)
    screen.notes(loaded.notes)
    if options.dry_run:
        from homo_dp.runs.party_dry_run import show_party_plan

        show_party_plan(loaded.config, screen)
        return 0
    check_outputs(loaded.config)
    with quick_imports():
        from homo_dp.runs.party_process import PartyProcess

    return PartyProcess(loaded.config, screen).run()


if __name__ == "__main__":
    run(main)
