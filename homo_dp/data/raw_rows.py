"""Rows as they are in the table, for statistics: numbers in their own units, levels as codes, gaps as NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Categorical, Column, Date, Numeric
from homo_dp.data.encoding import Encoding, missing_columns, short
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import PLAIN, NumberForm, as_days, as_numbers, level_codes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RawEncoding(Encoding):
    """One float64 number a column: a value or a day as it is, the code of a level (behind them: any other), or NaN.

    Guarantees:
        - row i of the tensor depends on row i of the table and on public declarations only;
        - whatever is missing is allowed to be: statistics count it.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (len(self.columns),)

    def encode(
        self, frame: pd.DataFrame, source: str = "table", numbers: NumberForm = PLAIN, strays: Strays | None = None
    ) -> torch.Tensor:
        """The columns of all rows, shape (rows, columns)."""
        absent = [name for name in self.names if name not in frame.columns]
        if absent:
            raise DataError(f"{source}: {missing_columns(absent)}; its columns are {short(frame.columns)}")
        block = np.empty((len(frame), len(self.columns)), dtype=np.float64)
        for place, column in enumerate(self.columns):
            block[:, place] = self._values(column, frame[column.name], source, numbers)
        return torch.from_numpy(block)

    def _values(self, column: Column, series: pd.Series, source: str, numbers: NumberForm) -> np.ndarray:
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
        replace(column, missing="level") if isinstance(column, Categorical) else replace(column, missing="middle")
        for column in encoding.columns
    )
    return RawEncoding(columns, encoding.label, encoding.id, encoding.missing_values)
