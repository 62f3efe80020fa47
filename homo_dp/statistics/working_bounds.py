"""Working bounds of numeric columns whose public bounds are very wide, from three private sums.

1. ``octaves``: for each anchor (the middle of the outer bounds, and zero or the end nearest to it)
   one histogram, pooled over all columns, of how many octaves a value is closer to the anchor than
   the outer bounds are wide. One row moves it by 1, however many columns there are: the anchor that
   values are nearest to, and the typical octave, are known well.
2. ``magnitudes``: for each column the mean octave of its values, within the window that the pooled
   histogram shows.
3. ``spreads``: for each column mean and square within the bounds so far; only where there are rows
   enough.

The estimate of one column is drawn to the mean of all columns by as much as its noise is larger
than the differences between columns (empirical Bayes, as James and Stein): few rows give one factor
for all columns, many rows give each column its own bounds. That is post-processing and costs
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from homo_dp.statistics.questions import Answer, Question

OCTAVES = 40  # below the outer bounds: 1e-12 of their width
ANCHORS = ("middle", "zero")
# of the statistics' budget, by mu^2
WITH_SPREADS = {"octaves": 0.2, "magnitudes": 0.4, "spreads": 0.4}
WITHOUT = {"octaves": 0.5, "magnitudes": 0.5}
_MOST_NOISE = 0.1  # of a mean within bounds scaled to [-1, 1], up to which spreads are asked
_NARROW, _WIDE = 2.0, 12.0  # octaves to either side in which columns are told apart
_BULK = 0.8  # share of values that the typical octave is above
_MARGIN = 1.4  # octaves from the mean octave of a column to bounds that hold most of its values
_DEVIATIONS = 2.0  # standard deviations from the mean to a bound
_DOUBT = 1.3  # the spread of few columns may be large by chance
_LEAST_WIDTH = 0.05  # share of the bounds before: smaller spreads are not trusted


@dataclass(frozen=True)
class Outer:
    """The columns and their outer bounds; ``places`` are theirs in a row."""

    columns: tuple[str, ...]
    places: tuple[int, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @property
    def low(self) -> Tensor:
        return torch.tensor(self.lows, dtype=torch.float64)

    @property
    def high(self) -> Tensor:
        return torch.tensor(self.highs, dtype=torch.float64)

    def shares(self, low: Tensor, high: Tensor) -> Tensor:
        """Bounds within the outer ones as shares of their width, in which they travel."""
        width = self.high - self.low
        return torch.stack([(low - self.low) / width, (high - self.low) / width], 1)

    def within(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds that ``shares`` gave; the outer ones where they do not hold together."""
        found, width = shares.clamp(0.0, 1.0), self.high - self.low
        good = found[:, 1] - found[:, 0] > 2.0 ** -(OCTAVES + 2)
        low = torch.where(good, self.low + found[:, 0] * width, self.low)
        return low, torch.where(good, self.low + found[:, 1] * width, self.high)

    def anchors(self) -> Tensor:
        """The anchors of each column, one row an anchor of ``ANCHORS``; zero is the nearest end
        where it is outside.
        """
        middle = (self.low + self.high) / 2
        zero = torch.zeros_like(middle).clamp(min=self.low, max=self.high)
        return torch.stack([middle, zero])

    def values(self, rows: Tensor) -> Tensor:
        """The columns' values within the outer bounds, NaN where missing."""
        found = rows[:, list(self.places)]
        inside = torch.minimum(torch.maximum(found, self.low), self.high)
        return torch.where(found.isnan(), found, inside)

    def depth(self, values: Tensor, anchor: Tensor) -> Tensor:
        """Octaves by which values are closer to an anchor than the outer bounds are wide: 0 to
        OCTAVES.
        """
        share = (values - anchor).abs() / (self.high - self.low)
        return (-share.clamp(min=2.0**-OCTAVES).log2()).clamp(0.0, OCTAVES)


@dataclass(frozen=True)
class Window:
    """What the pooled histogram says: the anchor, the typical octave, how far columns may be
    from it, and the rows.
    """

    anchor: int
    octave: float
    width: float
    rows: float


