"""The ledger commands of ``homo_dp.budget``: what was spent, by run and observer, and whether
the ledger is whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.console.options import Screen, add_screen_arguments
from homo_dp.core.errors import InputError
from homo_dp.privacy.errors import LedgerError

if TYPE_CHECKING:
    from homo_dp.privacy.ledger import Ledger, LedgerRow

EXAMPLES = """examples:
  what did each run tell, and to whom?
    python -m homo_dp.budget ledger show ledger.sqlite
  what has one dataset spent in its life? as a picture, too
    python -m homo_dp.budget ledger show ledger.sqlite --dataset patients --plot spent.png
  every release of a run
    python -m homo_dp.budget ledger show ledger.sqlite --run run-7
  every release there is, as JSON
    python -m homo_dp.budget ledger show ledger.sqlite --json
  is it whole?
    python -m homo_dp.budget ledger verify ledger.sqlite
  a signed extract for somebody who has only the party's public key, and their check of it
    python -m homo_dp.budget ledger export ledger.sqlite --dataset patients --key keys/a.key -o extract.json
    python -m homo_dp.budget ledger check extract.json --key a.pub

exit codes:
  0 the ledger is whole, 1 verify or check found a bad row, 2 bad input, 3 show met a bad ledger"""

DEFAULT = "ledger.sqlite"
RUN, DATASET = 26, 14  # characters of a name that fit into 80 columns with the rest


def add_ledger_commands(parser: argparse.ArgumentParser) -> None:
    """The arguments of the ledger commands."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="show | verify | export | check"
    )
    listing = actions.add_parser("show", help="one line a run, or a release", epilog=EXAMPLES)
    listing.add_argument("--dataset", metavar="NAME", help="only this dataset (data.name)")
    listing.add_argument("--run", help="every release of this run")
    listing.add_argument("--party", help="every release of this party")
    listing.add_argument(
        "--rows", action="store_true", help="every release there is; checks the whole ledger"
    )
    listing.add_argument(
        "--plot", metavar="FILE.png", help="draw what each run spent against each observer"
    )
    check = actions.add_parser(
        "verify", help="check every row, their order and the head", epilog=EXAMPLES
    )
    export = actions.add_parser(
        "export", help="an extract signed with the party's key", epilog=EXAMPLES
    )
    export.add_argument("--dataset", metavar="NAME", help="only this dataset (data.name)")
    export.add_argument("--run", help="only this run")
    export.add_argument(
        "--key",
        required=True,
        metavar="FILE.key",
        help="the party's private key (homo_dp.keys new)",
    )
    export.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where the extract is written"
    )
    outside = actions.add_parser(
        "check", help="check a signed extract, without the party", epilog=EXAMPLES
    )
    outside.add_argument("file", metavar="FILE", help="an extract of `ledger export`")
    outside.add_argument(
        "--key", metavar="FILE.pub", help="the party's public key, got by another way"
    )
    add_screen_arguments(outside)
    for action in (listing, check, export):
        action.add_argument(
            "path",
            metavar="PATH",
            nargs="?",
            default=DEFAULT,
            help=f"the ledger (default {DEFAULT})",
        )
        add_screen_arguments(action)


def ledger_command(options: argparse.Namespace, screen: Screen) -> int:
    """Do what was asked for; the exit code."""
    return {"show": show, "verify": verify, "export": export, "check": check}[options.action](
        options, screen
    )


def show(options: argparse.Namespace, screen: Screen) -> int:
    """Print what each run told to whom and what all together tell about each dataset, or single
    releases.
    """
    from homo_dp.runs.budget_plot import check_plot, draw_spent

    if options.plot is not None:
        check_plot(options.plot)
    with _open(options.path) as ledger:
        listed = (
            options.rows or screen.as_json or options.run is not None or options.party is not None
        )
        rows = ledger.rows(options.run, options.party) if listed else []
        rows = [row for row in rows if row.is_release and options.dataset in (None, row.dataset)]
        last = [row for row in ledger.last_rows() if options.dataset in (None, row.dataset)]
        runs = ledger.runs()
        spent = _spent_by_run(last, runs)
        totals = _totals(ledger, last, runs) if not listed else []
    if options.dataset is not None and not last:
        raise InputError(
            f"--dataset={options.dataset}: nothing was released about it by {options.path}"
        )
    if options.plot is not None:
        draw_spent(
            options.plot,
            options.dataset or "all datasets",
            [(each.run, each.observer, each.epsilon) for each in spent],
        )
        screen.line(f"picture: {options.plot}")
    if screen.as_json:
        print(json.dumps([row.to_dict() for row in rows], allow_nan=False))
    elif listed:
        _print_rows(screen, options.path, rows)
    else:
        _print_runs(screen, options.path, spent, totals)
    return 0


