"""One raw column (text as it stands in the file, or typed) to numbers, level codes or class codes.

Text is converted by Arrow, a column at a time; no loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from homo_dp.errors import DataError

Level = str | int | float


def as_numbers(series: pd.Series, missing_values: Sequence[str], source: str) -> np.ndarray:
    """The column as float64, NaN where a value is missing; text and infinity are refused with their row.

    >>> as_numbers(pd.Series(["1.5", "", " 2"]), ["", "NA"], "t.csv")
    array([1.5, nan, 2. ])
    """
    values = _parse(series, missing_values, source)
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(infinite, series)}: infinite value; "
            "replace it by a finite number or leave it empty (missing)"
        )
    return values


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
    known = np.array([*(_match(text, levels) for text in texts), -1], dtype=np.int64)
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


def _match(text: str, levels: Sequence[Level]) -> int:
    """A text level matches as written (spaces around it aside), a number as a number: 1, 1.0 and 01 are one level."""
    for number, level in enumerate(levels):
        if text == str(level) or text.strip() == str(level):
            return number
    try:
        value = float(text)
    except ValueError:
        return -1
    return next((n for n, level in enumerate(levels) if not isinstance(level, str) and level == value), -1)


def _match_numbers(values: np.ndarray, levels: Sequence[Level]) -> np.ndarray:
    known = np.array([float(level) for level in levels])
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], values), len(known) - 1)
    codes = order[at].astype(np.int64)
    codes[known[codes] != values] = -1
    return codes


def _parse(series: pd.Series, missing_values: Sequence[str], source: str) -> np.ndarray:
    if _is_number(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    text = _as_text(series)
    try:
        return _to_float(text)
    except pa.ArrowInvalid:  # something is not a plain number: missing markers, spaces, or a mistake
        gaps = _missing(text, missing_values)
        text = pc.utf8_trim_whitespace(text)
        gaps |= _missing(text, missing_values)
    known = pc.if_else(pa.array(gaps), pa.scalar(None, text.type), text)
    try:
        return _to_float(known)
    except pa.ArrowInvalid:
        parsed = pd.to_numeric(pd.Series(known.to_numpy(zero_copy_only=False), dtype=object), errors="coerce")
        wrong = parsed.isna().to_numpy() & ~gaps & ~_is_nan_text(known)
        if not wrong.any():
            return parsed.to_numpy(dtype=np.float64)
        shown = text[int(wrong.argmax())].as_py()
        raise DataError(
            f"{source}: column {series.name!r} row {first_row(wrong, series)}: {shown!r} is not a number; fix it, "
            f"or train with it in data.missing_values or with data.columns.{series.name}.levels"
        ) from None


def _to_float(text: pa.Array) -> np.ndarray:
    values: np.ndarray = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _is_nan_text(text: pa.Array) -> np.ndarray:
    mask: np.ndarray = pc.fill_null(pc.equal(pc.utf8_lower(text), "nan"), False).to_numpy(zero_copy_only=False)
    return mask
