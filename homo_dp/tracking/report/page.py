"""HTML from the templates beside this file, by jinja2: every value is escaped, a name without a
value is an error.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@dataclass(frozen=True)
class HtmlTable:
    """A table for the macro of the same name; columns of numbers stand to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    last_is_hash: bool = False  # the last column holds hashes: monospaced, may break anywhere

    @property
    def right(self) -> list[bool]:
        """For each column, whether it holds numbers only.

        >>> HtmlTable(["name", "rows"], [["a", 3], ["b", None]]).right
        [False, True]
        """
        columns = range(len(self.header))
        return [
            bool(self.rows) and all(_is_number(row[index]) for row in self.rows)
            for index in columns
        ]


def render(template: str, **values: object) -> str:
    """A template of ours with its values filled in.

    >>> render("plan.html", parties=HtmlTable(["party"], [["<b>"]]), texts=[]).count("&lt;b&gt;")
    1
    """
    return _environment().get_template(template).render(values)


def shown(value: object) -> str:
    """A value as a person reads it.

    >>> [shown(value) for value in (None, True, 50.0, 0.123456, "a")]
    ['–', 'yes', '50', '0.1235', 'a']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


@cache
def _environment() -> Environment:
    templates = FileSystemLoader(Path(__file__).parent / "templates")
    made = Environment(
        loader=templates,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["shown"] = shown
    made.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return made


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
