"""Plan a privacy budget before any data is touched, and read the ledger of what was spent."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.cli import Parser, Screen, add_screen_arguments, run, screen_from_arguments
from homo_dp.errors import InputError
from homo_dp.privacy.errors import LedgerError

if TYPE_CHECKING:
    from homo_dp.budget_plan import Plan
    from homo_dp.privacy.ledger import Ledger, LedgerRow
    from homo_dp.privacy.ledger_rows import Scope

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

LEDGER_EXAMPLES = """examples:
  python -m homo_dp.budget ledger show ledger.sqlite
  python -m homo_dp.budget ledger show ledger.sqlite --party hospital_a --json
  python -m homo_dp.budget ledger verify ledger.sqlite

exit codes:
  0 the ledger is whole, 1 verify found a bad row, 2 bad input, 3 show met a bad ledger"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and do; the exit code."""
    options = _parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    if options.command == "plan":
        return plan(options, screen)
    return show(options, screen) if options.action == "show" else verify(options, screen)


def plan(options: argparse.Namespace, screen: Screen) -> int:
    """Print what a plan costs, or what noise it needs."""
    from homo_dp.budget_plan import changes
    from homo_dp.budget_plot import check_plot, draw

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


def _plan(options: argparse.Namespace, screen: Screen) -> Plan:
    """The plan that the options describe; each missing or needless one is named."""
    from homo_dp.budget_plan import ADD_OR_REMOVE_ONE, REPLACE_ONE, Plan

    by_rows = options.rows is not None
    needed = ("rows", "batch_size", "epochs") if by_rows else ("population", "cohort", "rounds")
    others = ("population", "cohort", "rounds") if by_rows else ("rows", "batch_size", "epochs")
    for name in others:
        if getattr(options, name) is not None:
            raise InputError(f"{_flag(name)} does not go with {_flag(needed[0])}; give {_flags(needed)}")
    total, drawn = (getattr(options, name) for name in needed[:2])
    if options.sampling == "everyone":
        if drawn not in (None, total):
            screen.warn(f"{_flag(needed[1])}={drawn} is not used: with --sampling everyone all {total} take part")
        drawn = total
    for name, value in zip(needed, (total, drawn, getattr(options, needed[2])), strict=True):
        if value is None:
            raise InputError(f"{_flag(name)} is missing; give {_flags(needed)}")
    relation = REPLACE_ONE if options.sampling == "fixed" else ADD_OR_REMOVE_ONE
    if options.relation is not None and options.sampling == "everyone":
        relation = options.relation
    elif options.relation not in (None, relation):
        raise InputError(f"--relation={options.relation}: {options.sampling} sampling has {relation}; leave it out")
    return Plan(total, drawn, options.epochs, options.rounds, options.sampling, relation, options.delta)


