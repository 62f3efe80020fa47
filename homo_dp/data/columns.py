"""One column each, described by public knowledge: a number, a day, a list of levels, the label.

Nothing here is fitted: every bound, level and class comes from the config (or from a description we
ship), so the encoding of a value depends on that value alone and costs no privacy.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.unexpected_values import ColumnStrays
from homo_dp.data.values import (
    PLAIN,
    NumberForm,
    as_days,
    as_numbers,
    class_codes,
    first_row,
    level_codes,
    not_finite,
    parse_days,
    parse_numbers,
)

if TYPE_CHECKING:
    import pandas as pd

Level = str | int | float
MISSING_VALUES = ("", "NA", "NaN", "nan", "null")
NUMERIC_RULES = ("error", "middle", "low", "high")
LEVEL_RULES = ("level", "unknown", "error")
_LEAST_SPAN = 1e-300  # of bounds: one over it is finite
_VALUE_BLOCK = 1 << 15  # values of a column scaled at a time
DATE_PARTS = ("days", "year", "month", "weekday")
LATER = "(estimated later)"  # stands for levels that are not known yet


@dataclass(frozen=True)
class Cells:
    """How the cells of one file are read, and how errors call it."""

    source: str
    missing_values: tuple[str, ...] = MISSING_VALUES
    numbers: NumberForm = PLAIN


@dataclass(frozen=True)
class Numeric:
    """A number with public bounds: clipped to them, then scaled to [-1, 1].

    >>> Numeric("age", 0, 100).scale(np.array([50.0, 1e9]))
    array([0., 1.])
    """

    name: str
    low: float
    high: float
    missing: str | float = "error"
    indicator: bool = False

    def __post_init__(self) -> None:
        check_bounds(f"data.columns.{self.name}.bounds", (self.low, self.high))
        if isinstance(self.missing, str):
            if self.missing not in NUMERIC_RULES:
                raise DataError(
                    f"data.columns.{self.name}.missing={self.missing!r} is not one of "
                    f"{', '.join(NUMERIC_RULES)} or a number within the bounds"
                )
        elif isinstance(self.missing, bool) or not self.low <= self.missing <= self.high:
            raise DataError(
                f"data.columns.{self.name}.missing={self.missing!r} is outside bounds=[{self.low}, "
                f"{self.high}]; choose a public value within them"
            )

    @property
    def width(self) -> int:
        return 2 if self.indicator else 1

    @property
    def fill(self) -> float | None:
        """The public value that stands for a missing one, or None where a missing value is an
        error.
        """
        rules = {
            "error": None,
            "middle": (self.low + self.high) / 2,
            "low": self.low,
            "high": self.high,
        }
        return rules[self.missing] if isinstance(self.missing, str) else float(self.missing)

    def scale(self, values: np.ndarray) -> np.ndarray:
        return self._spread(np.clip(values, float(self.low), float(self.high)))

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Values within the bounds, on [-1, 1]."""
        scaled: np.ndarray = values - self.low
        scaled *= 2.0 / (self.high - self.low)
        scaled -= 1.0
        return scaled

    def write(self, series: pd.Series, cells: Cells, out: np.ndarray) -> ColumnStrays:
        """Put the column's inputs into `out` (width x rows); what did not fit."""
        values = as_numbers(series, cells.missing_values, cells.source, cells.numbers)
        gaps = (
            np.isnan(values)
            if not_finite(values)
            else np.zeros(len(values) if self.indicator else 0, dtype=bool)
        )
        if gaps.any():
            if self.fill is None:
                raise DataError(
                    f"{cells.source}: column {self.name!r} row {first_row(gaps, series)}: missing "
                    "value; fill it in, or train with "
                    f"data.columns.{self.name}.missing=middle|low|high|<number>"
                )
            values = np.where(gaps, self.fill, values)
        clipped = 0
        for at in range(0, len(values), _VALUE_BLOCK):  # a block stays in the processor's cache
            block = values[at : at + _VALUE_BLOCK]
            if self.low <= block.min() and block.max() <= self.high:
                out[0, at : at + _VALUE_BLOCK] = self._spread(block)
                continue
            out[0, at : at + _VALUE_BLOCK] = self.scale(block)
            clipped += int(np.count_nonzero(block < self.low) + np.count_nonzero(block > self.high))
        if self.indicator:
            out[1] = gaps
        return ColumnStrays(clipped=clipped, missing=int(gaps.sum()))

    def misfits(self, series: pd.Series, cells: Cells) -> np.ndarray:
        """Which values `write` refuses."""
        values, wrong = parse_numbers(series, cells.missing_values, cells.numbers)
        refused: np.ndarray = wrong | np.isinf(values)
        return refused | np.isnan(values) if self.fill is None else refused


