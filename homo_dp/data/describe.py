"""Draft a `data` block from tables: a config that trains as it is, for a person to edit.

The draft is read off private rows, so it is not public knowledge, and it says so by
`bounds_source: draft`. A run on it in one process states what epsilon does not cover; parties
refuse it until every bound and category is replaced by what is known without looking (a data
dictionary, a law of nature, a form's drop-down list).
"""

from __future__ import annotations

import datetime
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from homo_dp.config.addresses import masked
from homo_dp.core.errors import DataError, printable
from homo_dp.data.columns import MISSING_VALUES
from homo_dp.data.csv_dialect import CsvForm, form_keys
from homo_dp.data.databases import is_database
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.in_memory import table_in_memory
from homo_dp.data.label_leaks import ALMOST_ALL, RANKS, predicts_classes, predicts_target
from homo_dp.data.readers import (
    checked,
    has_row_numbers,
    header,
    is_parquet,
    read_chunks,
    read_table,
    sniff,
)
from homo_dp.data.values import PLAIN, NumberForm, as_numbers, as_texts, parse_days

WARNING = (
    "WARNING: these bounds and categories were read from the rows themselves, and no epsilon "
    "covers them. A run in one process says so in its statement; parties refuse a draft. Replace "
    "each one by public knowledge, then change bounds_source to codebook or public."
)
NOBODY = "none"  # given for a role: no column has it
Tables = str | PathLike[str] | Mapping[str, str | PathLike[str]]
_LONGEST_NAME = 40
_MOST_COLUMNS = 5_000
TARGET: Final = "  target_bounds: "
_MOST_LEVELS = 50
_MOST_CLASSES = 20
_FEWEST_ALIKE = 5  # columns that a pattern stands for
_FAMILY = re.compile(r"([^*?\[]*[^*?\[\d])\d+|([^*?\[]*_)[^*?\[_]+")  # drug_7, x7; drug_aspirin
_LOOKED_AT = 20_000  # rows in which columns are compared with the label
_FEWEST_NUMBERED = 30  # rows from which numbers without a gap are no accident
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
# for 20240531
_LIKELY_DAYS = (datetime.date(1900, 1, 1).toordinal(), datetime.date(2100, 1, 1).toordinal())


@dataclass(frozen=True)
class Draft:
    """A `data` block as YAML, and a line for each guess in it."""

    text: str
    guesses: tuple[str, ...] = ()


def round_out(low: float, high: float) -> tuple[float, float]:
    """Bounds widened to round numbers, as a person would write them: zero where the values start
    near it.

    >>> round_out(6.981, 28.11), round_out(0.0, 97.0), round_out(17, 90), round_out(5.0, 5.0)
    ((5.0, 30.0), (0.0, 100.0), (0.0, 90.0), (4.75, 5.25))
    """
    if low == high:
        low, high = low - 0.05 * max(abs(low), 1.0), high + 0.05 * max(abs(high), 1.0)
    # no values at all, or a range too small or too large to round
    if not 1e-300 < high - low < 1e300:
        return (low, high) if math.isfinite(low) and math.isfinite(high) else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10(high - low)) / 2
    digits = max(0, 1 - math.floor(math.log10(step)))
    if 0 <= low <= 0.2 * high:
        low = 0.0
    return round(math.floor(low / step) * step, digits), round(
        math.ceil(high / step) * step, digits
    )