TOTALS = ("dataset", "runs", "releases", "epsilon", "delta")  # keys of a check's summary
# when each was first charged, and whether all its noise was private
Runs = dict[str, tuple[str, bool]]


@dataclass(frozen=True)
class RunSpent:
    """What one run told one observer: the largest epsilon of its parties."""

    run: str
    dataset: str
    observer: str
    started: str
    parties: int
    epsilon: float | None  # None: the noise can be repeated from its seed, so no epsilon is quoted
    delta: float


def _spent_by_run(last: Sequence[LedgerRow], runs: Runs) -> list[RunSpent]:
    groups: dict[tuple[str, str, str], list[LedgerRow]] = {}
    for row in last:
        groups.setdefault((row.run, row.dataset, row.observer), []).append(row)
    return [
        RunSpent(
            run,
            dataset,
            observer,
            runs[run][0],
            len({row.party for row in rows}),
            max(row.epsilon for row in rows) if runs[run][1] else None,
            max(row.delta for row in rows),
        )
        for (run, dataset, observer), rows in groups.items()
    ]


def _print_runs(
    screen: Screen, path: str, spent: Sequence[RunSpent], totals: list[tuple[object, ...]]
) -> None:
    lines: dict[tuple[str, str], dict[str, RunSpent]] = {}
    for each in spent:
        lines.setdefault((each.run, each.dataset), {})[each.observer] = each
    cells = [
        (
            *(next(iter(told.values())).started[:10], _cut(run, RUN), _cut(dataset, DATASET)),
            _told(told.get("aggregator"), "trusted"),
            # a model is made of what the aggregator saw
            _told(told.get("model_reader", told.get("aggregator")), "-"),
        )
        for (run, dataset), told in lines.items()
    ]
    screen.line("epsilon towards the aggregator and readers of its model; --rows: every release")
    title = f"{path}: {len({each.run for each in spent})} runs"
    screen.table(title, ("started", "run", "dataset", "aggregator", "readers"), cells)
    columns = ("dataset", "about", "runs", "releases", "RDP", "PLD", "delta")
    screen.table("What all runs together have released of each dataset (epsilon)", columns, totals)
    for text in _several_deltas(spent):
        screen.line(text)


def _several_deltas(spent: Sequence[RunSpent]) -> list[str]:
    """A line for each dataset whose runs have different deltas."""
    found: dict[str, set[float]] = {}
    for each in spent:
        found.setdefault(each.dataset, set()).add(each.delta)
    return [
        f"{dataset}: its runs have delta {', '.join(f'{delta:g}' for delta in sorted(deltas))}; "
        f"the total is the epsilon of all their releases at {max(deltas):g}"
        for dataset, deltas in found.items()
        if len(deltas) > 1
    ]


def _told(spent: RunSpent | None, nothing: str) -> str:
    if spent is None:
        return nothing
    return "NOT PRIVATE" if spent.epsilon is None else f"{spent.epsilon:.4g}"


def _print_rows(screen: Screen, path: str, rows: Sequence[LedgerRow]) -> None:
    columns = ("row", "run", "party", "round", "event", "epsilon")
    screen.table(f"{path}: {len(rows)} releases", columns, [_cells(row) for row in rows])


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


