"""Values that a description does not know: how many of a column were clipped, or were none of its levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WARN_ABOVE = (
    0.1  # share of a column's values that a model does not know; predict.warn_above of commands
)


@dataclass(frozen=True)
class ColumnStrays:
    """What happened to the values of one column, in rows."""

    other: int = 0  # none of the declared levels
    clipped: int = 0  # outside of the declared bounds
    missing: int = 0

    def __add__(self, more: ColumnStrays) -> ColumnStrays:
        return ColumnStrays(
            self.other + more.other, self.clipped + more.clipped, self.missing + more.missing
        )


@dataclass
class Strays:
    """Adds up, chunk by chunk, what did not fit the declared columns of a table that is scored.

    >>> strays = Strays()
    >>> strays.add(10, {"colour": ColumnStrays(other=4), "age": ColumnStrays(clipped=1)})
    >>> strays.warnings(0.25)
    ["column 'colour': 4 of 10 values (40%) are none of the declared levels and count as other"]
    """

    rows: int = 0
    columns: dict[str, ColumnStrays] = field(default_factory=dict)

    def add(self, rows: int, found: Mapping[str, ColumnStrays]) -> None:
        """Count the rows of one more piece of the table."""
        self.rows += rows
        for name, each in found.items():
            self.columns[name] = self.columns.get(name, ColumnStrays()) + each

    def counts(self) -> dict[str, dict[str, int]]:
        """The columns in which a value was clipped or other, with their counts, for the indicators."""
        return {
            name: {"other": each.other, "clipped": each.clipped, "missing": each.missing}
            for name, each in self.columns.items()
            if each.other or each.clipped
        }

    def warnings(self, share: float) -> list[str]:
        """One line for each column of which more than this share did not fit."""
        lines = []
        for name, each in self.columns.items():
            for count, what in (
                (each.other, "are none of the declared levels and count as other"),
                (each.clipped, "are outside of the declared bounds and were clipped"),
            ):
                if self.rows and count > share * self.rows:
                    lines.append(
                        f"column {name!r}: {count} of {self.rows} values ({count / self.rows:.0%}) {what}"
                    )
        return lines
