"""The closed list of questions: what one row adds to a sum, how far it can move it, and what the
total says.

A row is one float64 number a column, as ``RawEncoding`` gives it, and its label. Every question
scales what a row adds to an L2 norm of at most 1, so the noise of its sum has standard deviation z,
and scales the total back when it is read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from homo_dp.config.statistics import StatisticsConfig
from homo_dp.core.errors import ConfigError
from homo_dp.data.columns import Categorical, Column, Date, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.raw_rows import unlisted_of
from homo_dp.privacy.moments import outer_products, second_moment, triangle_size

Answer = dict[str, Any]
"""``values`` and ``standard_errors`` by item, and what is needed to read them (``edges``)."""

# How the questions of a job share its budget, as shares of mu^2: more where more numbers are asked
# of a row.
SHARES: Mapping[str, float] = {
    "rows": 1.0,
    "classes": 1.0,
    "missing": 1.0,
    "levels": 2.0,
    "means": 2.0,
    "variances": 3.0,
    "histograms": 4.0,
    "second_moments": 4.0,
}
ESTIMATES = ("bounds", "level_names")  # questions that are more than one sum, or none
_REDRAWN = 200  # times that the noise of a histogram is drawn again for the errors of its quantiles
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Question(ABC):
    """One private sum over all rows.

    Guarantees every subclass must keep:
        - ``parts`` gives one vector a row, which depends on that row alone and has an L2 norm of at
          most 1.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def dimension(self) -> int:
        """How many numbers are asked."""

    @abstractmethod
    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        """What each row adds to the sum."""

    @abstractmethod
    def read(self, total: Tensor, sigma: float) -> Answer:
        """What a total says, whose numbers have noise of standard deviation ``sigma``."""


@dataclass(frozen=True)
class RowCount(Question):
    """How many rows there are.

    >>> RowCount().read(torch.tensor([99.5]), 2.0)["values"]
    {'rows': 99.5}
    """

    name: ClassVar[str] = "rows"

    @property
    def dimension(self) -> int:
        return 1

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        return torch.ones(len(rows), 1, dtype=torch.float64)

    def read(self, total: Tensor, sigma: float) -> Answer:
        return {"values": {"rows": _number(total[0])}, "standard_errors": {"rows": sigma}}


@dataclass(frozen=True)
class ClassCounts(Question):
    """How many rows each class has; a row is of one class, so one row moves one count by 1."""

    name: ClassVar[str] = "classes"
    classes: tuple[str, ...]

    @property
    def dimension(self) -> int:
        return len(self.classes)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(labels.long(), len(self.classes)).double()

    def read(self, total: Tensor, sigma: float) -> Answer:
        return {
            "values": dict(zip(self.classes, _numbers(total), strict=True)),
            "standard_errors": dict.fromkeys(self.classes, sigma),
        }


