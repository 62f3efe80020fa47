"""What a sweep cost: all its cells together, because picking the best one means looking at all
of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homo_dp.config.schema import Config

WORDS = (
    "choosing a cell by its result on private rows costs the epsilon of all cells together; its "
    "own epsilon holds only for a cell that was fixed before looking, or chosen on public rows; "
    "private test rows are covered only where the choice goes by released metrics "
    "(metrics.release: noised)"
)
WHY_SUM = "sum: the number of runs is fixed and every result is shown"


@dataclass(frozen=True)
class Price:
    """Epsilon of a whole sweep about the dataset that gave away most, if there is one, and what
    to say about it.
    """

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
    deltas: set[float] = set()
    for result in private:
        for row in extract_of(result):
            event = EventText(json.dumps(row["event"], sort_keys=True, separators=(",", ":")))
            scope = row["dataset"], row["unit"], row["relation"]
            spent.setdefault(scope, Lifetime()).add(
                row["run"], row["party"], Spend(event, *scope[1:])
            )
            deltas.add(float(row["delta"]))
    runs = {scope: lifetime.runs for scope, lifetime in spent.items()}
    delta = max(deltas, default=0.0)
    among = f", the largest of {_listed(deltas)}" if len(deltas) > 1 else ""
    totals = {scope: renyi_epsilon(lifetime.renyi(), delta) for scope, lifetime in spent.items()}
    lines = []
    for scope, total in totals.items():
        about = ", ".join(scope[1:])
        lines.append(
            f"all {runs[scope]} runs together: epsilon {total:.4g} at delta {delta:g}{among} by "
            f"RDP (dataset {scope[0]}, {about})"
        )
    starts = sorted({str(result["before"]["init_from"]) for result in private if _start(result)})
    lines += [
        f"train.init_from={start}: what that model cost is not in this sum; it adds up where its "
        "data are the same"
        for start in starts
    ]
    # guarantees about different neighbours do not add up
    neighbours = {scope[1:] for scope in totals}
    return Price(
        max(totals.values()) if len(neighbours) == 1 else None,
        (*lines, f"{WORDS}; cost by {WHY_SUM}"),
    )


def before_of(config: Config) -> dict[str, Any]:
    """What a cell builds on that its own ledger rows do not show; kept with its result."""
    return {"init_from": config.train.init_from}


def _start(result: Mapping[str, Any]) -> bool:
    return (result.get("before") or {}).get("init_from") is not None


def extract_of(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The ledger rows of a finished cell; none where it kept none."""
    try:
        rows: list[Mapping[str, Any]] = json.loads(
            Path(result["files"]["ledger"]).read_text(encoding="utf-8")
        )
    except (OSError, ValueError, KeyError):
        return ()
    return rows


def _listed(deltas: set[float]) -> str:
    return ", ".join(f"{delta:g}" for delta in sorted(deltas, reverse=True))
