"""Draft outer bounds of columns from their names alone: wide enough to hold what such a column can hold.

No row is read, so the draft tells nothing of the table; it is for a person to check. With ``data.scaling: private`` a
run then learns working bounds within them under its budget.
"""

from __future__ import annotations

import re
from os import PathLike

import yaml

from homo_dp.config.addresses import masked
from homo_dp.core.errors import printable
from homo_dp.data.csv_dialect import sniff
from homo_dp.data.readers import header

ANYTHING = (-1e6, 1e6)
# What a word in a column's name says about its values; the first that matches counts.
_WORDS: tuple[tuple[str, tuple[float, float]], ...] = (
    (r"age|alter|years?_old", (0, 150)),
    (r"year|jahr", (1800, 2200)),
    (r"month", (0, 13)),
    (r"day|hour|minute|week", (0, 1000)),
    (r"percent|pct|percentage", (0, 100)),
    (r"prob|probability|ratio|share|fraction|rate", (0, 10)),
    (r"lat|latitude", (-90, 90)),
    (r"lon|lng|longitude", (-180, 180)),
    (r"temp|temperature", (-300, 5000)),
    (r"height|length|width|weight|bmi|pressure|pulse|dose", (0, 1e4)),
    (r"income|salary|amount|price|cost|balance|loan|debt|limit|value|capital|gain|loss", (-1e8, 1e8)),
    (r"count|number|num|n|qty|quantity|visits", (0, 1e6)),
    (r"score|grade|points|rating", (-1e3, 1e4)),
)


def outer_bounds(name: str) -> tuple[float, float]:
    """Outer bounds of a column by its name.

    >>> outer_bounds("age"), outer_bounds("Annual income"), outer_bounds("x7")
    ((0, 150), (-100000000.0, 100000000.0), (-1000000.0, 1000000.0))
    """
    words = set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))
    for pattern, bounds in _WORDS:
        if any(re.fullmatch(pattern, word) for word in words):
            return bounds
    return ANYTHING


def outer_draft(path: str | PathLike[str], label: str | None = None) -> str:
    """A `data` block with outer bounds for every column of a table; of the file only the header is read."""
    form, _ = sniff(path)
    names = [str(name) for name in header(path, form)]
    aside = {label or "y", "id"}
    shown = printable(masked(str(path)))
    lines = [
        f"# outer bounds by the names of the columns of {shown}; no row was read. Check each one: give",
        "# levels: [...] to a column of words, and list free text in drop",
        "data:",
        "  scaling: private",
        f"  label: {_text(label or 'y')}",
        "  bounds_source: public",
        "  columns:",
    ]
    for name in names:
        if name not in aside:
            low, high = outer_bounds(name)
            lines.append(f"    {_text(name)}: {{bounds: [{low:g}, {high:g}], missing: middle}}")
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, allow_unicode=True)).removesuffix("\n...\n").strip()
