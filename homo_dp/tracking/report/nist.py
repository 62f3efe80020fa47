"""The questions and hazards of NIST SP 800-226 (Guidelines for Evaluating Differential Privacy Guarantees, 2025).

Each has the answer for this run and the setting or test behind it; what is not covered says so. docs/nist.md is the
page of the same questions for the software as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homo_dp.tracking.report.page import HtmlTable
from homo_dp.tracking.report.run_files import Record

NOT_COVERED = "not covered"


def hazards(record: Record) -> HtmlTable:
    """One row a question: what it asks, the answer for this run, and what the answer rests on."""
    privacy = record.privacy
    rows = [
        *_about_the_guarantee(privacy, record.settings.target_epsilon),
        *_about_time(record),
        *_about_the_computation(privacy),
        *_about_the_rest(record),
    ]
    return HtmlTable(["question", "this run", "rests on"], rows)


Row = tuple[str, str, str]


def _about_the_guarantee(privacy: Mapping[str, Any], target: float | None) -> list[Row]:
    relation = str(privacy.get("neighbouring_relation", "see each party")).replace("_", " ")
    epsilon = privacy.get("epsilon")
    said = (
        "no finite epsilon"
        if epsilon is None
        else f"epsilon {epsilon:.4g}, delta {privacy.get('delta') or 0:g}"
    )
    chosen = (
        "the noise was given"
        if target is None
        else f"the noise was solved for a target of {target:g}"
    )
    trusted = privacy.get("quoted_observer") == "model_reader"
    secure = privacy.get("secure_aggregation") == "on"
    return [
        (
            "Unit of privacy",
            f"one {privacy.get('unit')}; a person with several of them, or in several parties, is protected less",
            "privacy.unit",
        ),
        ("Neighbouring tables", relation, "the sampler decides: docs/guarantees.md"),
        (
            "Epsilon and delta, and how they were chosen",
            f"{said}; {chosen}. Delta is below 1 / rows of every party",
            "privacy.target_epsilon, privacy.delta; why this value is for the data controller to write down",
        ),
        (
            "Which variant, and how tight",
            "(epsilon, delta) by privacy loss distributions where they exist, checked by Renyi; never the Gaussian "
            "approximation",
            "both figures stand under Parties; tests hold them against dp-accounting",
        ),
        (
            "Trust model",
            (
                "the aggregator is trusted with updates"
                if trusted
                else "nobody but the party itself is trusted"
            )
            + ("; it sees only masked totals" if secure else ""),
            "privacy.trust_aggregator, privacy.secure_aggregation; docs/threat_model.md",
        ),
    ]


def _about_time(record: Record) -> list[Row]:
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
    return [
        (
            "Composition over time",
            f"{runs or 'an unknown number of'} run{'' if runs == 1 else 's'} on these data so far; {capped}",
            "the hash-chained ledger, charged before anything leaves; privacy.lifetime_epsilon as a Renyi filter",
        )
    ]


def _about_the_computation(privacy: Mapping[str, Any]) -> list[Row]:
    generator = (
        "a cryptographic generator"
        if privacy.get("secure_mode")
        else "an ordinary generator, predictable"
    )
    return [
        (
            "Sampling",
            "the object that draws the rows names the event, so that a shuffled epoch cannot be accounted as Poisson",
            "tests with broken samplers; python -m homo_dp.audit",
        ),
        (
            "Randomness and floating point",
            f"noise from {generator}; sums and noise in float64 or integers, released on a public grid",
            "privacy.secure_mode; attacks on low bits and lattices in the tests and in audit --attack low_bits",
        ),
        (
            "Side channels",
            "what a party says, and in which order, does not depend on its rows; time, memory and traffic volume are "
            + NOT_COVERED,
            "tests with neighbouring tables and hostile messages",
        ),
    ]


def _about_the_rest(record: Record) -> list[Row]:
    bounds = record.indicators.get("bounds")
    source = (
        str(bounds.get("source")) if isinstance(bounds, dict) else "declared in the configuration"
    )
    return [
        (
            "Hyper-parameters",
            "chosen outside of private data, or by runs that are on the same ledger; looking at private test rows to "
            "choose is " + NOT_COVERED,
            "compare and tune charge what they cost; train.auto reads public facts alone",
        ),
        (
            "Preprocessing",
            f"scaling and levels by public bounds or bounds under the budget ({source})",
            "data.columns, data.bounds_source",
        ),
        (
            "Keys, ledgers, access",
            "messages signed and encrypted to their recipient; ledgers hash-chained with an anchored head; files of a "
            "party readable by its user alone",
            "docs/keys.md, docs/ledger.md; who may log in to the machines is " + NOT_COVERED,
        ),
        (
            "Data exposure after collection",
            "rows stay where they are, and what leaves is on the ledger; retention and deletion of the tables are "
            + NOT_COVERED,
            "the list of kinds of messages; a test that plants values and looks for them in all that leaves",
        ),
    ]
