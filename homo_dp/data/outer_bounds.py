"""Draft outer bounds of columns from their names and types alone: wide enough to hold what such a
column can hold.

No row is read, so the draft tells nothing of the table; it is for a person to check. With
``data.scaling: private`` a run then estimates working bounds within them under its budget, and the
levels of columns of words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from homo_dp.config.addresses import masked
from homo_dp.core.errors import DataError, printable
from homo_dp.data.describe import (
    NOBODY,
    Draft,
    Tables,
    check_given,
    common_form,
    file_lines,
    form_lines,
    is_identifier,
    is_label,
    is_party,
    paths_of,
    yaml_line,
)
from homo_dp.data.readers import column_types, header

ANYTHING = (-1e6, 1e6)
_KEYS = {"label": "label", "id": "id", "party": "party_column", "user": "user_column"}
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
    (
        r"income|salary|amount|price|cost|balance|loan|debt|limit|value|capital|gain|loss",
        (-1e8, 1e8),
    ),
    (r"count|number|num|n|qty|quantity|visits", (0, 1e6)),
    (r"score|grade|points|rating", (-1e3, 1e4)),
)
# Words of columns that hold words or codes: their levels are estimated.
_LEVELS = (
    r"city|town|ward|country|region|state|province|county|gender|sex|race|ethnicity|marital|education|occupation|job|"
    r"category|class|type|kind|status|group|code|colou?r|brand|language|currency|department|diagnosis|product|channel"
)


def outer_bounds(name: str) -> tuple[float, float]:
    """Outer bounds of a column by its name.

    >>> outer_bounds("age"), outer_bounds("Annual income"), outer_bounds("x7")
    ((0, 150), (-100000000.0, 100000000.0), (-1000000.0, 1000000.0))
    """
    words = _words(name)
    for pattern, bounds in _WORDS:
        if any(re.fullmatch(pattern, word) for word in words):
            return bounds
    return ANYTHING


def has_levels(name: str, typed: str | None = None) -> bool:
    """Whether a column holds words or codes: by its type where the file states one, else by its
    name.

    >>> has_levels("home_city"), has_levels("x7"), has_levels("x7", "text"), has_levels("ward", "number")
    (True, False, True, False)
    """
    if typed is not None:
        return typed == "text"
    return (
        any(re.fullmatch(_LEVELS, word) for word in _words(name)) and outer_bounds(name) == ANYTHING
    )


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))


def outer_draft(
    tables: Tables,
    given: Mapping[str, str | None] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Draft:
    """A `data` block with outer bounds for every column of the tables; no value of a row goes
    into it.

    Args:
        tables: A path or `{party: path}`, as for `describe.draft`.
        given: Columns by role, as for `describe.draft`; the others are guessed by their names, and
            each guess is told.
        addresses: What stands in `data.files`, as for `describe.draft`.

    Raises:
        DataError: A table cannot be read, or the tables have different columns.
    """
    paths = paths_of(tables)
    form, numbers = common_form(paths)
    first = next(iter(paths.values()))
    names, types = header(first, form), column_types(first)
    for path in paths.values():
        if odd := set(names) ^ set(header(path, form)):
            raise DataError(
                f"{masked(path)}: column {sorted(odd)[0]!r} is not in every table; every party "
                "needs the same columns"
            )
    wanted = {role: name for role, name in (given or {}).items() if name}
    check_given(", ".join(paths.values()), wanted, names)
    roles, guesses = _roles(names, wanted)
    shown = ", ".join(printable(masked(path)) for path in paths.values())
    if addresses is None:
        addresses = {party: masked(path) for party, path in paths.items()}
    lines = [
        f"# outer bounds by the names of the columns of {shown}; no row was read. Check each one:",
        "# give levels: private, or a list, to a column of texts, and list free text in drop",
        "data:",
        *file_lines(addresses, "party" in roles),
        "  scaling: private",
        "  bounds_source: public",
        *form_lines(form, numbers),
    ]
    if "label" not in roles:
        lines.append("  # label: could not be guessed; name yours here or by --label")
    for role, key in _KEYS.items():
        if role in roles and (role, roles[role]) != ("id", "id"):
            lines.append(f"  {key}: {yaml_line(roles[role])}")
    lines.append("  columns:")
    for name in names:
        if name not in roles.values():
            low, high = outer_bounds(name)
            numeric = f"bounds: [{low:g}, {high:g}], missing: middle"
            said = "levels: private" if has_levels(name, types.get(name)) else numeric
            lines.append(f"    {yaml_line(name)}: {{{said}}}")
    return Draft("\n".join(lines) + "\n", tuple(guesses))


def _roles(names: Sequence[str], given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    roles = {role: name for role, name in given.items() if name != NOBODY}
    guesses = []
    for role, likely in (("label", is_label), ("id", is_identifier), ("party", is_party)):
        found = next((name for name in names if likely(name) and name not in roles.values()), None)
        if role not in given and found is not None:
            roles[role] = found
            guesses.append(
                f"guessed {role}={printable(found)}: its name; --{role} COLUMN (or none) overrides"
            )
    if "label" not in roles and "label" not in given:
        guesses.append("no column is named like a label; name it by --label COLUMN")
    return roles, guesses
