"""Rows as they are in the table, for statistics: numbers in their own units, levels as codes, gaps
as NaN.

Behind them stand the texts of columns whose levels nobody listed (``levels: private``), as numbers
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Column, Date, Numeric
from homo_dp.data.encoding import Encoding, missing_columns, short
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import (
    PLAIN,
    NumberForm,
    absence,
    as_days,
    as_numbers,
    distinct_texts,
    level_codes,
)

if TYPE_CHECKING:
    import pandas as pd

TEXT_BYTES = 64  # of a value in UTF-8; a longer one is never a level
_BYTES_A_NUMBER = 6  # which a float64 holds exactly
TEXT_NUMBERS = -(-TEXT_BYTES // _BYTES_A_NUMBER)


@dataclass(frozen=True)
class RawEncoding(Encoding):
    """One float64 number a column: a value or a day as it is, the code of a level (behind them: any
    other), or NaN.

    Then ``TEXT_NUMBERS`` for each column whose levels are to be estimated, in the order of the
    columns.

    Guarantees:
        - row i of the tensor depends on row i of the table and on public declarations only;
        - whatever is missing is allowed to be: statistics count it.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (len(self.columns) + TEXT_NUMBERS * len(self.unlisted),)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The columns whose levels are to be estimated."""
        return unlisted_of(self)

    def encode(
        self,
        frame: pd.DataFrame,
        source: str = "table",
        numbers: NumberForm = PLAIN,
        strays: Strays | None = None,
    ) -> torch.Tensor:
        """The columns of all rows, shape (rows, columns)."""
        absent = [name for name in self.names if name not in frame.columns]
        if absent:
            raise DataError(
                f"{source}: {missing_columns(absent)}; its columns are {short(frame.columns)}"
            )
        block = np.empty((len(frame), *self.input_shape), dtype=np.float64)
        for place, column in enumerate(self.columns):
            block[:, place] = self._values(column, frame[column.name], source, numbers)
        for number, name in enumerate(self.unlisted):
            start = len(self.columns) + number * TEXT_NUMBERS
            block[:, start : start + TEXT_NUMBERS] = text_numbers(frame[name], self.missing_values)
        return torch.from_numpy(block)

    def _values(
        self, column: Column, series: pd.Series, source: str, numbers: NumberForm
    ) -> np.ndarray:
        if isinstance(column, Numeric):
            return as_numbers(series, self.missing_values, source, numbers)
        if isinstance(column, Date):
            return as_days(series, self.missing_values, source, column.format)
        codes, gaps = level_codes(series, column.levels, self.missing_values, numbers)
        found = np.where(codes < 0, len(column.levels), codes).astype(np.float64)
        return np.where(gaps, np.nan, found)


def raw_encoding(encoding: Encoding) -> RawEncoding:
    """The same columns as statistics read them."""
    if encoding.pixel_bounds is not None or encoding.shape is not None:
        raise DataError("privacy.mechanism=statistics: are of tables with columns, not of images")
    columns = tuple(
        replace(column, missing="level")
        if isinstance(column, Categorical)
        else replace(column, missing="middle")
        for column in encoding.columns
    )
    return RawEncoding(columns, encoding.label, encoding.id, encoding.missing_values)


def unlisted_of(encoding: Encoding) -> tuple[str, ...]:
    """The columns of an encoding whose levels are to be estimated."""
    return tuple(
        column.name
        for column in encoding.columns
        if isinstance(column, Categorical) and column.unlisted
    )


def text_numbers(series: pd.Series, missing_values: Sequence[str]) -> np.ndarray:
    """The texts of a column as numbers, some a text; NaN where a value is missing or can be no
    level.

    >>> import pandas as pd
    >>> numbers = text_numbers(pd.Series(["Oslo", " Oslo", "NA", "x" * 65]), ["NA"])
    >>> [number_text(row) for row in numbers]
    ['Oslo', 'Oslo', None, None]
    """
    at, texts = distinct_texts(series)
    absent = absence(missing_values)
    known = np.full((len(texts) + 1, TEXT_NUMBERS), np.nan)
    for place, text in enumerate(texts):
        stripped = text.strip()  # as levels are matched
        if not absent(text) and may_be_level(stripped):
            padded = stripped.encode().ljust(TEXT_NUMBERS * _BYTES_A_NUMBER, b"\0")
            known[place] = [
                int.from_bytes(padded[start : start + _BYTES_A_NUMBER], "big")
                for start in range(0, len(padded), _BYTES_A_NUMBER)
            ]
    numbers: np.ndarray = known[at]
    return numbers


def number_text(numbers: np.ndarray) -> str | None:
    """The text that ``text_numbers`` wrote; None of a missing one."""
    if np.isnan(numbers).any():
        return None
    return (
        b"".join(int(number).to_bytes(_BYTES_A_NUMBER, "big") for number in numbers)
        .rstrip(b"\0")
        .decode()
    )


def may_be_level(text: str) -> bool:
    """Whether a value can be an estimated level: a short text that can be printed.

    >>> may_be_level("Oslo"), may_be_level(""), may_be_level("a\\n"), may_be_level("\\ud800")
    (True, False, False, False)
    """
    return text.isprintable() and 0 < len(text.encode("utf-8", "replace")) <= TEXT_BYTES