def _print_figures(screen: Screen, planned: Plan, figures: dict[str, Any]) -> None:
    one = "user" if planned.epochs is None else "row"
    relation = {"add_or_remove_one": f"adding or removing one {one}", "replace_one": f"replacing one {one}"}
    pld, rdp = figures["epsilon_pld"], f"{figures['epsilon_rdp'] or math.inf:.4g}"
    missing = (
        "none is known for fixed-size samples" if planned.sampling == "fixed" else "none: delta is too small for it"
    )
    lines = {
        **({"epsilon (PLD)": missing, "epsilon (RDP, quote this)": rdp} if pld is None else {}),
        **({"epsilon (PLD, quote this)": f"{pld:.4g}", "epsilon (RDP, cross-check)": rdp} if pld is not None else {}),
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
    title = "What half and twice of each would do" + ("" if target is None else f", for epsilon {target:g}")
    rows = [(row.knob, row.half, row.result_at_half, row.twice, row.result_at_twice) for row in found]
    screen.table(title, ("knob", "half", f"{result} at half", "twice", f"{result} at twice"), rows)
    for refusal in (refusal for row in found for refusal in row.refusals):
        screen.line(f"not allowed: {refusal}")


def show(options: argparse.Namespace, screen: Screen) -> int:
    """Print the rows of a ledger."""
    with _open(options.path) as ledger:
        rows = ledger.rows(options.run, options.party)
        whole = options.run is None and options.party is None and not screen.as_json
        totals = _totals(ledger, rows) if whole else []
    if screen.as_json:
        print(json.dumps([row.to_dict() for row in rows], allow_nan=False))
        return 0
    header = (
        "row",
        "time",
        "run",
        "dataset",
        "party",
        "round",
        "kind",
        "event",
        "sigma",
        "epsilon",
        "delta",
        "observer",
    )
    screen.table(f"{options.path}: {len(rows)} releases", header, [_cells(row) for row in rows])
    if totals:
        columns = ("dataset", "unit", "relation", "runs", "releases", "epsilon (RDP)", "epsilon (PLD)", "delta")
        screen.table("What all runs together have told about each dataset", columns, totals)
    return 0


def verify(options: argparse.Namespace, screen: Screen) -> int:
    """Check every row, their order and the head; 1 and the bad row if something is wrong."""
    try:
        with _open(options.path) as ledger:
            head = ledger.verify()
    except LedgerError as error:
        screen.summary({"ok": False, "ledger": str(options.path), "error": str(error)})
        print(f"bad ledger: {error}", file=sys.stderr)
        return 1
    screen.summary({"ok": True, "ledger": str(options.path), "rows": head.count, "head": head.hash})
    if not screen.as_json:
        screen.line(f"whole: {options.path} has {head.count} releases, head {head.hash[:16]}")
    return 0


def _open(path: str) -> Ledger:
    from homo_dp.privacy.ledger import Ledger

    if not Path(path).exists() and not Path(f"{path}.head").exists():
        raise InputError(f"ledger={path}: there is no such file; give the path of privacy.ledger")
    return Ledger(path, read_only=True)


def _totals(ledger: Ledger, rows: Sequence[LedgerRow]) -> list[tuple[object, ...]]:
    """What all runs together told about each dataset, unit and relation, at the largest delta of its rows."""
    scopes: dict[Scope, list[LedgerRow]] = {}
    for row in rows:
        scopes.setdefault(row.scope, []).append(row)
    cells: list[tuple[object, ...]] = []
    for scope, own in scopes.items():
        delta = max(row.delta for row in own)
        spent = ledger.spent(*scope, delta).epsilon
        shown = (spent.rdp, spent.pld) if all(row.private for row in own) else ("NOT PRIVATE", "NOT PRIVATE")
        cells.append((*scope, len({row.run for row in own}), len(own), *shown, delta))
    return cells


def _cells(row: LedgerRow) -> tuple[object, ...]:
    time = row.time.partition(".")[0].replace("T", " ")
    event = _event_text(json.loads(row.event))
    return (
        *(row.row, time, row.run, row.dataset, row.party, row.round, row.kind, event),
        *(row.sigma, row.epsilon if row.private else "NOT PRIVATE", row.delta, row.observer),
    )


def _event_text(event: dict[str, Any]) -> str:
    """An event in a few words.

    >>> _event_text({"type": "SelfComposedDpEvent", "count": 3, "event": {"type": "NoOpDpEvent"}})
    '3 x nothing'
    """
    match event["type"]:
        case "SelfComposedDpEvent":
            return f"{event['count']} x {_event_text(event['event'])}"
        case "ComposedDpEvent":
            return " + ".join(_event_text(inner) for inner in event["events"]) or "nothing"
        case "PoissonSampledDpEvent":
            return f"Poisson({event['sampling_probability']:.4g}) {_event_text(event['event'])}"
        case "SampledWithoutReplacementDpEvent":
            return f"{event['sample_size']} of {event['source_dataset_size']} {_event_text(event['event'])}"
        case "NoOpDpEvent":
            return "nothing"
        case name:
            return f"{name.removesuffix('DpEvent')}({event['noise_multiplier']:.4g})"


def _parser() -> Parser:
    parser = Parser(prog="python -m homo_dp.budget", description=__doc__, epilog=f"{PLAN_EXAMPLES}\n")
    commands = parser.add_subparsers(dest="command", required=True, metavar="plan | ledger")
    _plan_arguments(commands.add_parser("plan", help="epsilon of a plan, or the noise for a target epsilon"))
    ledger = commands.add_parser("ledger", help="show or verify a ledger", epilog=LEDGER_EXAMPLES)
    actions = ledger.add_subparsers(dest="action", required=True, metavar="show | verify")
    listing = actions.add_parser("show", help="one line a release", epilog=LEDGER_EXAMPLES)
    listing.add_argument("--run", help="only this run")
    listing.add_argument("--party", help="only this party")
    check = actions.add_parser("verify", help="check every row, their order and the head", epilog=LEDGER_EXAMPLES)
    for action in (listing, check):
        action.add_argument("path", metavar="PATH", help="the ledger (privacy.ledger of the run)")
        add_screen_arguments(action)
    return parser


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = PLAN_ABOUT, PLAN_EXAMPLES
    rows = parser.add_argument_group("rows")
    rows.add_argument("--rows", type=_whole, metavar="N", help="rows of the party's table")
    rows.add_argument("--batch-size", type=_whole, metavar="B", help="rows drawn in a step (expected)")
    rows.add_argument("--epochs", type=float, metavar="E", help="passes over the rows, all rounds together")
    users = parser.add_argument_group("users instead of rows")
    users.add_argument("--population", type=_whole, metavar="N", help="users that may be drawn")
    users.add_argument("--cohort", type=_whole, metavar="M", help="users drawn in a round (expected)")
    users.add_argument("--rounds", type=_whole, metavar="T", help="rounds, all of them")
    noise = parser.add_argument_group("noise").add_mutually_exclusive_group(required=True)
    noise.add_argument("--noise-multiplier", type=float, metavar="Z", help="noise over clipping norm: what is epsilon?")
    noise.add_argument("--target-epsilon", type=float, metavar="EPS", help="epsilon to keep: what noise is needed?")
    parser.add_argument("--delta", type=float, default=1e-5, help="below one over the rows or users (default 1e-5)")
    parser.add_argument("--sampling", choices=("poisson", "fixed", "everyone"), default="poisson", help="see below")
    parser.add_argument(
        "--relation", choices=("add_or_remove_one", "replace_one"), help="who is a neighbour, for --sampling everyone"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw epsilon against epochs for several noise levels")
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