def draft(
    tables: Tables,
    given: Mapping[str, str | None] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Draft:
    """A config that trains on these tables, as YAML, with the warning on top.

    Args:
        tables: A path, whose party is called like the file, or `{party: path}`. A table with a
            column that names the party of a row is split by it.
        given: Columns by role (label, id, user, party), or `none`; the others are guessed, and
            each guess is told.
        addresses: What stands in `data.files` by party, in place of the paths with passwords
            masked. Empty: `data.name` and `data.files` are left out, for a config that has them.

    Raises:
        DataError: A table cannot be read, or the tables do not fit together.
    """
    paths = paths_of(tables)
    guesses: list[str] = []
    if any(is_image_file(path) for path in paths.values()):
        roles, found = _look_at_images(paths)
    else:
        wanted = {role: name for role, name in (given or {}).items() if name}
        roles, found = _look_at_tables(paths, wanted, guesses)
    if addresses is None:
        addresses = {party: masked(path) for party, path in paths.items()}
    lines = [
        *(f"# {line}" for line in textwrap.wrap(WARNING, 98)),
        f"# drafted from {', '.join(printable(masked(path)) for path in paths.values())}",
        "data:",
        *file_lines(addresses, "party" in roles),
        "  bounds_source: draft  # after your changes: codebook or public",
        (
            "  one_row_per_person: unknown  # true if each person has one row: epsilon is that of "
            "a row"
        ),
    ]
    if addresses and any(line.startswith(TARGET) for line in found):
        found = [*found, "model:", "  name: linear_regression"]
    return Draft("\n".join([*lines, *found]) + "\n", tuple(guesses))


def paths_of(tables: Tables) -> dict[str, str]:
    """Paths by party; the party of a path alone is called like its file.

    >>> paths_of("data/north ward.csv.gz")
    {'north_ward': 'data/north ward.csv.gz'}
    """
    if isinstance(tables, Mapping):
        return {str(party): fspath(path) for party, path in tables.items()}
    return {party_name(fspath(tables)): fspath(tables)}


def tables_of(items: Sequence[str]) -> dict[str, str]:
    """Paths by party from `FILE` and `PARTY=FILE`.

    >>> tables_of(["a.csv", "south=data/2025.csv"])
    {'a': 'a.csv', 'south': 'data/2025.csv'}
    """
    tables: dict[str, str] = {}
    for item in items:
        party, equals, path = item.partition("=")
        if not (equals and party and path) or is_database(item) or Path(item).exists():
            party, path = party_name(item), item
        if party in tables:
            raise DataError(
                f"{masked(tables[party])}, {masked(path)}: are both the table of party {party!r}; "
                "write PARTY=FILE to name each party"
            )
        tables[party] = path
    return tables


def party_name(path: str) -> str:
    """A name for the party whose table this is.

    >>> party_name("a.csv"), party_name("sqlite:///clinic.db#patients"), party_name(".csv")
    ('a', 'patients', 'party')
    """
    last = path.rpartition("#")[2].replace("\\", "/").rstrip("/").rpartition("/")[2]
    stem = re.sub(r"[^A-Za-z0-9]+", "_", last.partition(".")[0]).strip("_")
    return stem[:_LONGEST_NAME] or "party"


def file_lines(paths: Mapping[str, str], split: bool) -> list[str]:
    """`data.name` and `data.files`: a table for each party, or the one that a column splits."""
    if not paths:
        return []
    name = "-".join(paths)
    named = f"  name: {yaml_line(name if len(name) <= _LONGEST_NAME else next(iter(paths)))}"
    lines = [f"{named}  # the ledger adds up what was spent under this name"]
    if split and len(paths) == 1:
        return [*lines, f"  files: {yaml_line(next(iter(paths.values())))}"]
    files = (f"    {yaml_line(party)}: {yaml_line(path)}" for party, path in paths.items())
    return [*lines, "  files:", *files]


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

    def see(self, series: pd.Series) -> pd.Series:
        """Take in more rows; returns their cells as text."""
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
        return cells

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


def _look_at_tables(
    paths: Mapping[str, str], given: Mapping[str, str], guesses: list[str]
) -> tuple[dict[str, str], list[str]]:
    """The roles of the columns, and the lines that describe them."""
    form, numbers = common_form(paths)
    columns, first_rows, where = _profiles(paths, form, numbers)
    check_given(", ".join(paths.values()), given, columns)
    roles = _roles(columns, given, guesses)
    if len(paths) > 1 and roles.get("party") is not None and "party" not in given:
        del roles["party"]  # each table is a party: the column is one like others
        guesses[:] = [line for line in guesses if not line.startswith("guessed party=")]
    lines = [*form_lines(form, numbers), *_row_number_lines(paths, form, guesses)]
    lines += _role_lines(columns, roles)
    rest = [column for name, column in columns.items() if name not in roles.values()]
    dropped = {
        column.name: why
        for column in rest
        if (why := _absent(column.name, where, paths) or _useless(column)) is not None
    }
    if dropped:
        lines.append(f"  drop: {yaml_line(list(dropped))}")
        lines += [f"  #   {printable(name)}: {why}" for name, why in dropped.items()]
    kept = [column for column in rest if column.name not in dropped]
    guesses += (
        f"{printable(column.name)}: {doubt}"
        for column in kept
        if (doubt := _date_doubt(column)) is not None
    )
    guesses += (
        f"{printable(column.name)}: whole numbers in a row, none comes twice; if they number the "
        "rows, write --id COLUMN or move it to drop"
        for column in kept
        if not {"id"} & {*roles, *given} and _numbers_rows(column)
    )
    leaks = _leaks(kept, columns.get(roles.get("label", "")), first_rows)
    guesses += (f"{printable(name)}: {words}" for name, words in leaks.items())
    blocks = _alike_once({one.name: _block(one) for one in kept}, [*roles.values(), *dropped])
    lines += ["  columns:", *(f"    # {printable(name)}: {said}" for name, said in leaks.items())]
    return roles, lines + [f"    {yaml_line(name)}: {block}" for name, block in blocks.items()]


def common_form(paths: Mapping[str, str]) -> tuple[CsvForm, NumberForm]:
    """The one form in which all CSV files are written, since a config states one for all."""
    found = {path: sniff(path) for path in paths.values() if _is_csv(path)}
    forms = {path: form for path, (form, _) in found.items()}
    # A file of whole numbers alone fits every form of numbers, and looks plain.
    written = {path: numbers for path, (_, numbers) in found.items() if numbers != PLAIN}
    for each in (forms, written):
        if len(set(each.values())) > 1:
            said = ", ".join(f"{masked(path)}: {form}" for path, form in each.items())
            raise DataError(f"{said}; the config states one form for all: save them alike")
    return next(iter(forms.values()), CsvForm()), next(iter(written.values()), PLAIN)


def _is_csv(path: str) -> bool:
    if table_in_memory(path) is not None or is_database(path):
        return False
    return not is_parquet(checked(path))


def _profiles(
    paths: Mapping[str, str], form: CsvForm, numbers: NumberForm
) -> tuple[dict[str, _Column], pd.DataFrame, dict[str, list[str]]]:
    """What all rows of all tables say about each column, the first rows as text, and the parties
    that have the column.
    """
    columns: dict[str, _Column] = {}
    where: dict[str, list[str]] = {}
    first_rows = []
    for party, path in paths.items():
        wide = len(header(path, form))
        if wide > _MOST_COLUMNS:
            raise DataError(
                f"{masked(path)}: has {wide} columns; describe drafts at most {_MOST_COLUMNS}. "
                "Describe a table of some of them, and write the others by a script"
            )
        left = _LOOKED_AT // len(paths)
        for chunk in _chunks(path, form):
            texts = {}
            for name in map(str, chunk.columns):
                column = columns.setdefault(name, _Column(name, numbers=numbers))
                cells = column.see(chunk[name])
                texts[name] = cells[: max(left, 0)]
                if party not in where.setdefault(name, []):
                    where[name].append(party)
            if left > 0:
                first_rows.append(pd.DataFrame(texts))
            left -= len(chunk)
    return columns, pd.concat(first_rows, ignore_index=True).fillna(""), where


def _chunks(path: str, form: CsvForm) -> Iterable[pd.DataFrame]:
    held = table_in_memory(path)
    return read_chunks(path, form=form) if held is None else [read_table(path)]


def _absent(name: str, where: Mapping[str, list[str]], paths: Mapping[str, str]) -> str | None:
    """Why a column that some tables lack is left out: every party needs the same columns."""
    without = [party for party in paths if party not in where[name]]
    return f"{', '.join(without)} has no such column" if without else None


def _row_number_lines(paths: Mapping[str, str], form: CsvForm, guesses: list[str]) -> list[str]:
    if not any(has_row_numbers(path, form) for path in paths.values()):
        return []
    guesses.append(
        "left out the first column, which has no name: row numbers, as pandas writes them"
    )
    return [
        "  # the first column has no name: taken for row numbers and not read; to use it, name it"
    ]


def _role_lines(columns: Mapping[str, _Column], roles: Mapping[str, str]) -> list[str]:
    lines = []
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
    return lines


def _leaks(kept: Sequence[_Column], label: _Column | None, rows: pd.DataFrame) -> dict[str, str]:
    """A warning for each column that alone predicts the label almost without error."""
    if label is None or not (label.classes or label.numeric):
        return {}
    rows = rows[~rows[label.name].isin(MISSING_VALUES)]
    if not len(rows):
        return {}
    found = {}
    for column in kept:
        cells = rows[column.name].where(~rows[column.name].isin(MISSING_VALUES), "")
        numbers = _as_numbers(column, cells)
        if label.classes:
            share = predicts_classes(cells, numbers, rows[label.name])
            if share >= ALMOST_ALL:
                found[column.name] = (
                    f"WARNING: alone it predicts {share:.1%} of the labels (balanced accuracy); if "
                    "it is recorded after the outcome, move it to drop"
                )
        elif numbers is not None:
            rank = predicts_target(numbers, pd.Series(_as_numbers(label, rows[label.name])))
            if rank >= RANKS:
                found[column.name] = (
                    f"WARNING: its rank correlation with the label is {rank:.3f}; if it is "
                    "recorded after the outcome, move it to drop"
                )
    return found


def _as_numbers(column: _Column, cells: pd.Series) -> pd.Series | None:
    """The cells as numbers (days for dates), None for a column of texts."""
    if column.dated:
        days, wrong = parse_days(cells, ("",), next(iter(column.days)))
        return pd.Series(np.where(wrong, np.nan, days), index=cells.index)
    if not column.numeric:
        return None
    return pd.Series(as_numbers(cells, MISSING_VALUES, column.name, column.numbers), cells.index)


def _alike_once(blocks: Mapping[str, str], others: Sequence[str]) -> dict[str, str]:
    """Columns alike (drug_1, drug_2, ...) under one pattern with the block that most of them
    have; the rest by name.
    """
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
        return two[-1], (
            "the only column with two values"
            if len(two) == 1
            else "the last column, with two values"
        )
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
    return (
        f"more than {_MOST_LEVELS} different texts; to use it, list its public levels, or say "
        "levels: private"
    )


def form_lines(form: CsvForm, numbers: NumberForm) -> list[str]:
    """What is not plain about the file."""
    return [f"  {key}: {yaml_line(value)}" for key, value in form_keys(form, numbers).items()]


def _label_lines(column: _Column) -> list[str]:
    lines = [f"  label: {yaml_line(column.name)}"]
    if column.classes:
        lines.append(f"  classes: {yaml_line(_levels(column))}")
    elif column.numeric:
        lines.append(
            f"{TARGET}{yaml_line(_bounds(column))}  # many values: taken for a regression target"
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
    return (
        f"guessed dates of the form {forms[0]}; all values could also be {forms[1]}: change format "
        "if they are"
    )


def _numbers_rows(column: _Column) -> bool:
    """Whether the values could be numbers of rows: almost as many as there are in their range."""
    if not (column.numeric and column.whole and column.different) or column.rows < _FEWEST_NUMBERED:
        return False
    return column.high - column.low < 2 * column.rows


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


def _look_at_images(paths: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    column, high = _Column("y"), 1.0
    roles: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths.values():
        images = read_images(path)
        shapes[path] = tuple(images.shape)
        high = max(high, 1.0 if float(images.pixels.max()) <= 1 else 255.0)
        names = images.frame.columns
        roles |= {role: role for role in ("party", "user", "split") if role in names}
        if "y" in names:
            column.see(images.frame["y"])
    if len(set(shapes.values())) > 1:
        raise DataError(
            f"{', '.join(map(masked, shapes))}: hold images of different shapes "
            f"({', '.join(map(str, shapes.values()))}); every party needs the same shape"
        )
    shape = yaml_line(list(next(iter(shapes.values()))))
    lines = [f"  image: {{shape: {shape}, scale: [0, {high:g}]}}"]
    lines += _label_lines(column) if column.rows else []
    return roles, lines + [f"  {role}_column: {role}" for role in roles]


def yaml_line(value: object) -> str:
    """A value as YAML on one line, quoted where YAML would read something else."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = list(value)
    text = _dumped(value, readable=True)
    # control characters, such as one that reverses the text behind it, are escaped
    return text if text.isprintable() else _dumped(value, readable=False)


def _dumped(value: object, *, readable: bool) -> str:
    import yaml

    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=1_000_000, allow_unicode=readable
    )
    return text.removesuffix("\n...\n").strip()