def export(options: argparse.Namespace, screen: Screen) -> int:
    """Write a signed extract."""
    from homo_dp.core.files import check_writable, write_whole
    from homo_dp.runs.signed_extract import signed_extract
    from homo_dp.transport.keys import read_key_pair

    check_writable(options.output, "-o")
    key = read_key_pair(Path(options.key))
    with _open(options.path) as ledger:
        made = signed_extract(ledger, key, options.dataset, options.run)
    write_whole(options.output, json.dumps(made, allow_nan=False).encode() + b"\n", "-o")
    screen.line(f"extract: {options.output}, {len(made['rows'])} releases, signed by {key.name}")
    screen.line(f"fingerprint to tell the checker: {key.public.fingerprint}")
    screen.summary(
        {
            "extract": options.output,
            "rows": len(made["rows"]),
            "fingerprint": key.public.fingerprint,
        }
    )
    return 0


def check(options: argparse.Namespace, screen: Screen) -> int:
    """Check a signed extract; 1 if the signature or a row is bad."""
    from homo_dp.runs.signed_extract import check_extract, spent, totals
    from homo_dp.transport.keys import read_public_key

    trusted = None if options.key is None else read_public_key(Path(options.key))
    found, findings = check_extract(Path(options.file), trusted)
    for good, text in findings:
        screen.line(f"{'ok' if good else 'BAD'}: {text}")
    good = all(each for each, _ in findings)
    together = totals(found["rows"]) if good else []
    if good:
        columns = ("dataset", "run", "party", "observer", "epsilon", "delta")
        screen.table(
            "what each run spent, by the party's signed rows", columns, spent(found["rows"])
        )
        header = ("dataset", "runs", "releases", "epsilon of all (RDP)", "delta")
        screen.table("in total, of the rows in this extract", header, together)
    listed = [{"ok": each, "text": text} for each, text in findings]
    screen.summary(
        {
            "ok": good,
            "party": found.get("party"),
            "rows": len(found["rows"]),
            "findings": listed,
            "totals": [dict(zip(TOTALS, each, strict=True)) for each in together],
        }
    )
    return 0 if good else 1


def _open(path: str) -> Ledger:
    from homo_dp.privacy.ledger import Ledger

    if not Path(path).exists() and not Path(f"{path}.head").exists():
        raise InputError(f"ledger={path}: there is no such file; give the path of privacy.ledger")
    return Ledger(path, read_only=True)


def _totals(ledger: Ledger, last: Sequence[LedgerRow], runs: Runs) -> list[tuple[object, ...]]:
    """What all runs together told about each dataset, at the largest delta of its runs."""
    datasets: dict[str, list[LedgerRow]] = {}
    for row in last:
        datasets.setdefault(row.dataset, []).append(row)
    cells: list[tuple[object, ...]] = []
    for dataset, own in datasets.items():
        delta = max(row.delta for row in own)
        spent = ledger.spent(dataset, delta)
        values = spent.epsilon.rdp, spent.epsilon.pld
        shown = values if all(runs[row.run][1] for row in own) else ("NOT PRIVATE", "NOT PRIVATE")
        about = "one replaced" if spent.mixed else f"{own[0].unit}, {_RELATIONS[own[0].relation]}"
        cells.append((_cut(dataset, DATASET), about, spent.runs, spent.releases, *shown, delta))
    return cells


_RELATIONS = {"add_or_remove_one": "add or remove", "replace_one": "replace"}


def _cells(row: LedgerRow) -> tuple[object, ...]:
    event = _event_text(json.loads(row.event))
    epsilon = row.epsilon if row.private else "NOT PRIVATE"
    shown = event if len(event) <= 31 else event[:30] + "…"
    return row.row, _cut(row.run, 12), _cut(row.party, 10), row.round, shown, epsilon


def _cut(text: str, length: int) -> str:
    """A name that may be long, from its end, where names of runs differ.

    >>> _cut("run-20260101-120000-abcdef", 10)
    '…00-abcdef'
    """
    return text if len(text) <= length else "…" + text[1 - length :]


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
            return (
                f"{event['sample_size']} of {event['source_dataset_size']} "
                f"{_event_text(event['event'])}"
            )
        case "RepeatAndSelectDpEvent":
            return f"best of about {event['mean']:.4g} x ({_event_text(event['event'])})"
        case "NoOpDpEvent":
            return "nothing"
        case name:
            return f"{name.removesuffix('DpEvent')}({event['noise_multiplier']:.4g})"
