"""A run's rows of the ledger: the extract that goes with its outputs, what it adds up to, and
whether it is genuine.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from homo_dp.privacy.accounting.accountants import Epsilon
from homo_dp.privacy.accounting.events import EventText
from homo_dp.privacy.accounting.strength import epsilon_text
from homo_dp.privacy.errors import LedgerError, PrivacyError
from homo_dp.privacy.ledger import Budget, Ledger, LedgerRow
from homo_dp.privacy.ledger.rows import Scope, row_hash
from homo_dp.privacy.ledger.totals import epsilon_of

Rows = Sequence[Mapping[str, Any]]
Finding = tuple[bool, str]  # whether it is good, and what was found
MOST_BAD = 20
SAME = 0.002  # accountants round differently where they add up in another order


def ledger_summary(ledger: Ledger, run: str, budget: Budget) -> dict[str, Any]:
    """Where the ledger ends now, and what each dataset of this run has given away in all runs.

    ``epsilon_sum`` adds up the runs' own epsilons, an upper bound at the sum of their deltas;
    ``epsilon_together`` is the tighter figure of one composition over all of them, by RDP, at
    ``delta``. A run counts for the party that it told most about.
    """
    head, last = ledger.head(), {(row.run, row.party): row for row in ledger.last_rows()}
    scopes = dict.fromkeys(row.scope for row in last.values() if row.run == run)
    return {
        "file": ledger.path.name,
        "releases": head.count,
        "head": head.hash if head.count else None,
        # opening it checked all rows since the last checkpoint, that checkpoint and the head
        "checked": True,
        "datasets": [_dataset(ledger, list(last.values()), scope, run, budget) for scope in scopes],
    }


def _dataset(
    ledger: Ledger, last: Sequence[LedgerRow], scope: Scope, run: str, budget: Budget
) -> dict[str, Any]:
    dataset, unit, relation = scope
    runs: dict[str, list[LedgerRow]] = {}
    for row in last:  # its epsilon is of the run so far
        if row.dataset == dataset:
            runs.setdefault(row.run, []).append(row)
    delta = budget.lifetime_delta or max(row.delta for rows in runs.values() for row in rows)
    spent = ledger.spent(dataset, delta)
    return {
        "dataset": dataset,
        "unit": unit,
        "relation": relation,
        "releases": spent.releases,
        "runs": spent.runs,
        "epsilon_this_run": max(row.epsilon for row in runs[run]),
        "epsilon_sum": sum(max(row.epsilon for row in each) for each in runs.values()),
        "delta_sum": sum(max(row.delta for row in each) for each in runs.values()),
        "epsilon_together": spent.epsilon.rdp,
        "delta": delta,
        "lifetime_epsilon": budget.lifetime_epsilon,
    }


def verify_extract(
    rows: Rows, head: str | None = None, releases: int | None = None
) -> list[Finding]:
    """Check each row against its own hash, neighbours against each other, and the last against the
    anchored head.

    An extract holds the rows of one run, so where other runs wrote in between there is a gap; a gap
    is reported, and only the whole ledger can close it.
    """
    bad = [text for row in rows for text in _edited(row)]
    links = gaps = 0
    for before, row in itertools.pairwise(rows):
        if row.get("row") == before.get("row", 0) + 1:
            links += 1
            if row.get("previous_hash") != before.get("hash"):
                bad.append(
                    f"row {row.get('row')} does not follow row {before.get('row')}: a row was "
                    "replaced"
                )
        elif row.get("row", 0) > before.get("row", 0):
            gaps += 1
        else:
            bad.append(
                f"row {row.get('row')} stands after row {before.get('row')}: rows were reordered"
            )
    good = [
        f"{len(rows)} rows match their own hashes",
        f"{links} of them follow directly on the one before",
    ]
    if gaps:
        good.append(f"{gaps} gaps where other runs wrote; the whole ledger closes them")
    if head is not None and rows and rows[-1].get("row") == releases:
        if rows[-1].get("hash") == head:
            good.append("the last row is the head that the run recorded")
        else:
            bad.append("the last row is not the head that the run recorded")
    if len(bad) > MOST_BAD:
        bad[MOST_BAD:] = [f"{len(bad) - MOST_BAD} more rows are not as they were written"]
    return [(False, text) for text in bad] or [(True, text) for text in good]


def verify_statement(privacy: Mapping[str, Any], rows: Rows) -> list[Finding]:
    """Check what the statement says first and in words against what it says about each party,
    and about the noise.
    """
    unprotected = [row for row in rows if str(row.get("noise", "")).startswith("NOT PRIVATE")]
    if not privacy.get("private"):
        return [(True, "NOT PRIVATE: no epsilon is claimed, so there is none to add up")]
    if unprotected:
        number = unprotected[0].get("row")
        return [
            (
                False,
                (
                    f"row {number} says that its noise was NOT PRIVATE, and the run claims to be "
                    "private"
                ),
            )
        ]
    parties = (privacy.get("parties") or {}).values()
    quoted = [_quoted(party) for party in parties]
    known = [value for value in quoted if value is not None]
    largest, said = max(known, default=None), privacy.get("epsilon")
    if len(known) < len(quoted) or largest is None or said is None:
        return []
    if abs(largest - said) > SAME * largest:
        return [
            (
                False,
                (
                    f"the largest epsilon of a party is {largest:.4g}, but {said} was stated for "
                    "the run"
                ),
            )
        ]
    sentence = str(privacy.get("statement", ""))
    # version 0.1.0 wrote large figures with an exponent, too
    figures = {epsilon_text(said), f"{said:.4g}"}
    if not any(f"epsilon {figure} " in f"{sentence} " for figure in figures):
        return [(False, f"epsilon of the run is {said:.4g}, but its sentence says: {sentence}")]
    return [(True, f"epsilon of the run is the largest of its parties, {said:.4g}, as stated")]


def verify_epsilon(
    rows: Rows, parties: Mapping[str, Mapping[str, Any]], *, interrupted: bool = False
) -> list[Finding]:
    """Add up the events of the extract again, by both accountants, and compare with what the
    statement says.

    Rows under a name that is not a party's are the aggregator's, which then adds the noise for all
    parties. The statement of a run that was interrupted counts its last round for every party, as
    soon as one of them had answered.
    """
    found: list[Finding] = []
    largest = max(parties.values(), key=lambda stated: stated.get("epsilon_rdp") or 0.0, default={})
    for name in dict.fromkeys(str(row.get("party")) for row in rows):
        stated = parties.get(name, largest)
        own = [row for row in rows if str(row.get("party")) == name]
        spent = recomputed(own)
        if (
            interrupted
            and not _same(spent.rdp, stated.get("epsilon_rdp"))
            and _same(recomputed([*own, own[-1]]).rdp, stated.get("epsilon_rdp"))
        ):
            found.append(
                (
                    True,
                    (
                        f"{name}: had not answered the round that was interrupted, which is "
                        "counted for it"
                    ),
                )
            )
            spent = recomputed([*own, own[-1]])
        for accountant, value, said in (
            ("PLD", spent.pld, stated.get("epsilon_pld")),
            ("RDP", spent.rdp, stated.get("epsilon_rdp")),
        ):
            same = _same(value, said)
            shown = "none" if value is None else f"{value:.4g}"
            ending = "as stated" if same else f"but {said} was stated"
            found.append(
                (
                    same,
                    (
                        f"{name}: epsilon by {accountant}, added up from the ledger, is {shown}, "
                        f"{ending}"
                    ),
                )
            )
    listed = {str(row.get("party")) for row in rows}
    if listed & set(parties):  # else the aggregator's rows are for all
        silent = {name: _quoted(stated) for name, stated in parties.items() if name not in listed}
        found += [
            (False, f"{name}: has no row, but epsilon {said} was stated")
            for name, said in silent.items()
            if said
        ]
    return found


def _same(value: float | None, said: float | None) -> bool:
    return value == said or (
        value is not None and said is not None and abs(value - said) <= SAME * said
    )


def recomputed(rows: Rows) -> Epsilon:
    """Epsilon of the events in these rows, at their own delta."""
    counts = Counter(event_text(row) for row in rows)
    return epsilon_of(counts, float(rows[0]["delta"]))


def verify_against(path: Path, rows: Rows) -> list[Finding]:
    """Check the whole ledger, and that the extract's rows are in it."""
    try:
        with Ledger(path, read_only=True) as ledger:
            head = ledger.verify()
            known = {row.row: row.hash for row in ledger.rows()}
    except (LedgerError, PrivacyError, OSError) as error:
        return [(False, f"the ledger {path.name} is not whole: {error}")]
    strangers = [
        row.get("row") for row in rows if known.get(int(row.get("row", -1))) != row.get("hash")
    ]
    if strangers:
        return [(False, f"row {strangers[0]} of the extract is not in the ledger {path.name}")]
    return [
        (True, f"the whole ledger {path.name} is intact: {head.count} rows, head {head.hash[:16]}")
    ]