@dataclass(frozen=True)
class ColumnsQuestion(Question):
    """A question about numeric columns within their public bounds; ``places`` are theirs in a
    row.
    """

    columns: tuple[str, ...]
    places: tuple[int, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    def scaled(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Values clipped to their bounds and scaled to [-1, 1], 0 where missing; and where they
        are there.
        """
        values = rows[:, list(self.places)]
        present = ~values.isnan()
        low, high = (torch.tensor(ends, dtype=torch.float64) for ends in (self.lows, self.highs))
        inside = torch.minimum(torch.maximum(values, low), high)
        scaled = (inside - low) * (2.0 / (high - low)) - 1.0
        return torch.where(present, scaled, 0.0), present

    @property
    def halves(self) -> list[float]:
        """Half the width of the bounds of each column, which a scaled value is in units of."""
        return [(high - low) / 2 for low, high in zip(self.lows, self.highs, strict=True)]


@dataclass(frozen=True)
class Means(ColumnsQuestion):
    """Means of columns: sums of scaled values and counts of those that are there, two numbers a
    column.
    """

    name: ClassVar[str] = "means"

    @property
    def dimension(self) -> int:
        return 2 * len(self.columns)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        scaled, present = self.scaled(rows)
        return torch.cat([scaled, present.double()], 1) / math.sqrt(self.dimension)

    def read(self, total: Tensor, sigma: float) -> Answer:
        sums, counts = (part * math.sqrt(self.dimension) for part in torch.chunk(total, 2))
        noise, values, errors = sigma * math.sqrt(self.dimension), {}, {}
        for place, (name, half) in enumerate(zip(self.columns, self.halves, strict=True)):
            mean, error = _ratio(float(sums[place]), float(counts[place]), noise)
            values[name] = self.lows[place] + (mean + 1) * half
            errors[name] = error * half
        return {"values": values, "standard_errors": errors}


@dataclass(frozen=True)
class Variances(ColumnsQuestion):
    """Means and variances of columns: sums of values and squares, and counts, three numbers a
    column.
    """

    name: ClassVar[str] = "variances"

    @property
    def dimension(self) -> int:
        return 3 * len(self.columns)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        scaled, present = self.scaled(rows)
        return torch.cat([scaled, scaled.square(), present.double()], 1) / math.sqrt(self.dimension)

    def read(self, total: Tensor, sigma: float) -> Answer:
        sums, squares, counts = (part * math.sqrt(self.dimension) for part in torch.chunk(total, 3))
        noise = sigma * math.sqrt(self.dimension)
        values: dict[str, float] = {}
        errors: dict[str, float] = {}
        means: dict[str, float] = {}
        for place, (name, half) in enumerate(zip(self.columns, self.halves, strict=True)):
            count = float(counts[place])
            mean, mean_error = _ratio(float(sums[place]), count, noise)
            square, square_error = _ratio(float(squares[place]), count, noise)
            means[name] = self.lows[place] + (mean + 1) * half
            values[name] = max(0.0, square - mean**2) * half**2
            errors[name] = math.hypot(square_error, 2 * mean * mean_error) * half**2
        return {"values": values, "standard_errors": errors, "means": means}


@dataclass(frozen=True)
class SecondMoments(ColumnsQuestion):
    """X^T X of the columns scaled to [-1, 1] (0 where missing): rows have a norm of at most
    sqrt(columns).
    """

    name: ClassVar[str] = "second_moments"

    @property
    def dimension(self) -> int:
        return triangle_size(len(self.columns))

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        scaled, _ = self.scaled(rows)
        return outer_products(scaled / math.sqrt(len(self.columns)))

    def read(self, total: Tensor, sigma: float) -> Answer:
        width = len(self.columns)
        matrix = second_moment(total, width) * width
        off = sigma * width / math.sqrt(2.0)
        return {
            "values": {name: _numbers(row) for name, row in zip(self.columns, matrix, strict=True)},
            "standard_errors": {"diagonal": sigma * width, "other": off},
            "units": "columns scaled to [-1, 1] by their bounds",
        }


@dataclass(frozen=True)
class Histograms(ColumnsQuestion):
    """Counts in bins of equal width within the bounds of each column; values outside are in the
    first or last bin.
    """

    name: ClassVar[str] = "histograms"
    bins: int = 20

    @property
    def dimension(self) -> int:
        return self.bins * len(self.columns)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        scaled, present = self.scaled(rows)
        places = ((scaled + 1.0) * (self.bins / 2)).long().clamp(0, self.bins - 1)
        hot = torch.nn.functional.one_hot(places, self.bins).double() * present.double()[..., None]
        return hot.reshape(len(rows), self.dimension) / math.sqrt(len(self.columns))

    def read(self, total: Tensor, sigma: float) -> Answer:
        scale = math.sqrt(len(self.columns))
        counts = (total * scale).reshape(len(self.columns), self.bins)
        edges = {
            name: torch.linspace(low, high, self.bins + 1, dtype=torch.float64).tolist()
            for name, low, high in zip(self.columns, self.lows, self.highs, strict=True)
        }
        return {
            "values": {name: _numbers(row) for name, row in zip(self.columns, counts, strict=True)},
            "standard_errors": dict.fromkeys(self.columns, sigma * scale),
            "edges": edges,
        }


@dataclass(frozen=True)
class LevelCounts(Question):
    """How many rows have each declared level, any other value, or none, by column."""

    name: ClassVar[str] = "levels"
    columns: tuple[str, ...]
    places: tuple[int, ...]
    levels: tuple[tuple[str, ...], ...]

    @property
    def dimension(self) -> int:
        return sum(len(names) + 2 for names in self.levels)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        pieces = []
        for place, names in zip(self.places, self.levels, strict=True):
            codes = rows[:, place].nan_to_num(len(names) + 1).long()
            pieces.append(torch.nn.functional.one_hot(codes, len(names) + 2).double())
        return torch.cat(pieces, 1) / math.sqrt(len(self.columns))

    def read(self, total: Tensor, sigma: float) -> Answer:
        scale, at = math.sqrt(len(self.columns)), 0
        values: dict[str, dict[str, float]] = {}
        for column, names in zip(self.columns, self.levels, strict=True):
            items = (*names, "(other)", "(missing)")
            values[column] = dict(
                zip(items, _numbers(total[at : at + len(items)] * scale), strict=True)
            )
            at += len(items)
        return {"values": values, "standard_errors": dict.fromkeys(self.columns, sigma * scale)}


@dataclass(frozen=True)
class MissingCounts(Question):
    """How many values of each column are missing."""

    name: ClassVar[str] = "missing"
    columns: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def dimension(self) -> int:
        return len(self.columns)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        return rows[:, list(self.places)].isnan().double() / math.sqrt(len(self.columns))

    def read(self, total: Tensor, sigma: float) -> Answer:
        scale = math.sqrt(len(self.columns))
        return {
            "values": dict(zip(self.columns, _numbers(total * scale), strict=True)),
            "standard_errors": dict.fromkeys(self.columns, sigma * scale),
        }


def questions_of(asked: StatisticsConfig, encoding: Encoding) -> tuple[Question, ...]:
    """The sums behind the questions that are asked: quantiles are read off histograms, which are
    then asked too.
    """
    sums = [name for name in asked.ask if name not in ESTIMATES]
    names = list(dict.fromkeys("histograms" if name == "quantiles" else name for name in sums))
    return tuple(_question(name, asked, encoding) for name in names)


def quantiles(histograms: Answer) -> Answer:
    """Quantiles of the columns of a histogram answer, for no further budget.

    Counts below zero are taken out so that their sum stays what it was: cut off at zero, noise
    alone would fill empty bins and draw the quantiles apart. The error is how far quantiles move
    when the noise is drawn again around what was found, and half of a bin's own, where in a bin a
    value is being unknown.
    """
    values: dict[str, dict[str, float]] = {}
    errors: dict[str, dict[str, float]] = {}
    for name, counts in histograms["values"].items():
        edges, noise = histograms["edges"][name], histograms["standard_errors"][name]
        width = edges[1] - edges[0]
        kept = _not_negative(np.array([counts]))
        found = edges[0] + width * _places(kept)[0]
        drawn = kept + noise * np.random.default_rng(0).normal(size=(_REDRAWN, len(counts)))
        moved = edges[0] + width * _places(_not_negative(drawn)) - found
        error = np.sqrt(np.square(moved).mean(0) + (width / 2) ** 2 / 12)
        shares = [f"{share:g}" for share in QUANTILES]
        values[name] = dict(zip(shares, found.tolist(), strict=True))
        errors[name] = dict(zip(shares, error.tolist(), strict=True))
    return {"values": values, "standard_errors": errors}


def _not_negative(counts: np.ndarray) -> np.ndarray:
    """The nearest counts (least squares, row by row) that are not negative and have the same sum,
    at least above zero.

    >>> _not_negative(np.array([[4.0, 2.0, -1.0]]))
    array([[3.5, 1.5, 0. ]])
    """
    total = np.maximum(counts.sum(1, keepdims=True), 1e-9)
    falling = -np.sort(-counts, axis=1)
    numbers = np.arange(1, counts.shape[1] + 1)
    # what each of the largest gives up, if it is those that stay
    surplus = (falling.cumsum(1) - total) / numbers
    stays = (falling > surplus).sum(1) - 1
    kept: np.ndarray = np.maximum(counts - np.take_along_axis(surplus, stays[:, None], 1), 0.0)
    return kept


def _places(counts: np.ndarray) -> np.ndarray:
    """For rows of counts the places of the quantiles, in bins from the low end."""
    up_to = counts.cumsum(1)
    wanted = np.array(QUANTILES) * up_to[:, -1:]
    at = (up_to[:, None, :] < wanted[:, :, None] * (1 - 1e-12)).sum(2).clip(max=counts.shape[1] - 1)
    here = np.take_along_axis(counts, at, 1)
    inside = (wanted - np.take_along_axis(up_to, at, 1) + here) / np.maximum(here, 1e-300)
    places: np.ndarray = at + np.where(here > 0, inside.clip(0.0, 1.0), 0.5)
    return places


def _question(name: str, asked: StatisticsConfig, encoding: Encoding) -> Question:
    if name == "rows":
        return RowCount()
    if name == "classes":
        if encoding.label.classes is None:
            raise ConfigError(
                f"statistics.ask=classes: the label {encoding.label.name!r} is a number; ask rows"
            )
        return ClassCounts(tuple(map(str, encoding.label.classes)))
    if name == "missing":
        wanted = _wanted(asked, encoding, (Numeric, Date, Categorical), name)
        return MissingCounts(
            tuple(column.name for _, column in wanted), tuple(place for place, _ in wanted)
        )
    if name == "levels":
        wanted = _wanted(asked, encoding, (Categorical,), name)
        levels = tuple(
            tuple(map(str, column.levels))
            for _, column in wanted
            if isinstance(column, Categorical)
        )
        return LevelCounts(
            tuple(column.name for _, column in wanted), tuple(place for place, _ in wanted), levels
        )
    wanted = _wanted(asked, encoding, (Numeric,), name)
    numeric = [(place, column) for place, column in wanted if isinstance(column, Numeric)]
    shared = (
        tuple(column.name for _, column in numeric),
        tuple(place for place, _ in numeric),
        tuple(float(column.low) for _, column in numeric),
        tuple(float(column.high) for _, column in numeric),
    )
    if name == "histograms":
        return Histograms(*shared, asked.bins)
    kinds: dict[str, type[ColumnsQuestion]] = {
        "means": Means,
        "variances": Variances,
        "second_moments": SecondMoments,
    }
    return kinds[name](*shared)


def _wanted(
    asked: StatisticsConfig, encoding: Encoding, kinds: tuple[type[Column], ...], name: str
) -> list[tuple[int, Column]]:
    names = encoding.names if asked.columns is None else asked.columns
    if strangers := [wanted for wanted in names if wanted not in encoding.names]:
        raise ConfigError(
            f"statistics.columns={strangers[0]}: is not a described column; see data.columns"
        )
    unlisted = unlisted_of(encoding) if name == "levels" else ()
    names = [wanted for wanted in names if wanted not in unlisted]
    found = [
        (at, c) for at, c in enumerate(encoding.columns) if c.name in names and isinstance(c, kinds)
    ]
    if not found:
        wants = "levels" if name == "levels" else "bounds"
        raise ConfigError(
            f"statistics.ask={name}: no column that is asked about has {wants}; leave the "
            "question out"
        )
    return found


def _ratio(total: float, count: float, noise: float) -> tuple[float, float]:
    """A mean of scaled values, and its error by the noise of both sums; no better than its
    bounds without rows.
    """
    kept = max(count, noise, 1e-12)
    mean = min(1.0, max(-1.0, total / kept))
    return mean, min(1.0, noise * math.sqrt(1 + mean**2) / kept)


def _number(value: Tensor) -> float:
    return float(value)


def _numbers(values: Tensor) -> list[float]:
    return [float(value) for value in values]
