"""What an epsilon means, in numbers that a reader without the theory can hold against their own
case.

Differential privacy bounds what anybody can conclude about one record. Two ways to say it: how far
odds can move, and how often the best attack on one record can be right while it is wrong for one
record in a hundred.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.dp_event import ComposedDpEvent, DpEvent
from homo_dp.privacy.accounting.events import from_json
from homo_dp.privacy.errors import PrivacyError
from homo_dp.tracking.report.page import HtmlTable

FALSE_POSITIVES = 0.01
LARGEST = 700.0  # exp of it is still a float
PRIORS = (0.5, 0.1, 0.01)
PROFILE_DELTAS = tuple(10.0**-power for power in (1, 1.5, 2, 3, 4, 5))
Points = Sequence[tuple[float, float]]  # (epsilon, delta), each a bound that holds


def most_true_positives(points: Points, false_positives: float = FALSE_POSITIVES) -> float:
    """The largest true-positive rate of any attack on one record, at a given false-positive rate.

    Each (epsilon, delta) bounds it twice: TPR <= e^eps FPR + delta, and 1 - FPR <= e^eps (1 - TPR)
    + delta.

    >>> round(most_true_positives([(0.0, 0.0)]), 4), most_true_positives([(50.0, 0.0)])
    (0.01, 1.0)
    """
    found = 1.0
    for spent, delta in points:
        if spent < LARGEST:
            first = math.exp(spent) * false_positives + delta
            second = 1.0 - math.exp(-spent) * max(0.0, 1.0 - false_positives - delta)
            found = min(found, first, second)
    return max(false_positives, found)


def posterior(prior: float, spent: float) -> float:
    """What a belief about one record can become: odds move by at most e^eps (but for delta).

    >>> round(posterior(0.5, 1.0), 4)
    0.7311
    """
    odds = prior / (1 - prior) * math.exp(min(spent, LARGEST))
    return odds / (1 + odds)


def meaning_table(
    privacy: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]]
) -> HtmlTable | None:
    """Epsilon in odds and in attacks, for the party with the largest; None where no epsilon
    holds.
    """
    spent, delta = privacy.get("epsilon"), privacy.get("delta")
    if (
        not privacy.get("private")
        or not isinstance(spent, int | float)
        or not isinstance(delta, int | float)
    ):
        return None
    points = [(float(spent), float(delta)), *_profile(privacy, ledger, float(spent))]
    unit = str(privacy.get("unit", "record"))
    total = min(1.0, privacy.get("delta_with_neglected") or float(delta))
    believed = {
        f"who believed it with {100 * prior:.0f} % can come to believe it with": prior
        for prior in PRIORS
    }
    rows: list[Sequence[object]] = [
        [
            f"odds that one {unit} was in the data can change by a factor of",
            _short(math.exp(spent)) if spent < LARGEST else "no bound in practice",
        ],
        *[[words, f"{100 * posterior(prior, spent):.1f} %"] for words, prior in believed.items()],
        [
            (
                f"the best attack finds this share of the {unit}s that were in, if it takes 1 % of "
                "the others for members"
            ),
            f"{100 * most_true_positives(points):.1f} %",
        ],
        ["guessing finds, at the same 1 %", f"{100 * FALSE_POSITIVES:.1f} %"],
        ["but with probability (delta) at most, no bound of these holds", f"{total:.3g}"],
    ]
    return HtmlTable(["what it means", "at most"], rows)


def _profile(
    privacy: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]], spent: float
) -> Points:
    """Other (epsilon, delta) of the same releases, by PLD: one attack is bounded best by one,
    another by another.
    """
    by_party: dict[str, list[Mapping[str, Any]]] = {}
    for row in ledger:
        by_party.setdefault(str(row.get("party")), []).append(row)
    most = max(
        by_party.values(),
        key=lambda rows: max(float(row.get("epsilon") or 0.0) for row in rows),
        default=[],
    )
    quoted = max((float(row.get("epsilon") or 0.0) for row in most), default=0.0)
    # the extract is not of what the statement quotes
    if not most or not math.isclose(quoted, spent, rel_tol=0.01):
        return []
    try:
        event: DpEvent = ComposedDpEvent([from_json(json.dumps(row["event"])) for row in most])
        found = [(epsilon(event, delta).pld, delta) for delta in PROFILE_DELTAS]
    except (PrivacyError, ValueError, KeyError):
        return []
    return [(value, delta) for value, delta in found if value is not None]


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1e6 else f"{value:.1e}"
