"""The questions and hazards of NIST SP 800-226 (Guidelines for Evaluating Differential Privacy
Guarantees, 2025).

Each has the answer for this run, derived from its roles, transport and mechanism, and the setting
or test behind it; what is not covered or not stated says so. docs/nist.md is the page of the same
questions for the software as a whole.
"""

from __future__ import annotations

import json

from homo_dp.privacy.accounting.strength import epsilon_text
from homo_dp.tracking.report.page import HtmlTable
from homo_dp.tracking.report.run_files import Record
from homo_dp.tracking.report.setup_text import NOT_STATED, bounds_words
from homo_dp.tracking.report.text import trust_words

NOT_COVERED = "not covered"
Row = tuple[str, str, str]


def hazards(record: Record) -> HtmlTable:
    """One row a question: what it asks, the answer for this run, and what the answer rests on."""
    rows = [
        *_about_the_guarantee(record),
        _trust(record),
        _composition(record),
        *_about_the_computation(record),
        *_about_the_data(record),
        _keys(record),
        _exposure(record),
    ]
    return HtmlTable(["question", "this run", "rests on"], rows)


def _about_the_guarantee(record: Record) -> list[Row]:
    privacy = record.privacy
    relation = str(privacy.get("neighbouring_relation", "see each party")).replace("_", " ")
    if privacy.get("unit") == "user":
        unit = "one user: all rows of a person within one party; who is in several parties"
    elif record.indicators.get("one_row_per_person") is True:
        unit = "one record, and each person has one row, as the config states; who has more"
    else:
        unit = "one record; a person with several records, or in several parties,"
    return [
        (
            "Unit of privacy",
            f"{unit} is protected less",
            "privacy.unit, data.one_row_per_person",
        ),
        ("Neighbouring tables", relation, "the sampler decides: docs/guarantees.md"),
        (
            "Epsilon and delta, and how they were chosen",
            _chosen(record),
            (
                "privacy.target_epsilon, privacy.delta; why this value is for the data controller "
                "to write down"
            ),
        ),
        (
            "Which variant, and how tight",
            (
                "(epsilon, delta) by privacy loss distributions where they exist, checked by "
                "Renyi; never the Gaussian approximation"
            ),
            "both figures stand under Parties; tests hold them against dp-accounting",
        ),
    ]


def _chosen(record: Record) -> str:
    privacy, target = record.privacy, record.settings.target_epsilon
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta") or 0.0
    said = (
        "no finite epsilon"
        if epsilon is None
        else f"epsilon {epsilon_text(epsilon)}, delta {delta:g}"
    )
    chosen = (
        "the noise was given"
        if target is None
        else f"the noise was solved for a target of {target:g}"
    )
    if target is not None and record.setup.role == "party":
        chosen += ", the smaller of the plan's target and this party's own limit"
    rows = [party.get("rows") for party in (privacy.get("parties") or {}).values()]
    if privacy.get("unit") != "record" or not rows or None in rows:
        return f"{said}; {chosen}"
    below = "below" if delta * max(rows) < 1 else "NOT below"
    whose = "this party" if record.setup.role == "party" else "every party"
    return f"{said}; {chosen}; delta is {below} 1 / rows of {whose}"


def _trust(record: Record) -> Row:
    privacy, simulated = record.privacy, record.setup.role == "simulation"
    settings = "privacy.trust_aggregator, privacy.secure_aggregation; docs/threat_model.md"
    trusted = trust_words(privacy)
    if trusted is not None:
        text = f"the aggregator is trusted with updates. {trusted}"
    elif privacy.get("secure_aggregation") == "on":
        text = (
            "the aggregator is not trusted and sees only masked totals; each party trusts the "
            "others to add their shares of the noise, but for the tolerated dropouts and colluders"
        )
    else:
        text = (
            "the aggregator is not trusted: a party adds all of its noise before a message leaves "
            "it, and trusts nobody else"
        )
    if not simulated:
        return "Trust model", text, settings
    text = (
        "whoever runs this process is trusted with the rows of all parties: it was a simulation. "
        f"Of the mechanism itself: {text}"
    )
    return "Trust model", text, settings


