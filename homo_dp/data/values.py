"""One raw column (text as it stands in the file, or typed) to numbers, dates, level codes or class codes.

One notion of a value, wherever it comes from (CSV text, Parquet, a pandas frame, JSON):
    - a number is a number: 1, 1.0, "1" and Decimal("1.00") are one value; a number that is text by declaration
      ("0123") is compared as text;
    - true and false are the same as text in any case, as a typed boolean, and as the numbers 1 and 0; so are the words
      of a column whose levels are a pair such as yes and no (t, f; y, n; on, off);
    - a date is its calendar day, as ISO text (2024-05-01, whatever time follows) or typed;
    - text is compared without the spaces around it.

Text is converted by Arrow, a column at a time; columns of Python objects and levels go through their distinct values.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from homo_dp.core.errors import DataError

Level = str | int | float
TRUTH = {"true": 1.0, "false": 0.0}
_PAIRS = (("true", "false"), ("t", "f"), ("yes", "no"), ("y", "n"), ("on", "off"))
_WORDS = {word: float(place == 0) for pair in _PAIRS for place, word in enumerate(pair)}
_WHOLE = 2**53  # below it a float64 is one whole number, and numbers can be compared as floats
_FREE_TEXT = 40  # letters; a longer cell that should be a number is taken for free text
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_NO_NUMBER = "?"  # replaces signs that the declared form does not have, so that the text is not taken for a number


@dataclass(frozen=True)
class NumberForm:
    """How a file writes numbers: `1.234,5` has decimal="," and thousands="."."""

    decimal: str = "."
    thousands: str | None = None

    def plain(self, text: pa.Array) -> pa.Array:
        """Texts as Python writes numbers; a sign of another form becomes one that no number has."""
        if self == PLAIN:
            return text
        mark = "" if self.thousands is None else _quoted(self.thousands)
        if mark:
            grouped = pc.match_substring_regex(text, rf"^\s*[+-]?\d{{1,3}}({mark}\d{{3}})+(\D.*)?$")
            text = pc.if_else(grouped, pc.replace_substring_regex(text, mark, ""), text)
        if self.decimal != ".":
            text = pc.replace_substring(text, ".", _NO_NUMBER)
            text = pc.replace_substring(text, self.decimal, ".")
        return text


PLAIN = NumberForm()


def as_numbers(
    series: pd.Series, missing_values: Sequence[str], source: str, numbers: NumberForm = PLAIN
) -> np.ndarray:
    """The column as float64, NaN where a value is missing; text and infinity are refused with their row.

    >>> as_numbers(pd.Series(["1.5", "", " 2"]), ["", "NA"], "t.csv")
    array([1.5, nan, 2. ])
    """
    values, wrong = parse_numbers(series, missing_values, numbers)
    if wrong.any():
        shown = (as_texts(series)[int(wrong.argmax())].as_py() or "").strip()
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(wrong, series)}: {_cut(shown)!r} is not a number; "
            f"{_advice(shown, str(series.name), numbers)}"
        )
    infinite = np.isinf(values) if not_finite(values) else None
    if infinite is not None and infinite.any():
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(infinite, series)}: infinite value; "
            "replace it by a finite number or leave it empty (missing)"
        )
    return values


def not_finite(values: np.ndarray) -> bool:
    """Whether some value may be NaN or infinite: one sum, which large values may overflow, instead of masks.

    >>> not_finite(np.array([1.0, np.nan])), not_finite(np.array([1.0, 2.0]))
    (True, False)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return not math.isfinite(float(values.sum()))


def as_days(
    series: pd.Series, missing_values: Sequence[str], source: str, form: str | None = None
) -> np.ndarray:
    """The column's calendar days as float64 (0001-01-01 is 1), NaN where one is missing.

    `form` is the file's way to write a date ("%d.%m.%Y"); typed dates and ISO text need none.

    >>> as_days(pd.Series(["0001-01-02", "0001-01-01T23:59"]), (), "t.csv")
    array([2., 1.])
    """
    days, wrong = parse_days(series, missing_values, form)
    if wrong.any():
        shown = as_texts(series)[int(wrong.argmax())].as_py()
        wanted = f"of the form {form} or 2024-05-31" if form else "such as 2024-05-31"
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(wrong, series)}: {shown!r} is not a date {wanted}; "
            f'write it so, or train with its own form, data.columns.{series.name}.format="%d.%m.%Y"'
        )
    return days


