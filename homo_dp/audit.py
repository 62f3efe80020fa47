"""Try to refute a claimed epsilon: real runs with and without a canary, and the lower bound that they certify."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homo_dp.console.options import (
    Parser,
    Screen,
    add_common_arguments,
    load_from_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import InputError
from homo_dp.core.files import check_writable, write_whole

if TYPE_CHECKING:
    import argparse

    from homo_dp.config.schema import Config
    from homo_dp.evidence.audit import Outcome, Scores
    from homo_dp.evidence.profile import Claim

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
    from homo_dp.evidence.choice import ATTACKS, OBSERVERS

    parser = Parser(prog="python -m homo_dp.audit", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--runs", type=int, default=400, metavar="N", help="runs, half with the canary (default 400)")
    parser.add_argument("--canaries", type=int, metavar="M", help="one run with so many canaries instead of many runs")
    parser.add_argument("--attack", choices=ATTACKS, help="default: the strongest on the mechanism")
    parser.add_argument("--observer", choices=OBSERVERS, help="whose view is attacked with")
    parser.add_argument("--confidence", type=float, default=0.99, metavar="P", help="of the bound (default 0.99)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)")
    parser.add_argument(
        "--out", default="out/audit", metavar="DIR", help="result, plot and state (default %(default)s)"
    )
    parser.add_argument("--mlflow-run", metavar="ID", help="log the outcome to this run (default: a run of its own)")
    add_common_arguments(parser, dry_run=False)
    options = parser.parse_args(arguments)
    screen = screen_from_arguments(options)
    if not 0.5 <= options.confidence < 1:
        raise InputError(f"--confidence={options.confidence} is outside [0.5, 1); 0.99 is usual")
    folder = Path(options.out)
    check_writable(folder / "audit.json", "--out")
    config = load_from_arguments(options).config
    if config.privacy.mechanism == "none":
        raise InputError("privacy.mechanism=none: claims nothing, so there is nothing to refute")
    outcome, scores, claim = audit(config, options, screen)
    _write(outcome, scores, claim, folder)
    _log(outcome, config, folder, options.mlflow_run, screen)
    _show(outcome, folder, screen)
    screen.summary(outcome.to_json())
    return 1 if outcome.refuted else 0


def audit(config: Config, options: argparse.Namespace, screen: Screen) -> tuple[Outcome, Scores, Claim]:
    """The outcome of many runs, or of one with many canaries."""
    from homo_dp.evidence.audit import Scores, judge, judge_one_run, run_attack
    from homo_dp.evidence.choice import attack_name, attack_on
    from homo_dp.evidence.many import NAME, many_canaries
    from homo_dp.evidence.records import recipe_of

    if options.canaries is not None:
        if config.privacy.mechanism != "dp_sgd" or options.canaries < 100:
            raise InputError(f"--canaries={options.canaries}: give 100 or more, for privacy.mechanism: dp_sgd")
        found = many_canaries(recipe_of(config), options.canaries)
        outcome = judge_one_run(found.scores, found.present, found.claim, NAME, "aggregator", options.confidence)
        return outcome, Scores(found.scores[found.present], found.scores[~found.present]), found.claim
    name, observer = attack_name(config, options.attack, options.observer)
    attack = attack_on(config, name, observer)
    tree = config.model_dump(mode="json")
    state = Path(options.out) / "scores.jsonl"
    with screen.progress(options.runs, "run") as progress:
        scores = run_attack(tree, name, observer, options.runs, max(1, options.jobs), state, progress.advance)
    return judge(attack, scores, options.confidence), scores, attack.claim


def _write(outcome: Outcome, scores: Scores, claim: Claim, folder: Path) -> None:
    import json

    from homo_dp.evidence.plot import roc_picture

    write_whole(folder / "audit.json", (json.dumps(outcome.to_json(), indent=2) + "\n").encode(), "--out")
    write_whole(folder / "roc.png", roc_picture(outcome, scores, claim), "--out")


def _log(outcome: Outcome, config: Config, folder: Path, run_id: str | None, screen: Screen) -> None:
    if not config.tracking.enabled:
        return
    from homo_dp.evidence.track import log_audit

    screen.line(log_audit(outcome, config, folder, run_id))


def _show(outcome: Outcome, folder: Path, screen: Screen) -> None:
    names = ("claimed_epsilon", "lower_bound", "ceiling", "point_estimate", "confidence", "delta", "runs")
    values = outcome.to_json()
    screen.table(
        f"{outcome.attack}, observer {outcome.observer}", ("figure", "value"), [(name, values[name]) for name in names]
    )
    screen.line(
        "REFUTED: the claim cannot be true, with this confidence"
        if outcome.refuted
        else "not refuted; an audit can refute a claim and never prove one"
    )
    if outcome.ceiling is not None and outcome.ceiling < 0.5 * outcome.claimed_epsilon:
        screen.line("so few runs could not show half of the claim even by a perfect attack: give more --runs")
    screen.line(f"point estimate: assumes normal scores. Bound: {outcome.assumes}")
    screen.line(f"plot: {folder / 'roc.png'}")


if __name__ == "__main__":
    run(main)