@dataclass(frozen=True)
class Octaves(Question):
    """Pooled histograms of octaves, one an anchor; columns of a row share its one unit of each
    histogram.
    """

    name: ClassVar[str] = "octaves"
    outer: Outer
    rows: float  # of all parties, declared or public

    @property
    def dimension(self) -> int:
        return len(ANCHORS) * (OCTAVES + 1)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        values, count = self.outer.values(rows), len(self.outer.columns)
        pieces = []
        for anchor in self.outer.anchors():
            depth = self.outer.depth(values, anchor)
            places = depth.nan_to_num(0.0).long().clamp(0, OCTAVES)
            hot = torch.zeros(len(rows), OCTAVES + 1, dtype=torch.float64)
            hot.scatter_add_(1, places, (~depth.isnan()).double() / count)
            pieces.append(hot)
        return torch.cat(pieces, 1) / math.sqrt(len(ANCHORS))

    def read(self, total: Tensor, sigma: float) -> Answer:
        found = self.window(total, sigma)
        return {
            "values": {"octave": found.octave},
            "standard_errors": {"octave": 1.0},
            "anchor": ANCHORS[found.anchor],
        }

    def window(self, total: Tensor, sigma: float) -> Window:
        """The anchor to which the bulk of values is nearest, and the octaves that they are in."""
        histograms = (total * math.sqrt(len(ANCHORS))).reshape(len(ANCHORS), OCTAVES + 1)
        noise = sigma * math.sqrt(len(ANCHORS))
        # bins that cannot be noise alone
        kept = torch.where(histograms > 2 * noise, histograms, 0.0)
        if not float(kept.sum()) > 0:
            return Window(0, 0.0, _NARROW, self.rows)
        found = [_octaves(histogram) for histogram in kept]
        best = max(range(len(ANCHORS)), key=lambda place: (round(found[place][0], 1), -place))
        octave, deepest = found[best]
        return Window(best, octave, min(_WIDE, max(_NARROW, deepest - octave)), self.rows)


