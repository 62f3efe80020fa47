"""Values that a description does not hold: how many of a column were clipped, or were none of
its categories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# share of a column's values that a model does not know
WARN_ABOVE = 0.1

# what happened to a value, and how a person is told
KINDS = {
    "other": "are none of the declared categories and count as other",
    "clipped": "are outside the declared bounds and were clipped",
}
Shares = Mapping[str, Mapping[str, float]]  # by column and kind, of the rows


@dataclass(frozen=True)
class ColumnStrays:
    """What happened to the values of one column, in rows."""

    other: int = 0  # none of the declared categories
    clipped: int = 0  # outside the declared bounds
    missing: int = 0

    def __add__(self, more: ColumnStrays) -> ColumnStrays:
        return ColumnStrays(
            self.other + more.other, self.clipped + more.clipped, self.missing + more.missing
        )


@dataclass
class Strays:
    """Adds up, chunk by chunk, what did not fit the declared columns of a table.

    >>> strays = Strays()
    >>> strays.add(10, {"colour": ColumnStrays(other=4), "age": ColumnStrays(clipped=1)})
    >>> strays.warnings(0.25)
    ["column 'colour': 4 of 10 values (40 %) are none of the declared categories and count as other"]
    """

    rows: int = 0
    columns: dict[str, ColumnStrays] = field(default_factory=dict)

    def add(self, rows: int, found: Mapping[str, ColumnStrays]) -> None:
        """Count the rows of one more piece of the table."""
        self.rows += rows
        for name, each in found.items():
            self.columns[name] = self.columns.get(name, ColumnStrays()) + each

    def counts(self) -> dict[str, dict[str, int]]:
        """The columns in which a value was clipped or other, with their counts, for the
        indicators.
        """
        return {
            name: {"other": each.other, "clipped": each.clipped, "missing": each.missing}
            for name, each in self.columns.items()
            if each.other or each.clipped
        }

    def shares(self) -> Shares:
        """The columns in which a value was clipped or other, with their shares of the rows."""
        return {
            name: {kind: counts[kind] / self.rows for kind in KINDS}
            for name, counts in self.counts().items()
        }

    def warnings(self, share: float, trained: Shares | None = None) -> list[str]:
        """One line for each column that does not fit in more than this share of the rows.

        Args:
            share: the share of the rows from which on a column is named.
            trained: the shares in the rows that the model was trained on, which are then taken off
                first; None where they are not known.
        """
        lines = []
        for name, found in self.shares().items():
            for kind, what in KINDS.items():
                known = None if trained is None else trained.get(name, {}).get(kind, 0.0)
                if found[kind] - (known or 0.0) <= share:
                    continue
                before = "" if known is None else f"; in training {100 * known:.0f} %"
                count = self.counts()[name][kind]
                lines.append(
                    f"column {name!r}: {count} of {self.rows} values "
                    f"({100 * found[kind]:.0f} %) {what}{before}"
                )
        return lines
