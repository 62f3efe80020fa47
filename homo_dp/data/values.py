"""One raw column (text as it stands in the file, or typed) to numbers, dates, level codes or class
codes.

Every function here maps one cell to one value. The value of a cell does not depend on any other
cell of the column: which cells are texts, which are missing, and which type pandas or Arrow chose
for the column change nothing. Fast paths compute the same function for many cells at once.

A cell has one value, wherever it comes from (CSV text, Parquet, a pandas frame, JSON, a database):
    - a number is a number: 1, 1.0, "1" and Decimal("1.00") are one value; a number that is text by
      declaration ("0123") is compared as text;
    - a cell is missing if it is empty in its source (null, NaN), if its text is a marker, or if its
      number is that of a marker: the marker -999 also stands for -999.0;
    - true and false are the same as text in any case, as a typed boolean, and as the numbers 1 and
      0; so are the words of a column whose levels are a pair such as yes and no (t, f; y, n; on,
      off);
    - a date is its calendar day, as ISO text (2024-05-01, whatever time follows) or typed;
    - text is compared without the spaces around it.

Plain numbers are converted by Arrow; all other texts go through their distinct values.
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
_NUMBER_TYPES = (int, float, Decimal, np.integer, np.floating, np.bool_)
TRUTH = {"true": 1.0, "false": 0.0}
_PAIRS = (("true", "false"), ("t", "f"), ("yes", "no"), ("y", "n"), ("on", "off"))
_WORDS = {word: float(place == 0) for pair in _PAIRS for place, word in enumerate(pair)}
_WHOLE = 2**53  # below it a float64 is one whole number, and numbers can be compared as floats
_WIDEST = 2.0**64  # below it a float that is a whole number is written as one, as int64 and uint64
_DIGITS = 400  # a whole number with more is infinite as a float64
# Arrow and Python convert these texts to the same float64, correctly rounded.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBER_WORDS = TRUTH | {
    sign + word: float(sign + word)
    for sign in ("", "+", "-")
    for word in ("inf", "infinity", "nan")
}
_FREE_TEXT = 40  # letters; a longer cell that should be a number is taken for free text
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_POINT_ZERO = re.compile(r"^([+-]?[0-9]+)\.0+$")
# replaces signs that the declared form does not have, so that the text is not taken for a number
_NO_NUMBER = "?"


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
    """The column as float64, NaN where a value is missing; text and infinity are refused with their
    row.

    >>> as_numbers(pd.Series(["1.5", "", " 2"]), ["", "NA"], "t.csv")
    array([1.5, nan, 2. ])
    """
    values, wrong = parse_numbers(series, missing_values, numbers)
    if wrong.any():
        shown = (as_texts(series)[int(wrong.argmax())].as_py() or "").strip()
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(wrong, series)}: {_cut(shown)!r} is "
            f"not a number; {_advice(shown, str(series.name), numbers)}"
        )
    infinite = np.isinf(values) if not_finite(values) else None
    if infinite is not None and infinite.any():
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(infinite, series)}: infinite value; "
            "replace it by a finite number or leave it empty (missing)"
        )
    return values


def not_finite(values: np.ndarray) -> bool:
    """Whether some value may be NaN or infinite: one sum, which large values may overflow, instead
    of masks.

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
            f"{source}: column {series.name!r} row {first_row(wrong, series)}: {shown!r} is not a "
            f"date {wanted}; "
            "write it so, or train with its own form,"
            f' data.columns.{series.name}.format="%d.%m.%Y"'
        )
    return days