@dataclass(frozen=True)
class Magnitudes(Question):
    """Mean octave of each column, within a window around the typical one; values below it tell
    nothing.
    """

    name: ClassVar[str] = "magnitudes"
    outer: Outer
    window: Window

    @property
    def dimension(self) -> int:
        return len(self.outer.columns)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        values = self.outer.values(rows)
        depth = self.outer.depth(values, self.outer.anchors()[self.window.anchor])
        away = (depth - self.window.octave) / self.window.width
        inside = torch.where(away <= 1.0, away.clamp(min=-1.0), 0.0).nan_to_num(0.0)
        return inside / math.sqrt(self.dimension)

    def read(self, total: Tensor, sigma: float) -> Answer:
        found = self.octaves(total, sigma)
        error = sigma * math.sqrt(self.dimension) * self.window.width / self.window.rows
        values = {name: float(value) for name, value in zip(self.outer.columns, found, strict=True)}
        return {"values": values, "standard_errors": dict.fromkeys(self.outer.columns, error)}

    def octaves(self, total: Tensor, sigma: float) -> Tensor:
        """The octave of each column, drawn to that of all."""
        scale = math.sqrt(self.dimension) * self.window.width / self.window.rows
        return self.window.octave + drawn_together(total * scale, sigma * scale)

    def bounds(self, total: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Bounds around the anchor that hold most values."""
        low, high = self.outer.low, self.outer.high
        half = (high - low) * torch.pow(2.0, _MARGIN - self.octaves(total, sigma))
        anchor = self.outer.anchors()[self.window.anchor]
        return torch.maximum(low, anchor - half), torch.minimum(high, anchor + half)


@dataclass(frozen=True)
class Spreads(Question):
    """Mean and square of each column within the bounds so far."""

    name: ClassVar[str] = "spreads"
    outer: Outer
    low: Tensor
    high: Tensor
    rows: float

    @property
    def dimension(self) -> int:
        return 2 * len(self.outer.columns)

    def parts(self, rows: Tensor, labels: Tensor) -> Tensor:
        values = self.outer.values(rows)
        scaled = (
            ((values - self.low) * (2.0 / (self.high - self.low)) - 1.0)
            .clamp(-1.0, 1.0)
            .nan_to_num(0.0)
        )
        return torch.cat([scaled, scaled.square()], 1) / math.sqrt(self.dimension)

    def is_reliable(self, sigma: float) -> bool:
        """Whether the rows are enough for the noise of the sum that was asked."""
        return sigma * math.sqrt(self.dimension) / self.rows <= _MOST_NOISE

    def read(self, total: Tensor, sigma: float) -> Answer:
        low, high = self.bounds(total, sigma)
        pairs = zip(self.outer.columns, low.tolist(), high.tolist(), strict=True)
        return {"values": {name: [a, b] for name, a, b in pairs}, "standard_errors": {}}

    def bounds(self, total: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """The working bounds: some standard deviations around the mean, within the bounds so
        far.
        """
        scale = math.sqrt(self.dimension) / self.rows
        means, squares = torch.chunk(total * scale, 2)
        mean = drawn_together(means, sigma * scale).clamp(-1.0, 1.0)
        square = drawn_together(squares, sigma * scale).clamp(0.0, 1.0)
        spread = (square - mean.square()).clamp(min=0.0).sqrt()
        half = (_DEVIATIONS * spread).clamp(min=_LEAST_WIDTH, max=1.0)
        low, high = (
            (mean - half).clamp(-1.0, 1.0 - _LEAST_WIDTH),
            (mean + half).clamp(-1.0 + _LEAST_WIDTH, 1.0),
        )
        width = (self.high - self.low) / 2
        return self.low + (low + 1.0) * width, self.low + (high + 1.0) * width


def phases_of(
    noise_of_all: float, columns: int, summands: float, rows: float
) -> Mapping[str, float]:
    """The sums that are asked and their shares: spreads only where there are rows enough, by public
    numbers alone.

    ``noise_of_all`` is the noise multiplier of one sum that takes the whole budget of the
    statistics, ``summands`` the variance of the noise of a total over that of one sum.

    >>> list(phases_of(10.0, 30, 3, 455)), list(phases_of(10.0, 14, 3, 30_000))
    (['octaves', 'magnitudes'], ['octaves', 'magnitudes', 'spreads'])
    """
    noise = noise_of_all / math.sqrt(WITH_SPREADS["spreads"])
    enough = noise * math.sqrt(2 * columns * summands) / rows <= _MOST_NOISE
    return WITH_SPREADS if enough else WITHOUT


def drawn_together(values: Tensor, noise: float) -> Tensor:
    """Noisy values, each drawn to their mean by the share of noise in their differences.

    >>> drawn_together(torch.tensor([1.0, 3.0]), noise=100.0).tolist()
    [2.0, 2.0]
    """
    mean = values.mean()
    seen = float((values - mean).square().mean()) * len(values) / max(1, len(values) - 1)
    kept = max(0.0, 1.0 - _DOUBT * noise**2 / seen) if seen > 0 else 0.0
    return mean + kept * (values - mean)


def _octaves(histogram: Tensor) -> tuple[float, float]:
    """The octave that a bulk of the values is above of (nearer to the anchor counts as deeper),
    and a deep one.
    """
    total = float(histogram.sum())
    if not total > 0:
        return 0.0, 0.0
    shares = (histogram / total).cumsum(0)  # from shallow (wide) to deep
    return _reached(shares, 1 - _BULK), _reached(shares, 0.9)


def _reached(shares: Tensor, share: float) -> float:
    return float(int((shares < share).sum())) + 0.5


def outer_of(
    names: Sequence[str], places: Sequence[int], bounds: Sequence[tuple[float, float]]
) -> Outer:
    """Columns with their outer bounds."""
    return Outer(
        tuple(names),
        tuple(places),
        tuple(float(a) for a, _ in bounds),
        tuple(float(b) for _, b in bounds),
    )
