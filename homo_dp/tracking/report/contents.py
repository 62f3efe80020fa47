"""The privacy report of a run, for a privacy officer to read and file: one HTML page made of the
run's own files.

This file says which values the page shows, ``templates/report.html`` how they look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homo_dp import __version__
from homo_dp.tracking.indicators import no_better_than_majority
from homo_dp.tracking.report.epsilon_meaning import meaning_table
from homo_dp.tracking.report.evidence import CANNOT_SHOW, NONE_FOUND, audit_table
from homo_dp.tracking.report.nist import hazards
from homo_dp.tracking.report.page import HtmlTable, render
from homo_dp.tracking.report.run_files import Record
from homo_dp.tracking.report.setup_text import (
    NOT_STATED,
    aggregator_words,
    bounds_words,
    how_it_ran,
    parties_words,
    simulation_words,
)
from homo_dp.tracking.report.text import (
    badge,
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
ABOUT = {
    "purpose": "purpose",
    "controller": "data controller",
    "retention": "retention",
    "contact": "contact",
}
# What the report says in words or tables of their own; everything else that a mechanism states is
# listed as it is.
SAID = {
    *(
        "private",
        "statement",
        "mechanism",
        "unit",
        "neighbouring_relation",
        "epsilon",
        "delta",
        "strength",
        "secure_mode",
    ),
    *("neglected_epsilon", "neglected_delta", "delta_with_neglected"),
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


def report_page(record: Record, checks: Checks, signer: str | None = None) -> str:
    """The report as HTML; ``signer`` is who signs it with a key."""
    privacy = record.privacy
    private = bool(privacy.get("private"))
    return render(
        "report.html",
        title=f"Privacy report: {record.run}",
        version=__version__,
        badge=badge(privacy, verified=checks.good),
        private=private,
        local=record.local,
        findings=checks.findings,
        failed=[text for good, text in checks.findings if not good],
        statement=privacy.get("statement", ""),
        simulation=simulation_words(private=private) if record.setup.role == "simulation" else None,
        all_runs=_all_runs(record),
        meaning=meaning_table(privacy, record.ledger),
        signer=signer,
        weakness=weakness(privacy),
        trained=_trained(record),
        guarantee=guarantee(privacy),
        guarantee_facts=_guarantee_facts(record),
        basis=privacy.get("basis"),
        parties=_parties(record),
        releases=_releases(record) if record.ledger else None,
        released_what="; ".join(privacy.get("releases") or ()),
        released_words=released_words(privacy),
        unlisted_words=unlisted_words(privacy, kept_by_parties="ledger_heads" in record.indicators),
        heads=_heads(record),
        ledger=_ledger(record),
        ledger_rows=len(record.ledger),
        budget=_budget(record),
        budget_picture=checks.pictures.get("budget"),
        plots=_plots(record, checks),
        quality=_quality(record),
        useless=_sentence(no_better_than_majority(record.indicators)),
        audits=audit_table(record.audits, privacy),
        audit_pictures=[each.picture for each in record.audits if each.picture is not None],
        cannot_show=CANNOT_SHOW,
        no_audit=NONE_FOUND,
        hazards=hazards(record) if private else None,
        limits=limits(privacy, _lifetime(record)),
        config_text=record.config_text,
    )


def _trained(record: Record) -> list[tuple[str, object]]:
    """What was trained on what, as far as it is known."""
    indicators = record.indicators
    about = _mapping(indicators.get("about"))
    parties = list(record.privacy.get("parties") or {})
    rows = [party.get("rows") for party in (record.privacy.get("parties") or {}).values()]
    known = [count for count in rows if count is not None]
    done = indicators.get("rounds_done", len(record.rounds))
    pairs = [
        ("run", record.run),
        ("finished", indicators.get("finished")),
        *((name, about.get(key) or NOT_STATED) for key, name in ABOUT.items()),
        ("how it ran", how_it_ran(record.setup)),
        ("aggregator", aggregator_words(record.setup)),
        ("software", _software(indicators)),
        ("model", indicators.get("model")),
        ("data", indicators.get("data")),
        ("parties", parties_words(record.setup, parties)),
        (
            f"training {_counted(record)}",
            sum(known) if known and len(known) == len(rows) else "not in this report",
        ),
        ("row counts", record.privacy.get("rows")),
        ("bounds and categories", bounds_words(_mapping(indicators.get("bounds")))),
        ("one row per person", _rows_words(indicators)),
        ("rounds", f"{done}{' (interrupted)' if indicators.get('interrupted') else ''}"),
    ]
    return [(name, value) for name, value in pairs if value is not None]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _software(indicators: Mapping[str, Any]) -> str:
    """Version, commit and the libraries that the result rests on."""
    found = _mapping(indicators.get("software"))
    commit = f", commit {found['commit']}" if found.get("commit") else ""
    used = ", ".join(
        f"{name} {number}" for name, number in _mapping(found.get("libraries")).items()
    )
    return f"homo_dp {indicators.get('version', 'unknown')}{commit}" + (f"; {used}" if used else "")


def _rows_words(indicators: Mapping[str, Any]) -> str | None:
    """What is assumed about the rows of one person."""
    said = indicators.get("one_row_per_person")
    if said is None:
        return None
    if said is True:
        return "yes, by data.one_row_per_person: epsilon is that of a person"
    return (
        "unknown: epsilon is that of a row, and a person with k rows has up to k times as much; "
        "say data.one_row_per_person: true if each has one, or hide persons (privacy.unit: user)"
    )


def _all_runs(record: Record) -> list[str]:
    """What all runs on the same data have cost by the end of this one, in a sentence for each
    dataset.
    """
    sentences = []
    for each in _mapping(record.indicators.get("ledger")).get("datasets") or ():
        together, runs = each.get("epsilon_together"), each.get("runs")
        if together is not None and runs is not None:
            limit = each.get("lifetime_epsilon")
            sentences.append(
                f"All {runs} runs on {each.get('dataset')} so far, this one included: epsilon "
                f"{together:.4g} at delta {each.get('delta'):g} by RDP"
                + (f", of a lifetime budget of {limit:g}." if limit is not None else ".")
                if runs > 1
                else (
                    f"It is the first run on {each.get('dataset')}, so this is what all runs on it "
                    "have cost."
                )
            )
    return sentences


def _guarantee_facts(record: Record) -> list[tuple[str, object]]:
    """What is guaranteed to whom, and what else the mechanism states about itself."""
    privacy = record.privacy
    return [
        ("unit", privacy.get("unit")),
        (
            "neighbouring relation",
            str(privacy.get("neighbouring_relation", "see each party")).replace("_", " "),
        ),
        ("mechanism", privacy.get("mechanism")),
        ("secure mode", privacy.get("secure_mode")),
        *((f"towards {who}", said) for who, said in observers(privacy)),
        *_neglected(privacy),
        *(
            (key.replace("_", " "), privacy[key])
            for key in privacy
            if key not in SAID and _plain(privacy[key])
        ),
    ]


def _neglected(privacy: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What the figures leave out, and why that is small."""
    epsilon, delta = privacy.get("neglected_epsilon"), privacy.get("neglected_delta")
    if epsilon is None or delta is None:
        return []
    total = min(1.0, privacy.get("delta_with_neglected") or 1.0)
    words = (
        f"epsilon {epsilon:.2g} and delta {delta:.2g}: the figures are those of ideal normal "
        "noise; a computer draws noise of finite precision and rounds it to a public grid, and "
        "this bounds the difference; "
    )
    end = (
        "that delta is 1, so that no guarantee is left"
        if total == 1.0
        else f"with it delta is {total:.3g}"
    )
    return [("not in these figures", words + end)]