def knows_run(path: Path, run: str) -> bool:
    """Whether a ledger has rows of a run; one that cannot be read may have."""
    try:
        with Ledger(path, read_only=True) as ledger:
            return bool(ledger.rows(run))
    except (LedgerError, PrivacyError, OSError):
        return True


def _edited(row: Mapping[str, Any]) -> list[str]:
    """What shows that a row is not as it was written: its hash, or the epsilon to quote, which
    the hash leaves out.
    """
    if row_hash(_row_fields(row)) != row.get("hash"):
        return [f"row {row.get('row')} does not match its own hash: it was edited"]
    unprotected = str(row.get("noise", "")).startswith("NOT PRIVATE")
    if row.get("epsilon") != (None if unprotected else _quoted(row)):
        return [
            f"row {row.get('row')} shows another epsilon than the one it was written with: it was "
            "edited"
        ]
    return []


def _quoted(values: Mapping[str, Any]) -> float | None:
    """The figure to quote: PLD where it exists, else RDP."""
    found: float | None = values.get("epsilon_pld")
    return values.get("epsilon_rdp") if found is None else found


def _row_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as it was hashed: only its own columns, and the event as text."""
    names = [field.name for field in fields(LedgerRow)]
    return {name: row.get(name) for name in names} | {"event": event_text(row)}


def event_text(row: Mapping[str, Any]) -> EventText:
    """The event of a row of an extract, as the ledger writes it."""
    return EventText(json.dumps(row.get("event"), sort_keys=True, separators=(",", ":")))
