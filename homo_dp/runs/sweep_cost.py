"""What a sweep cost: all its cells together, because picking the best one means looking at all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = (
    "choosing a cell by its result on private rows costs the epsilon of all cells together; its own epsilon holds only "
    "for a cell that was fixed before looking, or chosen on public rows; private test rows are covered only where the "
    "choice goes by released metrics (metrics.release: noised)"
)
WHY_SUM = "sum: the number of runs is fixed and every result is shown"


@dataclass(frozen=True)
class Price:
    """Epsilon of a whole sweep about the dataset that gave away most, if there is one, and what to say about it."""

    epsilon: float | None
    words: tuple[str, ...]
    used: str = WHY_SUM


def price(results: Sequence[Mapping[str, Any]]) -> Price:
    """Add up the releases of all cells, by RDP, from their ledger extracts."""
    private = [result for result in results if result.get("private")]
    if not private:
        said = "NOT PRIVATE: these runs give no guarantee, so there is nothing to add up"
        return Price(None, (said,) if results else ())
    from homo_dp.privacy.accounting.accountants import renyi_epsilon
    from homo_dp.privacy.accounting.events import EventText
    from homo_dp.privacy.ledger.lifetime import Lifetime
    from homo_dp.privacy.ledger.rows import Spend

    spent: dict[tuple[str, str, str], Lifetime] = {}
    delta = 0.0
    for result in private:
        for row in extract_of(result):
            event = EventText(json.dumps(row["event"], sort_keys=True, separators=(",", ":")))
            scope = row["dataset"], row["unit"], row["relation"]
            spent.setdefault(scope, Lifetime()).add(row["run"], row["party"], Spend(event, *scope[1:]))
            delta = max(delta, float(row["delta"]))
    totals = {scope: renyi_epsilon(lifetime.renyi(), delta) for scope, lifetime in spent.items()}
    lines = [
        f"all {spent[scope].runs} runs together: epsilon {total:.4g} at delta {delta:g} by RDP (dataset {scope[0]}, "
        f"{scope[1]}, {scope[2]})"
        for scope, total in totals.items()
    ]
    about = {scope[1:] for scope in totals}  # guarantees about different neighbours do not add up
    return Price(max(totals.values()) if len(about) == 1 else None, (*lines, f"{WORDS}; cost by {WHY_SUM}"))


def extract_of(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The ledger rows of a finished cell; none where it kept none."""
    try:
        rows: list[Mapping[str, Any]] = json.loads(Path(result["files"]["ledger"]).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError):
        return ()
    return rows