def parse_days(
    series: pd.Series, missing_values: Sequence[str], form: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The column's days as `as_days` counts them, NaN where one is missing or is not a date, and which are not dates.

    >>> parse_days(pd.Series(["0001-01-02", "", "soon"]), [""])
    (array([ 2., nan, nan]), array([False, False,  True]))
    """
    encoded, texts = distinct_texts(series)
    absent = {text.strip() for text in missing_values} | {""}
    days = np.array(
        [*(math.nan if text.strip() in absent else _day(text, form) for text in texts), math.nan]
    )
    wrong: np.ndarray = np.isinf(days)[encoded]
    return np.where(wrong, math.nan, days[encoded]), wrong


def as_texts(series: pd.Series) -> pa.Array:
    """The column as Arrow text, each value in the one way in which it is written; null where it is missing.

    >>> as_texts(pd.Series([True, 2.0, "x", None], dtype=object)).to_pylist()
    ['true', '2', 'x', None]
    """
    if isinstance(series.dtype, pd.StringDtype):
        array = pa.array(series.array, from_pandas=True)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if series.dtype.kind in "biuf" and not isinstance(series.dtype, pd.CategoricalDtype):
        codes, found = pd.factorize(series)
        texts = pa.array([text_of(value) for value in found], pa.large_string())
        return texts.take(pa.array(codes, mask=codes < 0))
    return pa.array([text_of(value) for value in series], pa.large_string())


def text_of(value: Any) -> str | None:
    """One value as text: None if it is missing, whole numbers without a point, true and false, days in ISO form.

    >>> text_of(np.float64(3.0)), text_of(np.bool_(False)), text_of(pd.Timestamp("2024-05-01")), text_of(math.nan)
    ('3', 'false', '2024-05-01', None)
    """
    if isinstance(value, str):
        return value
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, datetime.datetime):
        text = value.isoformat()
        return text[:10] if text[10:] in ("", "T00:00:00") else text
    if isinstance(value, Decimal) and value.is_finite():
        return (
            str(int(value))
            if value == value.to_integral_value()
            else format(value.normalize(), "f")
        )
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else str(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def level_codes(
    series: pd.Series,
    levels: Sequence[Level],
    missing_values: Sequence[str],
    numbers: NumberForm = PLAIN,
) -> tuple[np.ndarray, np.ndarray]:
    """Position of each value in `levels` (-1: none of them), and which values are missing.

    >>> level_codes(pd.Series(["red", "?", " 2.0"]), ["red", 2], ["?"])
    (array([ 0, -1,  1]), array([False,  True, False]))
    >>> level_codes(pd.Series([True, False]), ["false", "true"], [])[0]
    array([1, 0])
    >>> level_codes(pd.Series([True, False]), ["No", "Yes"], [])[0]
    array([1, 0])
    """
    wide = _is_number(series) and getattr(series.dtype, "itemsize", 0) == 8
    if wide and all(not isinstance(level, str) and abs(level) < _WHOLE for level in levels):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return _match_numbers(values, levels), np.isnan(values)
    at, texts = distinct_texts(series)  # each distinct text is looked at once
    known = np.array([*map(_matcher(levels, numbers), texts), -1], dtype=np.int64)
    absent = {text.strip() for text in missing_values}
    gaps = np.array([*(text.strip() in absent for text in texts), True])
    return known[at], (gaps & (known < 0))[at]


def class_codes(
    series: pd.Series, classes: Sequence[Level], source: str, numbers: NumberForm = PLAIN
) -> np.ndarray:
    """Class number of every label; a label that is not declared is refused with its row."""
    codes, _ = level_codes(series, classes, (), numbers)
    wrong = codes < 0
    if wrong.any():
        value = series.iloc[int(wrong.argmax())]
        shown = (
            "missing"
            if text_of(value) in (None, "")
            else repr(value.item() if hasattr(value, "item") else value)
        )
        raise DataError(
            f"{source}: label {series.name!r} row {first_row(wrong, series)}: {shown} is not one of "
            f"classes={list(classes)}; fix the row, or train with every class in data.classes (in Python classes=[...])"
        )
    return codes


def first_row(mask: np.ndarray, series: pd.Series | None = None) -> int:
    """Number of the first true row, counted from 1 below the header; the index of a piece says where it starts.

    >>> first_row(np.array([False, True]), pd.Series(["1", "tall"], index=pd.RangeIndex(50_000, 50_002)))
    50002
    """
    start = (
        series.index.start if series is not None and isinstance(series.index, pd.RangeIndex) else 0
    )
    return start + int(mask.argmax()) + 1


def _is_number(series: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_complex_dtype(
        series.dtype
    )


def distinct_texts(series: pd.Series) -> tuple[np.ndarray, list[str]]:
    """For each row the position of its text among the distinct texts; one past them where it is missing."""
    encoded = as_texts(series).dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False), texts


def _missing(text: pa.Array, missing_values: Sequence[str]) -> np.ndarray:
    listed = pc.is_in(text, value_set=pa.array(list(missing_values), text.type))
    mask: np.ndarray = pc.or_(pc.is_null(text), listed).to_numpy(zero_copy_only=False)
    return mask


def _matcher(levels: Sequence[Level], numbers: NumberForm) -> Callable[[str], int]:
    """A level that is text matches as written (spaces aside), a number as a number, true and false as a boolean.

    F is false beside T, and nothing of the kind beside M: words stand for booleans where both of a pair are levels.
    """
    named: dict[str, int] = {}
    lower: dict[str, int] = {}
    numbered: dict[float, int] = {}
    for place, level in enumerate(levels):
        named.setdefault(str(level), place)
        if isinstance(level, str):
            lower.setdefault(level.strip().lower(), place)
        else:
            numbered.setdefault(level, place)
    pair = next((pair for pair in _PAIRS if lower.keys() >= set(pair)), tuple(TRUTH))
    words = _WORDS if lower.keys() >= set(pair) else TRUTH
    truths = numbered | {words[word]: lower[word] for word in pair if word in lower}

    def match(text: str) -> int:
        places = [named[form] for form in (text, text.strip()) if form in named]
        if places:
            return min(places)
        value = _number(text.strip(), numbers)
        if value in numbered:
            return numbered[value]
        truth = words.get(text.strip().lower(), value)
        return -1 if truth is None else truths.get(truth, -1)

    return match


def _number(text: str, numbers: NumberForm) -> float | None:
    try:
        return float(text if numbers == PLAIN else numbers.plain(pa.array([text]))[0].as_py())
    except ValueError:
        return None


def _day(text: str, form: str | None) -> float:
    """A calendar day by its number; infinite where the text is not a date."""
    try:
        if form is not None and not _ISO.fullmatch(text.strip()):
            return float(datetime.datetime.strptime(text.strip(), form).toordinal())
        if not _ISO.fullmatch(text.strip()):
            return math.inf
        return float(datetime.date.fromisoformat(text.strip()[:10]).toordinal())
    except (ValueError, re.error):  # the latter where a form names a part twice
        return math.inf


def _quoted(sign: str) -> str:
    return "[" + ("\\" if sign in "]\\^-" else "") + sign + "]"


def _match_numbers(values: np.ndarray, levels: Sequence[Level]) -> np.ndarray:
    known = np.array([float(level) for level in levels])
    order = np.argsort(known)
    ascending = known[order]
    codes = np.searchsorted(ascending, values)
    np.minimum(codes, len(known) - 1, out=codes)
    wrong = ascending[codes] != values
    if (np.diff(order) < 0).any():
        codes = order[codes]
    if wrong.any():
        codes[wrong] = -1
    return codes.astype(np.int64, copy=False)


def parse_numbers(
    series: pd.Series, missing_values: Sequence[str], numbers: NumberForm = PLAIN
) -> tuple[np.ndarray, np.ndarray]:
    """The column as float64, NaN where a value is missing or is not a number, and which ones are not numbers.

    >>> parse_numbers(pd.Series(["1.5", "", "tall"]), [""])
    (array([1.5, nan, nan]), array([False, False,  True]))
    """
    nothing = np.zeros(len(series), dtype=bool)
    if _is_number(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan), nothing
    text = as_texts(series)
    plain = numbers.plain(text)
    try:
        return _to_float(plain), nothing
    except (
        pa.ArrowInvalid
    ):  # something is not a plain number: missing markers, spaces, booleans, or a mistake
        gaps = _missing(text, missing_values)
        text = pc.utf8_trim_whitespace(text)
        gaps |= _missing(text, missing_values)
    plain = pc.utf8_trim_whitespace(plain)
    for word, number in TRUTH.items():
        plain = pc.if_else(pc.equal(pc.utf8_lower(plain), word), str(number), plain)
    known = _without(plain, gaps)
    try:
        return _to_float(known), nothing
    except pa.ArrowInvalid:
        parsed = pd.to_numeric(
            pd.Series(known.to_numpy(zero_copy_only=False), dtype=object), errors="coerce"
        )
        absent = parsed.isna().to_numpy()
    wrong: np.ndarray = absent & ~gaps & ~_is_nan_text(known)
    try:
        return _to_float(
            _without(plain, absent)
        ), wrong  # a cell that is not a number does not change how the others are read
    except pa.ArrowInvalid:
        return parsed.to_numpy(dtype=np.float64), wrong


def _without(text: pa.Array, gaps: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(gaps), pa.scalar(None, text.type), text)


def _advice(text: str, name: str, numbers: NumberForm) -> str:
    """What to do about a cell that should be a number, by what it looks like."""
    if _ISO.fullmatch(text):
        return f"it is a date: describe the column by data.columns.{name}.date=[first, last]"
    if len(text) >= _FREE_TEXT or len(text.split()) > 4:
        return f"it is free text, which cannot be a feature: list {name} in data.drop"
    if numbers == PLAIN and re.fullmatch(
        r"[+-]?[\d.]*,\d+|[+-]?\d{1,3}([ .,']\d{3})+([.,]\d+)?", text
    ):
        return "if the file writes numbers so, say data.decimal and data.thousands"
    return f"fix it, or train with it in data.missing_values or with data.columns.{name}.levels"


def _cut(text: str) -> str:
    return text if len(text) <= _FREE_TEXT else text[: _FREE_TEXT - 1] + "…"


def _to_float(text: pa.Array) -> np.ndarray:
    values: np.ndarray = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _is_nan_text(text: pa.Array) -> np.ndarray:
    mask: np.ndarray = pc.fill_null(pc.equal(pc.utf8_lower(text), "nan"), False).to_numpy(
        zero_copy_only=False
    )
    return mask
