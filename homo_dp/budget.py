"""Plan a privacy budget before any data is touched, and read the ledger of what was spent."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.config.privacy import default_delta
from homo_dp.console.options import (
    Parser,
    Screen,
    add_screen_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import InputError
from homo_dp.runs.budget_ledger import add_ledger_commands, ledger_command

if TYPE_CHECKING:
    from homo_dp.runs.budget_plan import BudgetPlan

PLAN_ABOUT = """Epsilon of a training plan, or the noise for a target epsilon. Nothing is read; the numbers are all.

In each step some rows (or users) are drawn, their clipped contributions are summed, and noise with a standard
deviation of noise-multiplier times the clipping norm is added to the sum. Epsilon says how much anybody can learn
about one row from all steps together; smaller is more private. PLD is the figure to quote, RDP the cross-check."""

PLAN_EXAMPLES = """examples:
  what does this training cost?
    python -m homo_dp.budget plan --rows 60000 --batch-size 256 --epochs 60 --noise-multiplier 1.1 --delta 1e-5
  how much noise for epsilon 3?
    python -m homo_dp.budget plan --rows 60000 --batch-size 256 --epochs 60 --target-epsilon 3 --delta 1e-5
  users instead of rows: 1,000 of 500,000 phones in each of 2,000 rounds
    python -m homo_dp.budget plan --population 500000 --cohort 1000 --rounds 2000 --noise-multiplier 0.8 --delta 1e-7
  every hospital's every patient in every round, as JSON, with a picture
    python -m homo_dp.budget plan --population 900 --rounds 20 --sampling everyone --target-epsilon 2 \\
        --delta 1e-4 --json --plot epsilon.png

sampling:
  poisson   each row is in with the same probability, independently (what homo_dp.train does); add or remove one
  fixed     exactly so many are drawn: replacing one row moves the sum twice as far, and only RDP is known for it
  everyone  all are in, every time: nothing is gained by chance

exit codes:
  0 done, 2 bad input"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and do; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    if options.command == "plan":
        return plan(options, screen)
    return ledger_command(options, screen)


def plan(options: argparse.Namespace, screen: Screen) -> int:
    """Print what a plan costs, or what noise it needs."""
    from homo_dp.runs.budget_plan import changes
    from homo_dp.runs.budget_plot import check_plot, draw

    if options.plot is not None:
        check_plot(options.plot)
    planned = _plan(options, screen)
    target: float | None = options.target_epsilon
    noise = options.noise_multiplier if target is None else planned.noise_for(target)
    spent = planned.epsilon(noise)
    figures = {
        "epsilon_pld": spent.pld,
        "epsilon_rdp": spent.rdp if math.isfinite(spent.rdp) else None,
        "noise_multiplier": noise,
        "steps": planned.steps,
        "sample_rate": planned.sample_rate,
        "delta": planned.delta,
        "neighbouring_relation": planned.relation,
    }
    if not (screen.as_json or screen.quiet):
        _print_figures(screen, planned, figures)
        _print_changes(screen, list(changes(planned, noise, target)), target)
    if options.plot is not None:
        draw(options.plot, planned, noise)
        screen.line(f"picture: {options.plot}")
    screen.summary(figures)
    return 0


def _plan(options: argparse.Namespace, screen: Screen) -> BudgetPlan:
    """The plan that the options describe; each missing or needless one is named."""
    from homo_dp.runs.budget_plan import ADD_OR_REMOVE_ONE, REPLACE_ONE, BudgetPlan

    by_rows = options.rows is not None
    needed = ("rows", "batch_size", "epochs") if by_rows else ("population", "cohort", "rounds")
    others = ("population", "cohort", "rounds") if by_rows else ("rows", "batch_size", "epochs")
    for name in others:
        if getattr(options, name) is not None:
            raise InputError(
                f"{_flag(name)} does not go with {_flag(needed[0])}; give {_flags(needed)}"
            )
    total, drawn = (getattr(options, name) for name in needed[:2])
    if options.sampling == "everyone":
        if drawn not in (None, total):
            screen.warn(
                f"{_flag(needed[1])}={drawn} is not used: with --sampling everyone all {total} "
                "take part"
            )
        drawn = total
    for name, value in zip(needed, (total, drawn, getattr(options, needed[2])), strict=True):
        if value is None:
            raise InputError(f"{_flag(name)} is missing; give {_flags(needed)}")
    relation = REPLACE_ONE if options.sampling == "fixed" else ADD_OR_REMOVE_ONE
    if options.relation is not None and options.sampling == "everyone":
        relation = options.relation
    elif options.relation not in (None, relation):
        raise InputError(
            f"--relation={options.relation}: {options.sampling} sampling has {relation}; leave "
            "it out"
        )
    delta = default_delta(total) if options.delta is None else options.delta
    return BudgetPlan(
        total, drawn, options.epochs, options.rounds, options.sampling, relation, delta
    )