def _parties(record: Record) -> HtmlTable:
    """A row for each party, with the figures that any of them has."""
    parties: Mapping[str, Mapping[str, Any]] = record.privacy.get("parties") or {}
    names = [name for name in PARTY_COLUMNS if any(name in party for party in parties.values())]
    header = [
        "party",
        *(_counted(record) if name == "rows" else PARTY_COLUMNS[name] for name in names),
    ]
    return HtmlTable(
        header,
        [[party, *(values.get(name) for name in names)] for party, values in parties.items()],
    )


def _counted(record: Record) -> str:
    """What the numbers of rows are of: a simulation has one entry for all its users, and counts
    those.
    """
    together = record.privacy.get("unit") == "user" and list(
        record.privacy.get("parties") or {}
    ) == ["users"]
    return "users" if together else "rows"


def _releases(record: Record) -> HtmlTable:
    """What is on the ledger; rounds that released the same way stand in one row."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in record.ledger:
        event = json.dumps(row.get("event"), sort_keys=True)
        groups.setdefault(
            (str(row.get("party")), str(row.get("kind")), event, str(row.get("sigma"))), []
        ).append(row)
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
    return HtmlTable(["who", "what", "rounds", "how it was made", "sigma"], shown[:MOST_ROWS])


def _heads(record: Record) -> HtmlTable | None:
    """The heads of the parties' own ledgers, which an aggregator keeps; None where there are
    none.
    """
    heads: Mapping[str, Mapping[str, Any] | None] = record.indicators.get("ledger_heads") or {}
    rows = [
        [
            name,
            sum(name in row.get("replied", ()) for row in record.rounds),
            (head or {}).get("count"),
            str((head or {}).get("hash", ""))[:16],
        ]
        for name, head in heads.items()
    ]
    header = ["party", "rounds answered", "rows of its ledger", "head of its ledger"]
    return HtmlTable(header, rows, last_is_hash=True) if rows else None


def _ledger(record: Record) -> HtmlTable | None:
    """The rows of the ledger extract, the first ``MOST_ROWS`` of them; None where there is no
    extract.
    """
    header = [
        "row",
        "time",
        "party",
        "round",
        "kind",
        "observer",
        "epsilon so far",
        "delta",
        "hash",
    ]
    rows = [
        [
            row.get("row"),
            str(row.get("time", "")).partition(".")[0].replace("T", " "),
            *(row.get(name) for name in ("party", "round", "kind", "observer", "epsilon", "delta")),
            str(row.get("hash", ""))[:16],
        ]
        for row in record.ledger[:MOST_ROWS]
    ]
    return HtmlTable(header, rows, last_is_hash=True) if rows else None


def _budget(record: Record) -> HtmlTable | None:
    """What each dataset has spent so far; None where the run has no ledger."""
    summary = record.indicators.get("ledger") or {}
    datasets: Sequence[Mapping[str, Any]] = summary.get("datasets") or ()
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
    return HtmlTable(list(names.values()), rows) if rows else None


def _plots(record: Record, checks: Checks) -> list[tuple[str, bool, bytes]]:
    """Title, whether the plot must stay where the rows are, and PNG of every plot but the
    budget's.
    """
    names = {
        "epsilon": ("epsilon after every round, per party", False),
        "accuracy_epsilon": ("accuracy against epsilon", record.local),
        "learning": ("accuracy and loss per round", record.local),
        "roc": ("ROC curve", record.local),
        "released_curves": (
            "ROC and calibration, released with noise (bars: 95 %, of the noise alone)",
            False,
        ),
        "confusion": ("confusion matrix", record.local),
        "gradient_norms": ("gradient norms against the clip norm", True),
    }
    return [
        (text, local, checks.pictures[name])
        for name, (text, local) in names.items()
        if name in checks.pictures
    ]


def _quality(record: Record) -> HtmlTable | None:
    """Metrics of training and test rows, beside those of a baseline; None where there are none."""
    indicators = record.indicators
    parts, released = ("train", "test"), indicators.get("released_metrics")
    released = released if isinstance(released, dict) else {}
    known = [
        name
        for name in METRICS
        if any(indicators.get(f"{part}_{name}") is not None for part in parts)
    ]
    metrics = [name for name in METRICS if name in known or name in released]
    if not metrics:
        return None
    rows = [[part, *(indicators.get(f"{part}_{name}") for name in metrics)] for part in parts]
    if indicators.get("test_majority") is not None:
        rows.append(
            [
                "test, most frequent class",
                *(indicators["test_majority"] if m == "acc" else None for m in metrics),
            ]
        )
    fit = indicators.get("plain_fit")
    if isinstance(fit, dict):
        rows.append([f"test, {fit.get('what')}", *(fit.get(f"test_{name}") for name in metrics)])
    if released:
        rows.append(
            [
                "test, released with noise (95 %)",
                *(_with_bar(released.get(name)) for name in metrics),
            ]
        )
    parties = indicators.get("released_parties")
    for party, own in parties.items() if isinstance(parties, dict) else ():
        figures = own if isinstance(own, dict) else {}
        rows.append(
            [
                f"test, {party}, released with noise",
                *(_with_bar(figures.get(name)) for name in metrics),
            ]
        )
    return HtmlTable(["rows of", *metrics], rows)


def _sentence(text: str | None) -> str | None:
    return None if text is None else f"{text[0].upper()}{text[1:]}."


def _with_bar(released: object) -> str | None:
    """A released figure with the half width of its bar; None where there is none."""
    if not isinstance(released, dict) or not all(
        isinstance(released.get(key), float) for key in ("value", "error")
    ):
        return None
    return f"{released['value']:.3g} ± {released['error']:.2g}"


def _lifetime(record: Record) -> float | None:
    """The lifetime budget of the data, if one was set."""
    limits = [
        each.get("lifetime_epsilon")
        for each in (record.indicators.get("ledger") or {}).get("datasets") or ()
    ]
    return next((limit for limit in limits if limit is not None), None)


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _span(numbers: list[int]) -> str:
    """Round numbers as text: a range where they are one."""
    # by their count: the numbers are those of a file, and a range between them may not fit memory
    is_range = (
        len(set(numbers)) == len(numbers) == max(numbers, default=0) - min(numbers, default=0) + 1
    )
    if len(numbers) > 1 and is_range:
        return f"{min(numbers)} to {max(numbers)}"
    return ", ".join(map(str, numbers[:20])) + (" …" if len(numbers) > 20 else "")
