"""Try to refute a claimed epsilon: real runs with and without a canary, and the lower bound that
they certify.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Parser,
    Screen,
    add_common_arguments,
    screen_from_arguments,
)
from homo_dp.core.files import check_writable, write_whole

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.evidence.audit import Audited, Outcome

EXAMPLES = """examples:
  python -m homo_dp.audit --runs 400
      the default recipe, white box: a record with a gradient as long as the clip allows
  python -m homo_dp.audit --params privacy.target_epsilon=8 --runs 4000 --observer model_reader
      what a reader of the published models can show
  python -m homo_dp.audit --config conf/dp_fedavg_adaptive.yaml --runs 2000 --attack clip_bits
  python -m homo_dp.audit --config conf/homo_nn_dpsgd.yaml --canaries 2000
      a network: one run, many canaries
what it reads and spends:
  rows are made up; the data are loaded for their shape and row counts only. Nothing is released, no ledger is charged.
exit codes:
  0 the claim stands, 1 it was refuted, 2 bad input, 130 interrupted (the same command goes on)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, judge, show; the exit code."""
    from homo_dp.evidence.audit import Wanted
    from homo_dp.evidence.run_audit import audited
    from homo_dp.runs.dry_run import introduce, settled_by_plan

    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    folder = Path(options.out)
    check_writable(folder / "audit.json", "--out")
    loaded = load_from_arguments(options)
    config = loaded.config
    introduce(config, screen, loaded.source)
    screen.line(settled_by_plan(config)[1][0])
    wanted = Wanted(
        options.runs,
        options.canaries,
        options.attack,
        options.observer,
        options.confidence,
        options.jobs,
    )
    with screen.progress(options.runs, "run") as progress:
        found = audited(config, wanted, folder / "scores.jsonl", progress.advance)
    outcome = found.outcome
    _write(found, folder)
    _log(outcome, config, folder, options.mlflow_run, screen)
    _show(found, folder, screen)
    screen.summary(outcome.to_json())
    return 1 if outcome.refuted else 0


def make_parser() -> Parser:
    """The command's options."""
    from homo_dp.evidence.audit import CONFIDENCE
    from homo_dp.evidence.choose_attack import ATTACKS, OBSERVERS

    parser = Parser(prog="python -m homo_dp.audit", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--runs",
        type=int,
        default=400,
        metavar="N",
        help="runs, half with the canary (default 400)",
    )
    parser.add_argument(
        "--canaries",
        type=int,
        metavar="M",
        help="one run with so many canaries instead of many runs",
    )
    parser.add_argument("--attack", choices=ATTACKS, help="default: the strongest on the mechanism")
    parser.add_argument("--observer", choices=OBSERVERS, help="whose view is attacked with")
    parser.add_argument(
        "--confidence",
        type=float,
        default=CONFIDENCE,
        metavar="P",
        help="of the bound (default %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: cores)",
    )
    parser.add_argument(
        "--out",
        default="out/audit",
        metavar="DIR",
        help="result, plot and state (default %(default)s)",
    )
    parser.add_argument(
        "--mlflow-run",
        metavar="ID",
        help="log the outcome to this run (default: a run of its own)",
    )
    add_common_arguments(parser, dry_run=False)
    return parser


def _write(found: Audited, folder: Path) -> None:
    import json

    write_whole(
        folder / "audit.json",
        (json.dumps(found.outcome.to_json(), indent=2) + "\n").encode(),
        "--out",
    )
    write_whole(folder / "roc.png", found.roc(), "--out")


def _log(
    outcome: Outcome, config: Config, folder: Path, run_id: str | None, screen: Screen
) -> None:
    if not config.tracking.enabled:
        return
    from homo_dp.evidence.mlflow_log import log_audit

    screen.line(log_audit(outcome, config, folder, run_id))


def _show(found: Audited, folder: Path, screen: Screen) -> None:
    from homo_dp.evidence.audit import FIGURES

    outcome = found.outcome
    names = dict(FIGURES)
    values = outcome.to_json()
    # it looks at less than the observer sees
    if outcome.ceiling_of_attack in (None, outcome.ceiling):
        del names["ceiling_of_attack"]
    screen.table(
        f"{outcome.attack}, observer {outcome.observer}",
        ("figure", "value"),
        [(text, values[name]) for name, text in names.items()],
    )
    screen.line(found.verdict)
    screen.line(
        "compare the lower bound with the claimed epsilon; what is expected of a perfect attack is "
        "no limit, so one audit may be above it"
    )
    more = "--runs" if outcome.estimator == "clopper_pearson" else "--canaries"
    if outcome.ceiling is not None and outcome.ceiling < 0.5 * outcome.claimed_epsilon:
        screen.line(
            "too few to detect half of the claimed epsilon even by a perfect attack; give more "
            f"{more}"
        )
    screen.line(f"point estimate: assumes normal scores. Bound: {outcome.assumes}")
    screen.line(f"plot: {folder / 'roc.png'}")