def _print_figures(screen: Screen, planned: BudgetPlan, figures: dict[str, Any]) -> None:
    one = "user" if planned.epochs is None else "row"
    relation = {
        "add_or_remove_one": f"adding or removing one {one}",
        "replace_one": f"replacing one {one}",
    }
    pld, rdp = figures["epsilon_pld"], f"{figures['epsilon_rdp'] or math.inf:.4g}"
    missing = (
        "none is known for fixed-size samples"
        if planned.sampling == "fixed"
        else "none: delta is too small for it"
    )
    lines = {
        **({"epsilon (PLD)": missing, "epsilon (RDP, quote this)": rdp} if pld is None else {}),
        **(
            {"epsilon (PLD, quote this)": f"{pld:.4g}", "epsilon (RDP, cross-check)": rdp}
            if pld is not None
            else {}
        ),
        "delta": f"{planned.delta:g}",
        "noise multiplier": f"{figures['noise_multiplier']:.4g}",
        "steps": f"{planned.steps}",
        "sample rate": f"{planned.sample_rate:.4g} = {planned.drawn} / {planned.total}",
        "protects against": relation[planned.relation],
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        screen.line(f"{name.ljust(width)}  {value}")
    screen.line()


def _print_changes(screen: Screen, found: Sequence[Any], target: float | None) -> None:
    result = "epsilon" if target is None else "noise"
    title = "What half and twice of each would do" + (
        "" if target is None else f", for epsilon {target:g}"
    )
    rows = [
        (row.knob, row.half, row.result_at_half, row.twice, row.result_at_twice) for row in found
    ]
    screen.table(title, ("knob", "half", f"{result} at half", "twice", f"{result} at twice"), rows)
    for refusal in (refusal for row in found for refusal in row.refusals):
        screen.line(f"not allowed: {refusal}")


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog="python -m homo_dp.budget", description=__doc__, epilog=f"{PLAN_EXAMPLES}\n"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="plan | ledger")
    _plan_arguments(
        commands.add_parser("plan", help="epsilon of a plan, or the noise for a target epsilon")
    )
    add_ledger_commands(
        commands.add_parser("ledger", help="show, verify, export or check a ledger")
    )
    return parser


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = PLAN_ABOUT, PLAN_EXAMPLES
    rows = parser.add_argument_group("rows")
    rows.add_argument("--rows", type=_whole, metavar="N", help="rows of the party's table")
    rows.add_argument(
        "--batch-size", type=_whole, metavar="B", help="rows drawn in a step (expected)"
    )
    rows.add_argument(
        "--epochs", type=float, metavar="E", help="passes over the rows, all rounds together"
    )
    users = parser.add_argument_group("users instead of rows")
    users.add_argument("--population", type=_whole, metavar="N", help="users that may be drawn")
    users.add_argument(
        "--cohort", type=_whole, metavar="M", help="users drawn in a round (expected)"
    )
    users.add_argument("--rounds", type=_whole, metavar="T", help="rounds, all of them")
    noise = parser.add_argument_group("noise").add_mutually_exclusive_group(required=True)
    noise.add_argument(
        "--noise-multiplier",
        type=float,
        metavar="Z",
        help="noise over clipping norm: what is epsilon?",
    )
    noise.add_argument(
        "--target-epsilon",
        type=float,
        metavar="EPS",
        help="epsilon to keep: what noise is needed?",
    )
    parser.add_argument(
        "--delta",
        type=float,
        help=(
            "below one over the rows or users (default: the largest power of ten at or below "
            "1 / (10 times them), at most 1e-5)"
        ),
    )
    parser.add_argument(
        "--sampling", choices=("poisson", "fixed", "everyone"), default="poisson", help="see below"
    )
    parser.add_argument(
        "--relation",
        choices=("add_or_remove_one", "replace_one"),
        help="who is a neighbour, for --sampling everyone",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw epsilon against epochs for several noise levels"
    )
    add_screen_arguments(parser)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flags(names: Sequence[str]) -> str:
    return ", ".join(map(_flag, names))


if __name__ == "__main__":
    run(main)
