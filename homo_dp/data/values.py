"""One raw column (text as it stands in the file, or typed) to numbers, level codes or class codes.

Text is converted by Arrow, a column at a time; no loop over rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from homo_dp.core.errors import DataError

Level = str | int | float


def as_numbers(series: pd.Series, missing_values: Sequence[str], source: str) -> np.ndarray:
    """The column as float64, NaN where a value is missing; text and infinity are refused with their row.

    >>> as_numbers(pd.Series(["1.5", "", " 2"]), ["", "NA"], "t.csv")
    array([1.5, nan, 2. ])
    """
    values, wrong = parse_numbers(series, missing_values)
    if wrong.any():
        shown = _as_text(series)[int(wrong.argmax())].as_py().strip()
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(wrong, series)}: {shown!r} is not a number; fix it, "
            f"or train with it in data.missing_values or with data.columns.{series.name}.levels"
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


def level_codes(
    series: pd.Series, levels: Sequence[Level], missing_values: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Position of each value in `levels` (-1: none of them), and which values are missing.

    >>> level_codes(pd.Series(["red", "?", " 2.0"]), ["red", 2], ["?"])
    (array([ 0, -1,  1]), array([False,  True, False]))
    """
    if _is_number(series) and all(not isinstance(level, str) for level in levels):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return _match_numbers(values, levels), np.isnan(values)
    encoded = _as_text(series).dictionary_encode()  # each distinct text is looked at once
    texts = encoded.dictionary.to_pylist()
    at = pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False)
    known = np.array([*map(_matcher(levels), texts), -1], dtype=np.int64)
    absent = {text.strip() for text in missing_values}
    gaps = np.array([*(text.strip() in absent for text in texts), True])
    return known[at], (gaps & (known < 0))[at]


def class_codes(series: pd.Series, classes: Sequence[Level], source: str) -> np.ndarray:
    """Class number of every label; a label that is not declared is refused with its row."""
    codes, _ = level_codes(series, classes, ())
    wrong = codes < 0
    if wrong.any():
        value = series.iloc[int(wrong.argmax())]
        shown = "missing" if pd.isna(value) or value == "" else repr(value if isinstance(value, str) else value.item())
        raise DataError(
            f"{source}: label {series.name!r} row {first_row(wrong, series)}: {shown} is not one of "
            f"classes={list(classes)}; fix the row, or train with all classes in data.classes"
        )
    return codes


def first_row(mask: np.ndarray, series: pd.Series | None = None) -> int:
    """Number of the first true row, counted from 1 below the header; the index of a piece says where it starts.

    >>> first_row(np.array([False, True]), pd.Series(["1", "tall"], index=pd.RangeIndex(50_000, 50_002)))
    50002
    """
    start = series.index.start if series is not None and isinstance(series.index, pd.RangeIndex) else 0
    return start + int(mask.argmax()) + 1


def _is_number(series: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_complex_dtype(series.dtype)


def _as_text(series: pd.Series) -> pa.Array:
    """The column as Arrow text; null where pandas says the value is missing."""
    if not isinstance(series.dtype, pd.StringDtype):
        gaps = series.isna()
        series = series.astype(str).where(~gaps, None)
    array = pa.array(series.array, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _missing(text: pa.Array, missing_values: Sequence[str]) -> np.ndarray:
    listed = pc.is_in(text, value_set=pa.array(list(missing_values), text.type))
    mask: np.ndarray = pc.or_(pc.is_null(text), listed).to_numpy(zero_copy_only=False)
    return mask


def _matcher(levels: Sequence[Level]) -> Callable[[str], int]:
    """A text level matches as written (spaces around it aside), a number as a number: 1, 1.0 and 01 are one level."""
    named: dict[str, int] = {}
    numbered: dict[float, int] = {}
    for place, level in enumerate(levels):
        named.setdefault(str(level), place)
        if not isinstance(level, str):
            numbered.setdefault(level, place)

    def match(text: str) -> int:
        places = [named[form] for form in (text, text.strip()) if form in named]
        if places:
            return min(places)
        try:
            return numbered.get(float(text), -1)
        except ValueError:
            return -1

    return match


def _match_numbers(values: np.ndarray, levels: Sequence[Level]) -> np.ndarray:
    known = np.array([float(level) for level in levels])
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], values), len(known) - 1)
    codes = order[at].astype(np.int64)
    codes[known[codes] != values] = -1
    return codes


def parse_numbers(series: pd.Series, missing_values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The column as float64, NaN where a value is missing or is no number, and which ones are no numbers.

    >>> parse_numbers(pd.Series(["1.5", "", "tall"]), [""])
    (array([1.5, nan, nan]), array([False, False,  True]))
    """
    nothing = np.zeros(len(series), dtype=bool)
    if _is_number(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan), nothing
    text = _as_text(series)
    try:
        return _to_float(text), nothing
    except pa.ArrowInvalid:  # something is not a plain number: missing markers, spaces, or a mistake
        gaps = _missing(text, missing_values)
        text = pc.utf8_trim_whitespace(text)
        gaps |= _missing(text, missing_values)
    known = _without(text, gaps)
    try:
        return _to_float(known), nothing
    except pa.ArrowInvalid:
        parsed = pd.to_numeric(pd.Series(known.to_numpy(zero_copy_only=False), dtype=object), errors="coerce")
        absent = parsed.isna().to_numpy()
    wrong: np.ndarray = absent & ~gaps & ~_is_nan_text(known)
    try:
        return _to_float(_without(text, absent)), wrong  # numbers beside a mistake are read as they are without it
    except pa.ArrowInvalid:
        return parsed.to_numpy(dtype=np.float64), wrong


def _without(text: pa.Array, gaps: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(gaps), pa.scalar(None, text.type), text)


def _to_float(text: pa.Array) -> np.ndarray:
    values: np.ndarray = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _is_nan_text(text: pa.Array) -> np.ndarray:
    mask: np.ndarray = pc.fill_null(pc.equal(pc.utf8_lower(text), "nan"), False).to_numpy(zero_copy_only=False)
    return mask
