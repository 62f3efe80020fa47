"""Draft a `data` block from a table, for a person to edit.

The draft is read off private rows, so it is not public knowledge: every bound and level in it must be replaced by what
is known without looking (a data dictionary, a law of nature, a form's drop-down list), or at least widened to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from homo_dp.core.errors import DataError, printable
from homo_dp.data.columns import MISSING_VALUES
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.readers import header, read_chunks
from homo_dp.data.values import as_numbers, level_codes

WARNING = (
    "WARNING: these bounds and levels were read from the rows themselves. Used as they are, they LEAK private data "
    "and void the privacy guarantee. Replace every one by public knowledge before training."
)
_MOST_COLUMNS = 5_000
_MOST_LEVELS = 50
_MOST_CLASSES = 20
_LABELS = ("y", "label", "target", "class", "outcome", "income")
_PARTIES = ("party", "hospital", "site", "bank", "silo")
_USERS = ("user", "user_id", "patient", "patient_id", "customer", "customer_id")


def round_out(low: float, high: float) -> tuple[float, float]:
    """Bounds widened to round numbers, one or two significant digits of the span.

    >>> round_out(6.981, 28.11), round_out(0.0, 97.0), round_out(5.0, 5.0)
    ((5.0, 30.0), (0.0, 100.0), (4.75, 5.25))
    """
    if low == high:
        low, high = low - 0.05 * max(abs(low), 1.0), high + 0.05 * max(abs(high), 1.0)
    step = 10.0 ** math.floor(math.log10(high - low)) / 2
    digits = max(0, 1 - math.floor(math.log10(step)))
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def draft(path: str | PathLike[str], label: str | None = None, identifier: str | None = None) -> str:
    """A YAML `data` block for a table or image file, with the warning on top."""
    found = _look_at_images(path) if is_image_file(path) else _look_at_table(path, label, identifier)
    lines = [f"# {WARNING[:100].rsplit(' ', 1)[0]}", f"# {WARNING[len(WARNING[:100].rsplit(' ', 1)[0]) + 1 :]}"]
    return "\n".join([*lines, f"# drafted from {printable(str(path))}", "data:", *found]) + "\n"


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
    texts: set[str] | None = field(default_factory=set)  # None: too many to be levels

    def see(self, series: pd.Series) -> None:
        _, gaps = level_codes(series, ("",), MISSING_VALUES)
        gaps |= (series.isna() | (series.astype(str).str.strip() == "")).to_numpy(dtype=bool)
        self.rows += len(series)
        self.missing += int(gaps.sum())
        present = series[~gaps]
        if self.numeric and len(present):
            self._see_numbers(present)
        if self.texts is not None:
            self.texts |= set(present.astype(str).str.strip().unique())
            if len(self.texts) > _MOST_LEVELS:
                self.texts = None

    def _see_numbers(self, present: pd.Series) -> None:
        try:
            values = as_numbers(present, MISSING_VALUES, self.name)
        except DataError:
            self.numeric = False
            return
        values = values[~np.isnan(values)]
        if len(values) == 0:
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.whole = self.whole and bool(np.all(values == np.round(values)))


def _look_at_table(path: str | PathLike[str], label: str | None, identifier: str | None) -> list[str]:
    wide = len(header(path))
    if wide > _MOST_COLUMNS:
        raise DataError(
            f"{path}: has {wide} columns, a draft of more than {_MOST_COLUMNS} is nothing to read and edit; describe a "
            "table of some of them, and write the others by a script"
        )
    columns: dict[str, _Column] = {}
    for chunk in read_chunks(path):
        for name in chunk.columns:
            columns.setdefault(str(name), _Column(str(name))).see(chunk[name])
    for key, given in (("--label", label), ("--id", identifier)):
        if given is not None and given not in columns:
            raise DataError(f"{path}: {key}={given!r} is not a column; the columns are {', '.join(columns)[:200]}")
    label = label or next((name for name in columns if name.lower() in _LABELS), None)
    identifier = identifier or next((name for name in columns if name.lower() == "id"), None)
    lines = [] if identifier in (None, "id") else [f"  id: {_yaml(identifier)}"]
    lines += (
        _label_lines(columns[label]) if label else ["  # label: no column is called y, label or target; name yours"]
    )
    rest = [column for name, column in columns.items() if name not in (label, identifier)]
    roles, features, dropped = [], [], []
    for column in rest:
        if column.texts is not None and column.texts and {text.lower() for text in column.texts} <= {"train", "test"}:
            roles.append(f"  split_column: {_yaml(column.name)}")
        elif column.name.lower() in _PARTIES:
            roles.append(f"  party_column: {_yaml(column.name)}  # guessed from its name")
        elif column.name.lower() in _USERS:
            roles.append(f"  user_column: {_yaml(column.name)}  # guessed from its name")
        elif (not column.numeric and column.texts is None) or column.missing == column.rows:
            dropped.append(column.name)
        else:
            features.append(column)
    if dropped:
        lines.append(f"  drop: {_yaml(dropped)}  # text with more than {_MOST_LEVELS} values, or nothing at all")
    lines += [*roles, "  columns:", *(f"    {_yaml(one.name)}: {_block(one)}" for one in features)]
    return lines


def _label_lines(column: _Column) -> list[str]:
    lines = [f"  label: {_yaml(column.name)}"]
    texts = column.texts
    if texts is not None and len(texts) <= _MOST_CLASSES and (not column.numeric or column.whole):
        lines.append(f"  classes: {_yaml(_levels(column))}")
    elif column.numeric:
        lines.append(f"  target_bounds: {_yaml(_bounds(column))}  # many values: a regression target?")
    return lines


def _block(column: _Column) -> str:
    if not column.numeric:
        return f"{{levels: {_yaml(_levels(column))}}}"
    missing = ", missing: middle" if column.missing else ""
    return f"{{bounds: {_yaml(_bounds(column))}{missing}}}"


def _levels(column: _Column) -> list[Any]:
    texts = column.texts or set()
    if column.numeric and column.whole:
        return sorted({int(float(text)) for text in texts})
    return sorted(texts)


def _bounds(column: _Column) -> list[float]:
    low, high = round_out(column.low, column.high)
    return [int(end) if end == int(end) and abs(end) < 1e15 else end for end in (low, high)]


def _look_at_images(path: str | PathLike[str]) -> list[str]:
    images = read_images(path)
    high = 1 if float(images.pixels.max()) <= 1 else 255
    lines = [f"  image: {{shape: {_yaml(list(images.shape))}, scale: [0, {high}]}}"]
    if "y" in images.frame.columns:
        column = _Column("y")
        column.see(images.frame["y"])
        lines += _label_lines(column)
    roles = {"party": "party_column", "user": "user_column", "split": "split_column"}
    return lines + [f"  {key}: {name}" for name, key in roles.items() if name in images.frame.columns]


def _yaml(value: object) -> str:
    """A value as YAML on one line, quoted where YAML would read something else."""
    import yaml

    if isinstance(value, Iterable) and not isinstance(value, str):
        value = list(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()
