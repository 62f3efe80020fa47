"""The privacy report of a run, for a privacy officer to read and file: one HTML page made of the run's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homo_dp import __version__
from homo_dp.tracking.report.page import Html, facts, folded, listed, page, picture, table, tag
from homo_dp.tracking.report.record import Record
from homo_dp.tracking.report.text import (
    event_words,
    guarantee,
    limits,
    observers,
    released_words,
    unlisted_words,
    weakness,
)

PARTY_COLUMNS = {
    "rows": "rows",
    "steps": "steps",
    "sample_rate": "sample rate",
    "noise_multiplier": "noise multiplier",
    "applied_sigma": "sigma applied",
    "epsilon_pld": "epsilon (PLD)",
    "epsilon_rdp": "epsilon (RDP)",
    "delta": "delta",
}
METRICS = ("loss", "acc", "auc", "ks", "f1", "precision", "recall", "r2", "rmse", "mae")
MOST_ROWS = 2000
# What the report says in words or tables of their own; everything else that a mechanism states is listed as it is.
SAID = {
    *("private", "statement", "mechanism", "unit", "neighbouring_relation", "epsilon", "delta", "secure_mode"),
    *("observers", "quoted_observer", "parties", "rows", "note", "notes", "basis"),
}


@dataclass(frozen=True)
class Checks:
    """What was verified: findings, each with whether it is good."""

    findings: tuple[tuple[bool, str], ...] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return all(good for good, _ in self.findings)


def report_page(record: Record, checks: Checks) -> str:
    """The report as HTML."""
    private = bool(record.privacy.get("private"))
    word = "NOT PRIVATE" if not private else "PRIVATE" if checks.good else "NOT VERIFIED"
    badge = tag("span", word, class_="badge good" if word == "PRIVATE" else "badge bad")
    title, weak = f"Privacy report: {record.run}", weakness(record.privacy)
    return page(
        title,
        tag("h1", title),
        tag("p", badge, f" written by homo_dp {__version__}", class_="meta"),
        _alarm(checks),
        tag("p", record.privacy.get("statement", ""), class_="box" if private else "box warn"),
        tag("p", weak, class_="box warn") if weak else "",
        _local_note(record),
        _trained(record),
        _guarantee(record),
        _parties(record),
        _released(record),
        _ledger(record, checks),
        _budget(record, checks),
        _pictures(record, checks),
        _quality(record),
        tag("h2", "Limits of the guarantee"),
        listed(limits(record.privacy, _lifetime(record))),
        _config(record),
    )


def _alarm(checks: Checks) -> Html:
    failed = [text for good, text in checks.findings if not good]
    if not failed:
        return Html("")
    words = f"Do not rely on this report: {len(failed)} of {len(checks.findings)} checks failed (see Ledger below). "
    return tag("p", words, f"First: {failed[0]}.", class_="box warn")


def _local_note(record: Record) -> Html:
    if not record.local:
        return Html("")
    return tag(
        "p",
        "Keep this file where the rows are. Parts marked ",
        _local_badge(),
        " were computed from private rows without noise. ",
        tag("code", "python -m homo_dp.report … --published"),
        " writes the report without them.",
        class_="box note",
    )


def _trained(record: Record) -> Html:
    indicators = record.indicators
    parties = list(record.privacy.get("parties") or {})
    rows = [party.get("rows") for party in (record.privacy.get("parties") or {}).values()]
    known = [count for count in rows if count is not None]
    done = indicators.get("rounds_done", len(record.rounds))
    pairs = [
        ("run", record.run),
        ("finished", indicators.get("finished")),
        ("software", f"homo_dp {indicators.get('version', 'unknown')}"),
        ("model", indicators.get("model")),
        ("data", indicators.get("data")),
        ("parties", f"{len(parties)}: {', '.join(parties)}"),
        (f"training {_counted(record)}", sum(known) if known and len(known) == len(rows) else "not in this report"),
        ("row counts", record.privacy.get("rows")),
        ("bounds and levels", _bounds_words(record)),
        ("rounds", f"{done}{' (interrupted)' if indicators.get('interrupted') else ''}"),
    ]
    return Html(tag("h2", "What was trained") + facts((name, value) for name, value in pairs if value is not None))


def _bounds_words(record: Record) -> str | None:
    """Where bounds and levels come from, in general and for the columns that say it."""
    bounds = record.indicators.get("bounds")
    if not isinstance(bounds, dict):
        return None
    columns = bounds.get("columns")
    each = [f"{name}: {text}" for name, text in columns.items()] if isinstance(columns, dict) else []
    return "; ".join([str(bounds.get("source")), *each])


def _guarantee(record: Record) -> Html:
    privacy = record.privacy
    pairs = [
        ("unit", privacy.get("unit")),
        ("neighbouring relation", str(privacy.get("neighbouring_relation", "see each party")).replace("_", " ")),
        ("mechanism", privacy.get("mechanism")),
        ("secure mode", privacy.get("secure_mode")),
        *((f"towards {who}", said) for who, said in observers(privacy)),
        *((key.replace("_", " "), privacy[key]) for key in privacy if key not in SAID and _plain(privacy[key])),
    ]
    return Html(tag("h2", "The guarantee") + tag("p", guarantee(privacy)) + facts(pairs))


def _parties(record: Record) -> Html:
    parties: Mapping[str, Mapping[str, Any]] = record.privacy.get("parties") or {}
    names = [name for name in PARTY_COLUMNS if any(name in party for party in parties.values())]
    header = ["party", *(_counted(record) if name == "rows" else PARTY_COLUMNS[name] for name in names)]
    rows = [[party, *(values.get(name) for name in names)] for party, values in parties.items()]
    note = (
        "PLD (privacy loss distribution) is the figure quoted; RDP (Renyi) is an independent, looser check. Sigma "
        "is the standard deviation of the noise as it was added."
    )
    basis = record.privacy.get("basis")
    said = tag("p", f"Each figure is {basis}.") if basis else ""
    return Html(tag("h2", "Parties") + said + table(header, rows) + tag("p", note, class_="meta"))


def _counted(record: Record) -> str:
    """What the numbers of rows are of: a simulation has one entry for all its users, and counts those."""
    together = record.privacy.get("unit") == "user" and list(record.privacy.get("parties") or {}) == ["users"]
    return "users" if together else "rows"


def _released(record: Record) -> Html:
    heading = tag("h2", "What was released in each round")
    if not record.ledger:
        return Html(heading + _not_on_a_ledger(record))
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in record.ledger:
        event = json.dumps(row.get("event"), sort_keys=True)
        groups.setdefault((str(row.get("party")), str(row.get("kind")), event, str(row.get("sigma"))), []).append(row)
    shown = [
        (
            key[0],
            key[1],
            _span([int(row["round"]) for row in rows]),
            event_words(rows[0]["event"]),
            rows[0].get("sigma"),
        )
        for key, rows in groups.items()
    ]
    header = ["who", "what", "rounds", "how it was made", "sigma"]
    what = "; ".join(record.privacy.get("releases") or ())
    said = tag("p", f"What each of them released: {what}.") if what else ""
    note = tag("p", released_words(record.privacy), class_="meta")
    return Html(heading + said + table(header, shown[:MOST_ROWS]) + note)


def _not_on_a_ledger(record: Record) -> Html:
    """What is known about the releases where there is no extract; an aggregator saw who answered, and their heads."""
    heads: Mapping[str, Mapping[str, Any] | None] = record.indicators.get("ledger_heads") or {}
    said = tag("p", unlisted_words(record.privacy, kept_by_parties="ledger_heads" in record.indicators))
    if not heads:
        return said
    rows = [
        [
            name,
            sum(name in row.get("replied", ()) for row in record.rounds),
            (head or {}).get("count"),
            tag("span", str((head or {}).get("hash", ""))[:16], class_="hash"),
        ]
        for name, head in heads.items()
    ]
    return Html(said + table(["party", "rounds answered", "rows of its ledger", "head of its ledger"], rows))


def _ledger(record: Record, checks: Checks) -> Html:
    heading = tag("h2", "Ledger")
    if not record.ledger and not checks.findings:
        return Html("")
    signs = [
        tag("span", tag("span", "ok" if good else "BAD", class_=f"badge {'good' if good else 'bad'}"), " ", text)
        for good, text in checks.findings
    ]
    header = ["row", "time", "party", "round", "kind", "observer", "epsilon so far", "delta", "hash"]
    rows = [
        [
            row.get("row"),
            str(row.get("time", "")).partition(".")[0].replace("T", " "),
            *(row.get(name) for name in ("party", "round", "kind", "observer", "epsilon", "delta")),
            tag("span", str(row.get("hash", ""))[:16], class_="hash"),
        ]
        for row in record.ledger[:MOST_ROWS]
    ]
    if not rows:
        return Html(heading + listed(signs))
    left = len(record.ledger) - len(rows)
    more = tag("p", f"{left} more rows are in the extract.") if left > 0 else ""
    return Html(heading + listed(signs) + folded(f"Extract: {len(record.ledger)} rows", table(header, rows), more))


def _budget(record: Record, checks: Checks) -> Html:
    summary = record.indicators.get("ledger") or {}
    datasets: Sequence[Mapping[str, Any]] = summary.get("datasets") or ()
    if not datasets:
        return Html("")
    names = {
        "dataset": "dataset",
        "unit": "unit",
        "runs": "runs",
        "releases": "releases",
        "epsilon_this_run": "epsilon, this run",
        "epsilon_sum": "epsilon, runs added up",
        "epsilon_together": "all runs together (RDP)",
        "delta": "at delta",
        "lifetime_epsilon": "lifetime limit",
    }
    rows = [[each.get(name) for name in names] for each in datasets]
    drawn = [picture(checks.pictures["budget"], "budget bars")] if "budget" in checks.pictures else []
    note = "As of the end of this run. Runs added up is an upper bound, at the sum of their deltas."
    if not record.privacy.get("private"):
        note += (
            " This run is counted with what its noise would have cost; it was NOT PRIVATE, so no epsilon holds for it."
        )
    shown = table(list(names.values()), rows) + tag("p", note, class_="meta")
    return Html(tag("h2", "Budget of each dataset") + shown + "".join(drawn))


def _pictures(record: Record, checks: Checks) -> Html:
    names = {
        "epsilon": ("epsilon after every round, per party", False),
        "accuracy_epsilon": ("accuracy against epsilon", record.local),
        "learning": ("accuracy and loss per round", record.local),
        "roc": ("ROC curve", record.local),
        "confusion": ("confusion matrix", record.local),
        "gradient_norms": ("gradient norms against the clip norm", True),
    }
    shown = [
        Html(tag("h3", text, " ", _local_badge() if local else "") + picture(checks.pictures[name], text))
        for name, (text, local) in names.items()
        if name in checks.pictures
    ]
    return Html(tag("h2", "Plots") + "".join(shown)) if shown else Html("")


def _quality(record: Record) -> Html:
    indicators = record.indicators
    parts = ("train", "test")
    metrics = [name for name in METRICS if any(indicators.get(f"{part}_{name}") is not None for part in parts)]
    if not metrics:
        return Html("")
    rows = [[part, *(indicators.get(f"{part}_{name}") for name in metrics)] for part in parts]
    if indicators.get("test_majority") is not None:
        rows.append(
            ["test, most frequent class", *(indicators["test_majority"] if m == "acc" else None for m in metrics)]
        )
    fit = indicators.get("plain_fit")
    if isinstance(fit, dict):
        rows.append([f"test, {fit.get('what')}", *(fit.get(f"test_{name}") for name in metrics)])
    badge = _local_badge() if record.local else ""
    return Html(tag("h2", "Quality of the model ", badge) + table(["rows of", *metrics], rows))


def _config(record: Record) -> Html:
    return folded("Resolved configuration", tag("pre", record.config_text)) if record.config_text else Html("")


def _lifetime(record: Record) -> float | None:
    """The lifetime budget of the data, if one was set."""
    limits = [each.get("lifetime_epsilon") for each in (record.indicators.get("ledger") or {}).get("datasets") or ()]
    return next((limit for limit in limits if limit is not None), None)


def _local_badge() -> Html:
    return tag("span", "LOCAL", class_="badge local")


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _span(numbers: list[int]) -> str:
    """Round numbers as text: a range where they are one."""
    if len(numbers) > 1 and sorted(numbers) == list(range(min(numbers), max(numbers) + 1)):
        return f"{min(numbers)} to {max(numbers)}"
    return ", ".join(map(str, numbers[:20])) + (" …" if len(numbers) > 20 else "")