def parse_days(
    series: pd.Series, missing_values: Sequence[str], form: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The column's days as `as_days` counts them, NaN where one is missing or is not a date, and
    which are not dates.

    >>> parse_days(pd.Series(["0001-01-02", "", "soon"]), [""])
    (array([ 2., nan, nan]), array([False, False,  True]))
    """
    encoded, texts = distinct_texts(series)
    absent = absence((*missing_values, ""))
    days = np.array([*(math.nan if absent(text) else _day(text, form) for text in texts), math.nan])
    wrong: np.ndarray = np.isinf(days)[encoded]
    return np.where(wrong, math.nan, days[encoded]), wrong


def as_texts(series: pd.Series) -> pa.Array:
    """The column as Arrow text, each value in the one way in which it is written; null where it is
    missing.

    >>> as_texts(pd.Series([True, 2.0, "x", None], dtype=object)).to_pylist()
    ['true', '2', 'x', None]
    """
    if isinstance(series.dtype, pd.StringDtype) and series.dtype.storage == "pyarrow":
        array = pa.array(series.array, from_pandas=True)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if isinstance(series.dtype, pd.CategoricalDtype):  # its values would be floats beside a gap
        codes, found = series.cat.codes.to_numpy(), series.cat.categories
    elif series.dtype.kind in "biuf":
        codes, found = pd.factorize(series)
    else:
        return _arrow_texts([text_of(value) for value in series])
    texts = _arrow_texts([text_of(value) for value in found])
    return texts.take(pa.array(codes, mask=codes < 0))


def _arrow_texts(texts: Sequence[str | None]) -> pa.Array:
    """Texts as Arrow holds them; halves of characters, which it does not take, become "?"."""
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:
        whole = (None if text is None else text.encode("utf-8", "replace") for text in texts)
        return pa.array(
            [None if text is None else text.decode() for text in whole], pa.large_string()
        )


def text_of(value: Any) -> str | None:
    """One value as text: None if it is missing, whole numbers without a point, true and false, days
    in ISO form.

    >>> text_of(np.float64(3.0)), text_of(np.bool_(False)), text_of(pd.Timestamp("2024-05-01")), text_of(math.nan)
    ('3', 'false', '2024-05-01', None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if _is_typed(value) and not isinstance(value, float | np.floating):
        whole = int(value)
        return str(whole) if whole.bit_length() <= 64 else _decimal_text(Decimal(whole))
    if isinstance(value, datetime.datetime):
        text = value.isoformat()
        return text[:10] if text[10:] in ("", "T00:00:00") else text
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < _WIDEST else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


def _decimal_text(value: Decimal) -> str | None:
    """Without a point where the number is whole; what a float64 cannot hold is infinite or 0."""
    if value.is_nan():
        return None
    if value.is_infinite() or (value and value.adjusted() >= _DIGITS):
        return "inf" if value > 0 else "-inf"
    if not value or value.adjusted() < -_DIGITS:
        return "0"
    return str(int(value)) if value == value.to_integral_value() else format(value.normalize(), "f")


def name_of(text: str) -> str:
    """A name of a user or party: a whole number that is written with a point is the number.

    Every text is changed by itself, so that 7.0 is the user 7 of another table, whatever stands
    beside it.

    >>> name_of(" 7.0"), name_of("7.5"), name_of("007"), name_of(" ann ")
    ('7', '7.5', '007', 'ann')
    """
    return _POINT_ZERO.sub(r"\1", text.strip())


def names(series: pd.Series) -> np.ndarray:
    """The names of a column that names something (user, party, side of the split); an empty text
    where one is missing.
    """
    at, texts = distinct_texts(series)
    found: np.ndarray = np.array([*map(name_of, texts), ""], dtype=object)[at]
    return found


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
    if isinstance(series.dtype, pd.CategoricalDtype):
        categories = pd.Series(series.cat.categories)
        codes, gaps = level_codes(categories, levels, missing_values, numbers)
        at = series.cat.codes.to_numpy()  # -1, the last, where a value is missing
        return np.append(codes, -1)[at], np.append(gaps, True)[at]
    wide = _is_number(series) and getattr(series.dtype, "itemsize", 0) == 8
    if wide and all(not isinstance(level, str) and abs(level) < _WHOLE for level in levels):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        codes, markers = _match_numbers(values, levels), _marker_numbers(missing_values, PLAIN)
        return codes, (codes < 0) & (np.isnan(values) | np.isin(values, markers))
    typed = _typed(series)
    codes, gaps = _text_codes(series, levels, missing_values, PLAIN if typed.all() else numbers)
    if numbers != PLAIN and typed.any() and not typed.all():
        plain, absent = _text_codes(series, levels, missing_values, PLAIN)
        return np.where(typed, plain, codes), np.where(typed, absent, gaps)
    return codes, gaps


def _typed(series: pd.Series) -> np.ndarray:
    """Which cells are numbers in their source; the file's form of numbers is that of texts."""
    if series.dtype == object:
        return np.fromiter(map(_is_typed, series), dtype=bool, count=len(series))
    return np.full(len(series), _is_number(series))


def _is_typed(cell: Any) -> bool:
    return isinstance(cell, _NUMBER_TYPES) and not isinstance(cell, np.timedelta64)


def _text_codes(
    series: pd.Series, levels: Sequence[Level], missing_values: Sequence[str], numbers: NumberForm
) -> tuple[np.ndarray, np.ndarray]:
    at, texts = distinct_texts(series)  # each distinct text is looked at once
    known = np.array([*map(_matcher(levels, numbers), texts), -1], dtype=np.int64)
    absent = absence(missing_values, numbers)
    gaps = np.array([*map(absent, texts), True])
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
            f"{source}: label {series.name!r} row {first_row(wrong, series)}: {shown} is not one "
            f"of classes={list(classes)}; fix the row, or train with every class in data.classes "
            "(in Python classes=[...])"
        )
    return codes


def first_row(mask: np.ndarray, series: pd.Series | None = None) -> int:
    """Number of the first true row, counted from 1 below the header; the index of a piece says
    where it starts.

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
    """For each row the position of its text among the distinct texts; one past them where it is
    missing.
    """
    encoded = as_texts(series).dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    return pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False), texts


def _matcher(levels: Sequence[Level], numbers: NumberForm) -> Callable[[str], int]:
    """A level that is text matches as written (spaces aside), a number as a number, true and false
    as a boolean.

    F is false beside T, and nothing of the kind beside M: words stand for booleans where both of a
    pair are levels.
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
        word = text.strip().lower()
        value = None if word in TRUTH else _number(text, numbers)
        if value in numbered:
            return numbered[value]
        truth = words.get(word, value)
        return -1 if truth is None else truths.get(truth, -1)

    return match


def _number(text: str, numbers: NumberForm = PLAIN) -> float | None:
    """The number that a text is; None if it is none. This function defines how all texts are read.

    >>> _number(" +3 "), _number("TRUE"), _number("1_000"), _number("1.5", NumberForm(","))
    (3.0, 1.0, None, None)
    """
    text = text.strip()
    plain = text if numbers == PLAIN else numbers.plain(pa.array([text]))[0].as_py()
    return float(plain) if _NUMBER.fullmatch(plain) else _NUMBER_WORDS.get(text.lower())


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
    """The column as float64, NaN where a value is missing or is not a number, and which ones are
    not numbers.

    >>> parse_numbers(pd.Series(["1.5", "", "tall"]), [""])
    (array([1.5, nan, nan]), array([False, False,  True]))
    >>> parse_numbers(pd.Series(["-999", "-999.0", "7"]), ["-999"])
    (array([nan, nan,  7.]), array([False, False, False]))
    """
    if isinstance(series.dtype, pd.CategoricalDtype):
        values, wrong = parse_numbers(pd.Series(series.cat.categories), missing_values, numbers)
        codes = series.cat.codes.to_numpy()  # -1, the last, where a value is missing
        return np.append(values, math.nan)[codes], np.append(wrong, False)[codes]
    if _is_number(series):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return _without_markers(values, missing_values, PLAIN), np.zeros(len(series), dtype=bool)
    if series.dtype != object:
        return _text_numbers(as_texts(series), missing_values, numbers)
    typed = _typed(series)
    texts = [None if known else text_of(cell) for cell, known in zip(series, typed, strict=True)]
    values, wrong = _text_numbers(_arrow_texts(texts), missing_values, numbers)
    known = np.array([_float(cell) for cell in series[typed]], dtype=np.float64)
    values = values.copy()
    values[typed] = _without_markers(known, missing_values, PLAIN)
    return values, wrong


def _text_numbers(
    text: pa.Array, missing_values: Sequence[str], numbers: NumberForm
) -> tuple[np.ndarray, np.ndarray]:
    """The number of each text, NaN where it is missing or none, and which texts are no numbers."""
    nothing = np.zeros(len(text), dtype=bool)
    try:
        values = _to_float(numbers.plain(text))
        if not not_finite(values):
            return _without_markers(values, missing_values, numbers), nothing
    except pa.ArrowInvalid:
        pass  # some text is not a plain number
    plain = numbers.plain(pc.utf8_trim_whitespace(text))
    is_plain = pc.fill_null(pc.match_substring_regex(plain, f"^(?:{_NUMBER.pattern})$"), False)
    values = _to_float(pc.if_else(is_plain, plain, pa.scalar(None, plain.type)))
    values, wrong = _without_markers(values, missing_values, numbers).copy(), nothing
    others = np.flatnonzero(pc.and_(pc.invert(is_plain), pc.is_valid(text)))
    if len(others):
        encoded, absent = (
            text.take(pa.array(others)).dictionary_encode(),
            absence(missing_values, numbers),
        )
        texts = encoded.dictionary.to_pylist()
        found = [math.nan if absent(each) else _number(each, numbers) for each in texts]
        at = encoded.indices.to_numpy(zero_copy_only=False)
        values[others] = np.array([math.nan if each is None else each for each in found])[at]
        wrong[others] = np.array([each is None for each in found])[at]
    return values, wrong


def _without_markers(
    values: np.ndarray, missing_values: Sequence[str], numbers: NumberForm
) -> np.ndarray:
    """The same with NaN for numbers that mean a missing value."""
    markers = _marker_numbers(missing_values, numbers)
    return np.where(np.isin(values, markers), math.nan, values) if markers else values


def _marker_numbers(missing_values: Sequence[str], numbers: NumberForm) -> list[float]:
    """The numbers among the markers; a cell with the number of one is missing."""
    found = (_number(marker, numbers) for marker in missing_values)
    return [number for number in found if number is not None and not math.isnan(number)]


def absence(missing_values: Sequence[str], numbers: NumberForm = PLAIN) -> Callable[[str], bool]:
    """Whether a text means a missing value: a marker as written (spaces aside), or its number.

    >>> list(map(absence(["NA", "-999"]), [" NA", "-999.0", "na"]))
    [True, True, False]
    """
    texts, known = (
        {text.strip() for text in missing_values},
        _marker_numbers(missing_values, numbers),
    )
    if not known:
        return lambda text: text.strip() in texts
    return lambda text: text.strip() in texts or _number(text, numbers) in known


def _float(number: Any) -> float:
    """A number of Python or NumPy as float64: infinite where it is too large, NaN where it is
    none.
    """
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except ValueError:  # a signalling NaN of decimal
        return math.nan


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
