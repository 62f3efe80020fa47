"""``homo_dp.stats``: private statistics of tables, as ``homo-dp stats`` asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from homo_dp.api.settings import Settings
from homo_dp.api.tables import Parties
from homo_dp.api.training import Bounds, Categories, configured

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Statistics:
    """Answers with their standard errors, and what they cost.

    ``results`` is all of it, as ``homo-dp stats`` writes it to its JSON file.
    """

    results: Mapping[str, Any]

    @property
    def questions(self) -> Mapping[str, Mapping[str, Any]]:
        """By question: ``values``, ``standard_errors``, and what it would cost alone
        (``epsilon``).
        """
        found: Mapping[str, Mapping[str, Any]] = self.results["questions"]
        return found

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The privacy statement: unit, relation, observers, and epsilon by party and accountant."""
        found: Mapping[str, Any] = self.results["privacy"]
        return found

    @property
    def epsilon(self) -> float:
        """What all questions together cost: the largest epsilon over the parties."""
        return float(self.privacy["epsilon"])

    @property
    def delta(self) -> float:
        """The delta that epsilon goes with."""
        return float(self.privacy["delta"])

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each number: ``value`` and ``standard_error``, histograms left out."""
        import pandas as pd

        from homo_dp.runs.statistics_outputs import rows_of

        columns = ["answer", "value", "standard_error"]
        return pd.DataFrame(list(rows_of(dict(self.results))), columns=columns).set_index("answer")

    def __getitem__(self, question: str) -> Mapping[str, Any]:
        """The values of one question."""
        if question not in self.questions:
            raise KeyError(f"{question}: was not asked; asked were {', '.join(self.questions)}")
        found: Mapping[str, Any] = self.questions[question]["values"]
        return found

    def __repr__(self) -> str:
        asked = ", ".join(self.questions)
        return f"Statistics({asked}; {self.privacy['statement']})\n{self.table}"

    def _repr_html_(self) -> str:
        from html import escape

        statement = escape(str(self.privacy["statement"]))
        return f"<p>{statement}</p>{self.table.to_html(max_rows=60)}"


def stats(
    parties: Parties | None = None,
    ask: str | Sequence[str] = ("rows", "classes"),
    *,
    epsilon: float,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    settings: Settings | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    categories: Categories | None = None,
    classes: Sequence[Any] | None = None,
    party: str | None = None,
    ledger: str | PathLike[str] | EllipsisType | None = ...,
) -> Statistics:
    """Answer questions about the rows of all parties, with differential privacy; the same run as
    ``homo-dp stats``.

    Args:
        parties: As for ``homo_dp.fit``.
        ask: Some of rows, classes, means, variances, second_moments, histograms, levels, missing,
            quantiles.
        epsilon: What all questions together may cost each party.
        label: The label column; ``y`` unless settings say otherwise.
        columns: The columns that are asked about; fewer get less noise.
        settings: As for ``homo_dp.fit``.
        bounds: Public ``(low, high)`` of the numeric columns, or of each by name.
        categories: Public categories of columns by name, as for ``homo_dp.fit``.
        classes: The values of the label; 0 and 1 need none.
        party: The column of one table that names the party of each row.
        ledger: The file that keeps what was spent on these data, as for ``homo_dp.fit``.

    Returns:
        The answers with their standard errors, and the privacy statement.

    Raises:
        InputError: An argument, a setting or a table cannot be used.
        BudgetExceeded: The answers would cost more than the ledger's budget has left.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.uniform(-1, 1, (400, 2)), rng.integers(0, 2, 400)
        >>> parties = {"a": (X[:200], y[:200]), "b": (X[200:], y[200:])}
        >>> found = stats(parties, "rows", epsilon=1, bounds=(-1, 1), ledger=None)
        >>> found.epsilon <= 1, abs(found["rows"]["rows"] - 320) < 60
        (True, True)
    """
    from homo_dp.runs.statistics import ask_in_process, asking

    wanted = tuple(part.strip() for part in ask.split(",")) if isinstance(ask, str) else tuple(ask)
    with configured(
        parties,
        label=label,
        epsilon=epsilon,
        settings=settings,
        bounds=bounds,
        categories=categories,
        classes=classes,
        party=party,
        ledger=ledger,
        mechanism="statistics",
    ) as config:
        asked = asking(config, wanted, None if columns is None else tuple(columns))
        return Statistics(ask_in_process(asked))