def _composition(record: Record) -> Row:
    datasets = (record.indicators.get("ledger") or {}).get("datasets") or ()
    runs = max((int(each.get("runs") or 0) for each in datasets), default=0)
    limit = next(
        (each["lifetime_epsilon"] for each in datasets if each.get("lifetime_epsilon") is not None),
        None,
    )
    capped = (
        "no lifetime limit was set"
        if limit is None
        else f"a lifetime limit of {limit:g} is enforced"
    )
    if datasets:
        answer = f"{runs} run{'' if runs == 1 else 's'} on these data so far; {capped}"
    elif record.setup.role == "aggregator":
        answer = (
            "each party's own ledger adds up its runs and holds its limit; they are not known here"
        )
    else:
        answer = f"no ledger was kept, so that other runs on these data are {NOT_COVERED}"
    return (
        "Composition over time",
        answer,
        (
            "the hash-chained ledger, charged before anything leaves; privacy.lifetime_epsilon "
            "as a Renyi filter"
        ),
    )


def _about_the_computation(record: Record) -> list[Row]:
    privacy = record.privacy
    generator = (
        "a cryptographic generator"
        if privacy.get("secure_mode")
        else "an ordinary generator, predictable"
    )
    said = "what a party says, and in which order, does not depend on its rows"
    if record.setup.role == "simulation":
        said = "no party spoke to anybody outside this process"
    return [
        (
            "Sampling",
            _sampling(record),
            "tests with broken samplers; python -m homo_dp.audit",
        ),
        (
            "Randomness and floating point",
            (
                f"noise from {generator}; sums and noise in float64 or integers, released on a "
                "public grid"
            ),
            "privacy.secure_mode; attacks on low bits and lattices in the tests",
        ),
        (
            "Side channels",
            f"{said}; time, memory and traffic volume are {NOT_COVERED}",
            "tests with neighbouring tables and hostile messages",
        ),
    ]


def _sampling(record: Record) -> str:
    """Whether epsilon counts on units that were left out of a step by chance."""
    parties = (record.privacy.get("parties") or {}).values()
    rates = {party.get("sample_rate") for party in parties}
    sampled = any("Sampled" in json.dumps(row.get("event")) for row in record.ledger)
    if rates == {1.0} or (record.ledger and not sampled):
        return "epsilon claims no amplification by sampling: each unit counts as used in every step"
    return (
        "the object that draws the units names the event, so that a shuffled epoch cannot be "
        "accounted as Poisson; the rates stand under Parties"
    )


def _about_the_data(record: Record) -> list[Row]:
    bounds = record.indicators.get("bounds")
    source = bounds.get("source") if isinstance(bounds, dict) else None
    if source == "draft":
        answer = f"{NOT_COVERED}: bounds and categories were read from the rows (draft)"
    elif source in (None, NOT_STATED):
        answer = (
            f"where bounds and categories come from is {NOT_STATED}; epsilon takes them as public"
        )
    else:
        answer = f"by bounds and categories that are {bounds_words(bounds)}"
    return [
        (
            "Hyper-parameters",
            (
                "whether settings were chosen by looking at private rows is not known here; runs "
                "that are on the same ledger are counted, looking at private test rows is "
                + NOT_COVERED
            ),
            "compare and tune charge what they cost; train.auto reads public facts alone",
        ),
        ("Preprocessing", answer, "data.columns, data.bounds_source"),
    ]


def _keys(record: Record) -> Row:
    ledgers = "ledgers are hash-chained with an anchored head"
    match record.setup.role:
        case "simulation":
            answer = f"no message left the process, so there were no keys; {ledgers}"
        case "party":
            answer = (
                "each message was signed and encrypted to its recipient, under keys that this "
                f"party's config names; {ledgers}; files are readable by its user alone"
            )
        case "aggregator":
            answer = (
                "each message was signed and encrypted to its recipient, under keys that the "
                f"aggregator's config names; {ledgers}, each at its party"
            )
        case _:
            answer = f"{ledgers}; how messages travelled is {NOT_STATED}"
    return (
        "Keys, ledgers, access",
        answer,
        f"docs/keys.md, docs/ledger.md; who may log in to the machines is {NOT_COVERED}",
    )


def _exposure(record: Record) -> Row:
    about = record.indicators.get("about")
    retention = about.get("retention") if isinstance(about, dict) else None
    stay = (
        "the rows of all parties were in one process"
        if record.setup.role == "simulation"
        else "rows stay where they are, and what leaves is on the ledger"
    )
    return (
        "Data exposure after collection",
        (
            f"{stay}; retention of model, outputs and ledger: {retention or NOT_STATED}; retention "
            f"and deletion of the tables are {NOT_COVERED}"
        ),
        (
            "report.retention; the list of kinds of messages; a test that plants values and looks "
            "for them in all that leaves"
        ),
    )
