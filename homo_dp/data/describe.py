"""Draft a `data` block from a table, for a person to edit.

The draft is read off private rows, so it is not public knowledge: every bound and level in it must be replaced by what
is known without looking (a data dictionary, a law of nature, a form's drop-down list), or at least widened to it.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from homo_dp.config.addresses import masked
from homo_dp.core.errors import DataError, printable
from homo_dp.data.columns import MISSING_VALUES
from homo_dp.data.csv_dialect import CsvForm, form_keys
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.readers import has_row_numbers, header, read_chunks, sniff
from homo_dp.data.values import PLAIN, NumberForm, as_numbers, as_texts, parse_days

WARNING = (
    "WARNING: these bounds and levels were read from the rows themselves. Used as they are, they LEAK private data "
    "and void the privacy guarantee. Replace every one by public knowledge before training."
)
NOBODY = "none"  # given for a role: no column has it
_MOST_COLUMNS = 5_000
_MOST_LEVELS = 50
_MOST_CLASSES = 20
_FEWEST_ALIKE = 5  # columns that a pattern stands for
_FAMILY = re.compile(r"([^*?\[]*[^*?\[\d])\d+|([^*?\[]*_)[^*?\[_]+")  # drug_7, x7; drug_aspirin
_MOST_CODES = 10  # whole numbers with at most so many different values are taken for codes
_LABELS = ("y", "label", "target", "class", "outcome")
_MAYBE_LABELS = ("income", "default", "churn", "response", "result", "diagnosis", "fraud")
_PARTIES = ("party", "hospital", "site", "bank", "silo")
_USERS = ("user", "user_id", "patient", "patient_id", "customer", "customer_id")
_INDEX = ("unnamed: 0", "index", "rownames")
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d")
_DATE_FORMS = (
    None,
    "%Y%m%d",
    *(f"{day}{time}" for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS),
)
_LIKELY_DAYS = (
    datetime.date(1900, 1, 1).toordinal(),
    datetime.date(2100, 1, 1).toordinal(),
)  # for 20240531


@dataclass(frozen=True)
class Draft:
    """A `data` block as YAML, and a line for each guess in it."""

    text: str
    guesses: tuple[str, ...] = ()


def round_out(low: float, high: float) -> tuple[float, float]:
    """Bounds widened to round numbers, as a person would write them: zero where the values start near it.

    >>> round_out(6.981, 28.11), round_out(0.0, 97.0), round_out(17, 90), round_out(5.0, 5.0)
    ((5.0, 30.0), (0.0, 100.0), (0.0, 90.0), (4.75, 5.25))
    """
    if low == high:
        low, high = low - 0.05 * max(abs(low), 1.0), high + 0.05 * max(abs(high), 1.0)
    if (
        not 1e-300 < high - low < 1e300
    ):  # no values at all, or a range too small or too large to round
        return (low, high) if math.isfinite(low) and math.isfinite(high) else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10(high - low)) / 2
    digits = max(0, 1 - math.floor(math.log10(step)))
    if 0 <= low <= 0.2 * high:
        low = 0.0
    return round(math.floor(low / step) * step, digits), round(
        math.ceil(high / step) * step, digits
    )


def draft(path: str | PathLike[str], given: Mapping[str, str | None] | None = None) -> Draft:
    """A YAML `data` block for a table or image file, with the warning on top.

    `given` names columns by role (label, id, user, party), or `none`; what is not given is guessed, and said.
    """
    guesses: list[str] = []
    if is_image_file(path):
        found = _look_at_images(path)
    else:
        found = _look_at_table(
            path, {role: name for role, name in (given or {}).items() if name}, guesses
        )
    cut = WARNING[:100].rsplit(" ", 1)[0]
    lines = [
        f"# {cut}",
        f"# {WARNING[len(cut) + 1 :]}",
        f"# drafted from {printable(masked(str(path)))}",
        "data:",
    ]
    source = "  bounds_source: draft  # then say codebook, public or private; a private run on a draft is refused"
    person = "  one_row_per_person: unknown  # say true if each person has one row: epsilon is that of a row"
    return Draft("\n".join([*lines, source, person, *found]) + "\n", tuple(guesses))


@dataclass
class _Column:
    """What a pass over the rows says about one column."""

    name: str
    rows: int = 0
    missing: int = 0
    low: float = math.inf
    high: float = -math.inf
    numeric: bool = True
    whole: bool = True
    days: dict[str | None, tuple[float, float]] = field(
        default_factory=lambda: dict.fromkeys(_DATE_FORMS, (math.inf, -math.inf))
    )  # the forms of dates in which all values can be read, each with its first and last day
    phrases: int = 0  # values of several words
    texts: set[str] | None = field(default_factory=set)  # None: too many to be levels
    different: bool = True  # no value came twice so far
    numbers: NumberForm = PLAIN
    _seen: set[int] = field(default_factory=set)

    def see(self, series: pd.Series) -> None:
        cells = (
            pd.Series(as_texts(series).to_pylist(), dtype=object).fillna("").astype(str).str.strip()
        )
        gaps = cells.isin(MISSING_VALUES).to_numpy(dtype=bool)
        self.rows += len(series)
        self.missing += int(gaps.sum())
        present = cells[~gaps].rename(self.name)
        self.phrases += int(present.str.contains(" ", regex=False).sum())
        if self.days and len(present):
            self._see_days(present)
        if self.numeric and len(present):
            self._see_numbers(present)
        if self.different:
            hashes = set(
                pd.util.hash_array(present.to_numpy(dtype=object), categorize=False).tolist()
            )
            self.different = len(hashes) == len(present) and self._seen.isdisjoint(hashes)
            self._seen = self._seen | hashes if self.different else set()
        if self.texts is not None:
            self.texts |= set(present.unique())
            if len(self.texts) > _MOST_LEVELS:
                self.texts = None

    @property
    def dated(self) -> bool:
        return bool(self.days) and self.missing < self.rows

    @property
    def two_valued(self) -> bool:
        return self.texts is not None and len(self.texts) == 2

    @property
    def classes(self) -> bool:
        """Whether its values can be classes: few, and text or whole numbers."""
        few = self.texts is not None and 2 <= len(self.texts) <= _MOST_CLASSES
        return few and (not self.numeric or self.whole)

    def _see_numbers(self, present: pd.Series) -> None:
        try:
            values = as_numbers(present, MISSING_VALUES, self.name, self.numbers)
        except DataError:
            self.numeric = False
            return
        values = values[~np.isnan(values)]
        if {text.lower() for text in present.unique()} <= {"true", "false"}:
            self.numeric = False  # booleans are levels
        if len(values):
            self.low, self.high = (
                min(self.low, float(values.min())),
                max(self.high, float(values.max())),
            )
        self.whole = self.whole and bool(np.all(values == np.round(values)))

    def _see_days(self, present: pd.Series) -> None:
        for form, (low, high) in list(self.days.items()):
            del self.days[form]
            if parse_days(present[:1], (), form)[1].any():
                continue
            days, wrong = parse_days(present, (), form)
            first, last = min(low, float(days.min())), max(high, float(days.max()))
            likely = form != "%Y%m%d" or (_LIKELY_DAYS[0] <= first and last <= _LIKELY_DAYS[1])
            if likely and not wrong.any():
                self.days[form] = first, last


def _look_at_table(
    path: str | PathLike[str], given: Mapping[str, str], guesses: list[str]
) -> list[str]:
    form, numbers = sniff(path)
    wide = len(header(path, form))
    if wide > _MOST_COLUMNS:
        raise DataError(
            f"{path}: has {wide} columns, a draft of more than {_MOST_COLUMNS} is nothing to read and edit; describe a "
            "table of some of them, and write the others by a script"
        )
    columns: dict[str, _Column] = {}
    for chunk in read_chunks(path, form=form):
        for name in chunk.columns:
            columns.setdefault(str(name), _Column(str(name), numbers=numbers)).see(chunk[name])
    check_given(path, given, columns)
    roles = _roles(columns, given, guesses)
    lines = form_lines(form, numbers)
    if has_row_numbers(path, form):
        lines.append(
            "  # the first column has no name: taken for row numbers and not read; to use it, name it"
        )
        guesses.append(
            "left out the first column, which has no name: row numbers, as pandas writes them"
        )
    if roles.get("id") not in (None, "id"):
        lines.append(f"  id: {yaml_line(roles['id'])}")
    if roles.get("label") is not None:
        lines += _label_lines(columns[roles["label"]])
    else:
        lines.append("  # label: could not be guessed; name yours here or by --label")
    for role, key in (
        ("party", "party_column"),
        ("user", "user_column"),
        ("split", "split_column"),
    ):
        if roles.get(role) is not None:
            lines.append(f"  {key}: {yaml_line(roles[role])}")
    rest = [column for name, column in columns.items() if name not in roles.values()]
    dropped = {column.name: why for column in rest if (why := _useless(column)) is not None}
    if dropped:
        lines.append(f"  drop: {yaml_line(list(dropped))}")
        lines += [f"  #   {printable(name)}: {why}" for name, why in dropped.items()]
    kept = [column for column in rest if column.name not in dropped]
    guesses += (
        f"{printable(column.name)}: {doubt}"
        for column in kept
        if (doubt := _date_doubt(column)) is not None
    )
    blocks = _alike_once({one.name: _block(one) for one in kept}, [*roles.values(), *dropped])
    return [
        *lines,
        "  columns:",
        *(f"    {yaml_line(name)}: {block}" for name, block in blocks.items()),
    ]


def _alike_once(blocks: Mapping[str, str], others: Sequence[str]) -> dict[str, str]:
    """Columns alike (drug_1, drug_2, ...) under one pattern with the block that most of them have; the rest by name."""
    families: dict[str, list[str]] = {}
    for name in blocks:
        if (found := _FAMILY.fullmatch(name)) is not None:
            families.setdefault(found[1] or found[2], []).append(name)
    patterns: dict[str, str] = {}
    for start, names in families.items():
        block, times = Counter(blocks[name] for name in names).most_common(1)[0]
        strangers = any(name.startswith(start) and name not in names for name in (*blocks, *others))
        if times >= _FEWEST_ALIKE and not strangers:
            patterns |= {name: f"{start}*" for name in names if blocks[name] == block}
    told: dict[str, str] = {}
    for name, block in blocks.items():
        told.setdefault(patterns.get(name, name), block)
    return told


def check_given(
    path: str | PathLike[str], given: Mapping[str, str], columns: Iterable[str]
) -> None:
    """Refuse a role whose column is not there."""
    for role, name in given.items():
        if name not in columns and name != NOBODY:
            known = ", ".join(columns)[:200]
            raise DataError(
                f"{masked(str(path))}: --{role}={name!r} is not a column; the columns are {known}"
            )


def _roles(
    columns: Mapping[str, _Column], given: Mapping[str, str], guesses: list[str]
) -> dict[str, str]:
    """Which column is what: as given, else guessed with the reason told."""
    roles = {role: name for role, name in given.items() if name != NOBODY}

    def guess(role: str, name: str, why: str) -> None:
        roles[role] = name
        override = f"; --{role} COLUMN (or none) overrides" if role != "split" else ""
        guesses.append(f"guessed {role}={printable(name)}: {why}{override}")

    for role, find in (
        ("label", _label),
        ("id", _identifier),
        ("party", _party),
        ("user", _user),
        ("split", _split),
    ):
        free = {name: column for name, column in columns.items() if name not in roles.values()}
        if role not in given and (found := find(free)) is not None:
            guess(role, *found)
    if "label" not in roles and "label" not in given:
        two = [
            name
            for name, column in columns.items()
            if column.two_valued and name not in roles.values()
        ]
        hint = f" (two values have: {printable(', '.join(two[:8]))})" if two else ""
        guesses.append(f"no column looks like the label{hint}; name it by --label COLUMN")
    return roles


def is_label(name: str) -> bool:
    """Whether a column is named like a label."""
    return name.lower() in (*_LABELS, *_MAYBE_LABELS)


def is_identifier(name: str) -> bool:
    """Whether a column is named like an identifier."""
    return name.lower() == "id" or name.lower().endswith("_id")


def is_party(name: str) -> bool:
    """Whether a column is named like the party of a row."""
    return name.lower() in _PARTIES


def _label(columns: Mapping[str, _Column]) -> tuple[str, str] | None:
    named = [name for name in columns if name.lower() in _LABELS]
    maybe = [name for name in columns if name.lower() in _MAYBE_LABELS]
    for name in (*named, *maybe):
        if columns[name].two_valued:
            return name, "its name, and it has two values"
    for name in (*named, *maybe):
        if columns[name].classes:
            return name, "its name, and it has few values"
    two = [name for name, column in columns.items() if column.two_valued]
    if named:
        others = f" (two values have: {printable(', '.join(two[:8]))})" if two else ""
        return named[0], f"its name; it has many values, so this would be a regression{others}"
    last = list(columns)[-1:]
    if len(two) == 1 or two[-1:] == last:
        return two[-1], "the only column with two values" if len(
            two
        ) == 1 else "the last column, with two values"
    return None


def _identifier(columns: Mapping[str, _Column]) -> tuple[str, str] | None:
    for name, column in columns.items():
        if name.lower() == "id":
            return name, "its name"
        if is_identifier(name) and column.different and column.rows > 1:
            return name, "its name, and no value comes twice"
    return None


def _party(columns: Mapping[str, _Column]) -> tuple[str, str] | None:
    return next(((name, "its name") for name in columns if is_party(name)), None)


def _user(columns: Mapping[str, _Column]) -> tuple[str, str] | None:
    found = (
        name for name, column in columns.items() if name.lower() in _USERS and not column.different
    )
    return next(((name, "its name, and values come more than once") for name in found), None)


def _split(columns: Mapping[str, _Column]) -> tuple[str, str] | None:
    for name, column in columns.items():
        if column.texts and {text.lower() for text in column.texts} <= {"train", "test"}:
            return name, "it says train or test"
    return None


def _useless(column: _Column) -> str | None:
    """Why a column cannot be a feature, None if it can."""
    if column.missing == column.rows:
        return "nothing in it"
    if column.name.lower() in _INDEX and column.different:
        return "row numbers"
    if column.numeric or column.dated or column.texts is not None:
        return None
    if 2 * column.phrases > column.rows:
        return "free text"
    if column.different:
        return "an identifier: no value comes twice"
    return f"more than {_MOST_LEVELS} different texts; to use it, list its public levels, or say levels: private"


def form_lines(form: CsvForm, numbers: NumberForm) -> list[str]:
    """What is not plain about the file."""
    return [f"  {key}: {yaml_line(value)}" for key, value in form_keys(form, numbers).items()]


def _label_lines(column: _Column) -> list[str]:
    lines = [f"  label: {yaml_line(column.name)}"]
    if column.classes:
        lines.append(f"  classes: {yaml_line(_levels(column))}")
    elif column.numeric:
        lines.append(
            f"  target_bounds: {yaml_line(_bounds(column))}  # many values: a regression target?"
        )
    return lines


def _block(column: _Column) -> str:
    missing = ", missing: middle" if column.missing else ""
    if column.dated:
        form, ends = next(iter(column.days.items()))
        years = [datetime.date.fromordinal(int(end)).year for end in ends]
        written = f', format: "{form}"' if form is not None else ""
        return f"{{date: [{years[0]}-01-01, {years[1]}-12-31]{written}{missing}}}"
    codes = column.whole and column.texts is not None and len(column.texts) <= _MOST_CODES
    if not column.numeric or (
        codes and column.rows >= 5 * len(column.texts or ()) and not _zero_one(column)
    ):
        return f"{{levels: {yaml_line(_levels(column))}}}"
    return f"{{bounds: {yaml_line(_bounds(column))}{missing}}}"


def _date_doubt(column: _Column) -> str | None:
    """What to check where all dates can be read in two ways."""
    forms = [form for form in column.days if form is not None]
    if not column.dated or None in column.days or len(forms) < 2:
        return None
    return f"guessed dates of the form {forms[0]}; all values could also be {forms[1]}: change format if they are"


def _zero_one(column: _Column) -> bool:
    """0 and 1 without a gap need no levels: one input says it all."""
    return column.whole and (column.low, column.high) == (0, 1) and not column.missing


def _levels(column: _Column) -> list[Any]:
    texts = column.texts or set()
    if column.numeric and column.whole:
        return sorted(
            map(
                int,
                {
                    float(value)
                    for value in as_numbers(pd.Series(sorted(texts)), (), "", column.numbers)
                },
            )
        )
    return sorted(texts)


def _bounds(column: _Column) -> list[float]:
    if _zero_one(column):
        return [0, 1]
    low, high = round_out(column.low, column.high)
    return [int(end) if end == int(end) and abs(end) < 1e15 else end for end in (low, high)]


def _look_at_images(path: str | PathLike[str]) -> list[str]:
    images = read_images(path)
    high = 1 if float(images.pixels.max()) <= 1 else 255
    lines = [f"  image: {{shape: {yaml_line(list(images.shape))}, scale: [0, {high}]}}"]
    if "y" in images.frame.columns:
        column = _Column("y")
        column.see(images.frame["y"])
        lines += _label_lines(column)
    roles = {"party": "party_column", "user": "user_column", "split": "split_column"}
    return lines + [
        f"  {key}: {name}" for name, key in roles.items() if name in images.frame.columns
    ]


def yaml_line(value: object) -> str:
    """A value as YAML on one line, quoted where YAML would read something else."""
    import yaml

    if isinstance(value, Iterable) and not isinstance(value, str):
        value = list(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()