@dataclass(frozen=True)
class Date:
    """A calendar day with public bounds: days from the first to the last as one number, or parts of
    it.

    `year` is one number within the years of the bounds; `month` and `weekday` are a point on a
    circle (sine and cosine), so that December is beside January.

    >>> Date("visit", "2020-01-01", "2020-12-31", ("days", "month")).width
    3
    """

    name: str
    first: str
    last: str
    parts: tuple[str, ...] = ("days",)
    format: str | None = None
    missing: str = "error"
    indicator: bool = False

    def __post_init__(self) -> None:
        key = f"data.columns.{self.name}"
        low, high = _ordinal(f"{key}.date", self.first), _ordinal(f"{key}.date", self.last)
        if low >= high:
            raise DataError(
                f"{key}.date=[{self.first}, {self.last}] must have its first day before its last"
            )
        if (
            not self.parts
            or set(self.parts) - set(DATE_PARTS)
            or len(set(self.parts)) != len(self.parts)
        ):
            raise DataError(
                f"{key}.parts={list(self.parts)} must be some of {', '.join(DATE_PARTS)}"
            )
        if self.missing not in NUMERIC_RULES:
            raise DataError(
                f"{key}.missing={self.missing!r} is not one of {', '.join(NUMERIC_RULES)}"
            )

    @property
    def width(self) -> int:
        return sum(2 if part in ("month", "weekday") else 1 for part in self.parts) + self.indicator

    def write(self, series: pd.Series, cells: Cells, out: np.ndarray) -> ColumnStrays:
        """Put the column's inputs into `out` (width x rows); what did not fit."""
        days = as_days(series, cells.missing_values, cells.source, self.format)
        gaps = np.isnan(days)
        low, high = _ordinal("date", self.first), _ordinal("date", self.last)
        if gaps.any():
            if self.missing == "error":
                raise DataError(
                    f"{cells.source}: column {self.name!r} row {first_row(gaps, series)}: missing "
                    "value; fill it in, or train with "
                    f"data.columns.{self.name}.missing=middle|low|high"
                )
            days = np.where(
                gaps, {"low": low, "high": high, "middle": (low + high) // 2}[self.missing], days
            )
        within = np.clip(days, low, high)
        at = 0
        for part in self.parts:
            for values in self._inputs(part, within):
                out[at] = values
                at += 1
        if self.indicator:
            out[at] = gaps
        return ColumnStrays(clipped=int((days != within).sum()), missing=int(gaps.sum()))

    def misfits(self, series: pd.Series, cells: Cells) -> np.ndarray:
        """Which values `write` refuses."""
        days, wrong = parse_days(series, cells.missing_values, self.format)
        return wrong | np.isnan(days) if self.missing == "error" else wrong

    def _inputs(self, part: str, days: np.ndarray) -> tuple[np.ndarray, ...]:
        low, high = _ordinal("date", self.first), _ordinal("date", self.last)
        if part == "days":
            return (Numeric(self.name, low, high).scale(days),)
        if part == "weekday":
            return _circle((days + 6) % 7, 7)  # day 1 of the calendar was a Monday
        found, where = np.unique(days, return_inverse=True)
        dates = [datetime.date.fromordinal(int(day)) for day in found]
        if part == "month":
            return _circle(np.array([day.month - 1 for day in dates], dtype=np.float64)[where], 12)
        first, last = (datetime.date.fromordinal(day).year for day in (low, high))
        years = np.array([day.year for day in dates], dtype=np.float64)[where]
        return (Numeric(self.name, first, max(last, first + 1)).scale(years),)


@dataclass(frozen=True)
class Categorical:
    """A declared list of levels, one-hot, with a slot for any other value and one for a missing
    value.

    >>> Categorical("colour", ("red", "blue")).width
    4
    """

    name: str
    levels: tuple[Level, ...]
    # or unknown, error, or the declared level that stands for a missing value
    missing: Level = "level"

    def __post_init__(self) -> None:
        check_values(f"data.columns.{self.name}.levels", self.levels)
        if self.missing not in LEVEL_RULES and self.missing not in self.levels:
            raise DataError(
                f"data.columns.{self.name}.missing={self.missing!r} is not one of "
                f"{', '.join(LEVEL_RULES)} or a declared level"
            )

    @property
    def unlisted(self) -> bool:
        """Whether its levels are still to be estimated."""
        return self.levels == (LATER,)

    @property
    def width(self) -> int:
        return len(self.levels) + (
            2 if self.missing == "level" and "level" not in self.levels else 1
        )

    def write(self, series: pd.Series, cells: Cells, out: np.ndarray) -> ColumnStrays:
        """Put the column's inputs into `out` (width x rows); what did not fit."""
        codes, gaps = level_codes(series, self.levels, cells.missing_values, cells.numbers)
        if self.missing == "error" and gaps.any():
            raise DataError(
                f"{cells.source}: column {self.name!r} row {first_row(gaps, series)}: missing "
                f"value; fill it in, or train with data.columns.{self.name}.missing=level"
            )
        other = int(((codes < 0) & ~gaps).sum())
        codes[codes < 0] = len(self.levels)
        if self.missing in self.levels:
            codes[gaps] = self.levels.index(self.missing)
        elif self.missing == "level":
            codes[gaps] = len(self.levels) + 1
        out[:] = 0.0
        out[codes, np.arange(len(codes))] = 1.0
        return ColumnStrays(other=other, missing=int(gaps.sum()))

    def misfits(self, series: pd.Series, cells: Cells) -> np.ndarray:
        """Which values `write` refuses."""
        if self.missing != "error":
            return np.zeros(len(series), dtype=bool)
        return level_codes(series, self.levels, cells.missing_values, cells.numbers)[1]


Column = Numeric | Categorical | Date


@dataclass(frozen=True)
class Label:
    """What is predicted: one of the declared classes, or a number with public bounds."""

    name: str
    classes: tuple[Level, ...] | None = None
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if (self.classes is None) == (self.bounds is None):
            raise DataError(
                "a label needs either data.classes or data.target_bounds, not both and not neither"
            )
        if self.classes is not None:
            check_values("data.classes", self.classes)
            if len(self.classes) < 2:
                raise DataError(f"data.classes={list(self.classes)} needs at least 2 classes")
        if self.bounds is not None:
            check_bounds("data.target_bounds", self.bounds)

    @property
    def regression(self) -> bool:
        return self.bounds is not None

    def encode(
        self, series: pd.Series, source: str, *, clip: bool = True, numbers: NumberForm = PLAIN
    ) -> torch.Tensor:
        """Class numbers (int64), or the target scaled so that its bounds are [-1, 1] (float32)."""
        if self.bounds is not None:
            values = as_numbers(series, MISSING_VALUES, source, numbers)
            gaps = np.isnan(values)
            if gaps.any():
                row = first_row(gaps, series)
                raise DataError(
                    f"{source}: label {self.name!r} row {row}: missing value; drop the row"
                )
            scaled = self._numeric().scale(values) if clip else self._scale_unclipped(values)
            return torch.from_numpy(scaled.astype(np.float32))
        codes = class_codes(series, self.classes or (), source, numbers)
        return torch.from_numpy(codes)

    def misfits(self, series: pd.Series, numbers: NumberForm = PLAIN) -> np.ndarray:
        """Which labels `encode` refuses."""
        if self.bounds is not None:
            return self._numeric().misfits(series, Cells("labels", numbers=numbers))
        refused: np.ndarray = level_codes(series, self.classes or (), (), numbers)[0] < 0
        return refused

    def decode(self, outputs: torch.Tensor) -> torch.Tensor:
        """From the scaled target back to the units of the label (regression)."""
        if self.bounds is None:
            raise DataError(
                f"label {self.name!r} has classes; only a target with bounds can be scaled back"
            )
        low, high = self.bounds
        return (outputs + 1.0) * ((high - low) / 2.0) + low

    def _numeric(self) -> Numeric:
        low, high = self.bounds or (0.0, 1.0)
        return Numeric(self.name, low, high)

    def _scale_unclipped(self, values: np.ndarray) -> np.ndarray:
        low, high = self.bounds or (0.0, 1.0)
        most = float(np.finfo(np.float32).max)
        with np.errstate(over="ignore"):
            scaled: np.ndarray = np.clip((values - low) * (2.0 / (high - low)) - 1.0, -most, most)
        return scaled


def check_bounds(key: str, bounds: tuple[float, float]) -> None:
    """Public bounds are two finite numbers, low < high, so far apart that numbers can be scaled
    by them.
    """
    low, high = bounds
    if not (
        math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)
    ):
        raise DataError(f"{key}=[{low}, {high}] must be two finite numbers with low < high")
    if high - low < _LEAST_SPAN:
        raise DataError(
            f"{key}=[{low}, {high}] must be not closer together than {_LEAST_SPAN:g}; scale the "
            "column"
        )


def check_values(key: str, values: Sequence[Level]) -> None:
    """Levels and classes are distinct texts or finite numbers; YAML's yes/no/true must be
    quoted.
    """
    if not values:
        raise DataError(f"{key} is empty; list the values that can occur")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise DataError(f"{key}: {value!r} is not a text or a number; quote it")
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"{key}: {value!r} is not a finite number")
    if len({str(value) for value in values}) != len(values) or len(set(values)) != len(values):
        raise DataError(f"{key}={list(values)} lists a value twice")


def _ordinal(key: str, day: str) -> int:
    try:
        return datetime.date.fromisoformat(day).toordinal()
    except ValueError:
        raise DataError(f"{key}: {day!r} is not a day such as 2015-01-31") from None


def _circle(place: np.ndarray, places: int) -> tuple[np.ndarray, np.ndarray]:
    """From a table of the few places: the last bit of a sine may depend on where in an array a
    number stands.
    """
    angles, at = np.arange(places) * (2 * math.pi / places), place.astype(np.int64)
    return np.sin(angles)[at], np.cos(angles)[at]
