"""``homo_dp.plan``: what a training would release and cost, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from homo_dp.api.settings import Own, Settings
from homo_dp.api.tables import Parties
from homo_dp.api.training import Bounds, Categories, configured

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.federation.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Plan:
    """What each party would release, by public facts alone."""

    # a row for each party: steps, sample rate, noise, epsilon, remaining budget
    parties: pd.DataFrame
    releases: tuple[str, ...]
    notes: tuple[str, ...]
    refused: str | None  # why the run would be refused; None if it would go through

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon over the parties; None where the mechanism gives no guarantee."""
        found = self.parties["epsilon (PLD)"].fillna(self.parties["epsilon (RDP)"])
        return None if found.isna().any() else float(found.max())

    def __repr__(self) -> str:
        cost = "no guarantee" if self.epsilon is None else f"epsilon {self.epsilon:.4g} at most"
        lines = [f"Plan: {cost}"]
        for party, facts in self.parties.iterrows():
            said = ", ".join(
                f"{name} {_short(value)}" for name, value in facts.items() if value is not None
            )
            lines.append(f"  {party}: {said}")
        lines += ["releases:", *(f"  {each}" for each in self.releases), *self.notes]
        return "\n".join(
            lines if self.refused is None else [*lines, f"would be refused: {self.refused}"]
        )

    def _repr_html_(self) -> str:
        from homo_dp.tracking.report.page import HtmlTable, render

        rows = self.parties.astype(object).where(self.parties.notna(), None).itertuples(name=None)
        table = HtmlTable(["party", *map(str, self.parties.columns)], list(rows))
        return render("plan.html", parties=table, texts=(*self.releases, *self.notes))


def plan(
    parties: Parties | None = None,
    *,
    rows: Mapping[str, int] | None = None,
    label: str | None = None,
    epsilon: float | None = None,
    settings: Settings | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    categories: Categories | None = None,
    classes: Sequence[Any] | None = None,
    party: str | None = None,
    ledger: str | PathLike[str] | EllipsisType | None = None,
    model: Own | None = None,
    mechanism: str | type[Mechanism] | None = None,
) -> Plan:
    """The plan of ``homo_dp.fit`` with the same arguments; charges nothing, and of tables only
    counts the rows.

    Without tables declare the counts by ``rows`` (``data.rows``).

    >>> plan(epsilon=2, settings={"data.embedded": "breast_cancer", "train.rounds": 3}).parties.index.tolist()
    ['party_1', 'party_2', 'party_3']
    """
    with configured(
        parties,
        label=label,
        epsilon=epsilon,
        settings=_with_rows(settings, rows),
        bounds=bounds,
        categories=categories,
        classes=classes,
        party=party,
        ledger=_named(settings) if ledger is None else ledger,
        model=model,
        mechanism=mechanism,
    ) as config:
        import pandas as pd

        from homo_dp.runs.dry_run import plan_of

        planned = plan_of(config)
        table = pd.DataFrame([dict(row) for row in planned.parties.values()]).set_index("party")
        notes = (*planned.auto, *planned.notes)
        return Plan(table, planned.releases, notes, planned.refused)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _with_rows(settings: Settings | None, rows: Mapping[str, int] | None) -> Settings | None:
    if rows is None:
        return settings
    from homo_dp.api.settings import tree_of

    tree: dict[str, Any] = tree_of(settings)
    tree.setdefault("data", {})["rows"] = dict(rows)
    return tree


def _named(settings: Settings | None) -> EllipsisType | None:
    """A ledger that settings name is looked at for what is left; without one there is nothing to
    look at.
    """
    from homo_dp.api.settings import tree_of
    from homo_dp.config.layers import get

    return ... if get(tree_of(settings), "privacy.ledger") is not None else None
