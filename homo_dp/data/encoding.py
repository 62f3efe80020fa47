"""How a raw row becomes one tensor: the columns beside each other, or an image, and the label.

What it does to a row follows from public declarations only (`columns.py`), and it is kept as JSON
in model files.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.columns import (
    MISSING_VALUES,
    Categorical,
    Cells,
    Column,
    Date,
    Label,
    Level,
    Numeric,
    check_bounds,
)
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import PLAIN, NumberForm, first_row

if TYPE_CHECKING:
    import pandas as pd

_ROW_BLOCK = 16_384  # rows turned at a time: they stay in the processor's cache
_PIXEL_BLOCK = 4096  # images scaled at a time: bounds the float64 copy
FLAG = (0.0, 1.0)  # bounds of numbers that are mostly 0 or 1


@dataclass(frozen=True)
class Encoding:
    """How a raw row becomes a feature vector (or an image), and a label becomes a number.

    Guarantees:
        - row i of the tensor depends on row i of the table and on public declarations only;
        - every feature lies in [-1, 1]; a value that is not finite is refused, never passed
          through.

    >>> import pandas as pd
    >>> ages = Encoding((Numeric("age", 0, 100),), Label("y", (0, 1)), curves=True)
    >>> ages.encode(pd.DataFrame({"age": [0, 50, 75]}))
    tensor([[-1.0000,  1.0000,  1.0000],
            [ 0.0000, -0.5000, -0.1517],
            [ 0.5000, -0.1250,  0.0024]])
    """

    columns: tuple[Column, ...]
    label: Label
    id: str | None = None
    missing_values: tuple[str, ...] = MISSING_VALUES
    shape: tuple[int, ...] | None = None  # (channels, height, width) where the model wants images
    # set where rows come from an image file, not from columns
    pixel_bounds: tuple[float, float] | None = None
    curves: bool = False  # whether a square and a root of each number stand behind the columns

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise DataError(
                "data.columns names a column twice: "
                f"{sorted({n for n in names if names.count(n) > 1})}"
            )
        if self.pixel_bounds is not None:
            check_bounds("data.image.scale", self.pixel_bounds)
            if self.shape is None:
                raise DataError("an image encoding needs a shape (data.image.shape)")
        elif not self.columns:
            raise DataError("no feature column is left; check data.use, data.drop and data.columns")
        if self.curves and self.shape is not None:
            raise DataError(
                "data.curves=true: curves are of the columns of a table, not of images; leave "
                "it out"
            )
        if self.shape is not None and self.columns and math.prod(self.shape) != self.width:
            raise DataError(
                f"data.image.shape={list(self.shape)} does not hold the {self.width} encoded "
                "columns"
            )

    @property
    def width(self) -> int:
        if not self.columns:
            return math.prod(self.shape or ())
        return self._columns_width + self.curve_count

    @property
    def curved(self) -> tuple[int, ...]:
        """The places of the numbers whose squares and roots stand behind the columns; those of a
        flag say nothing.
        """
        if not self.curves:
            return ()
        ends = itertools.accumulate(column.width for column in self.columns)
        return tuple(
            end - column.width
            for column, end in zip(self.columns, ends, strict=True)
            if isinstance(column, Numeric) and (column.low, column.high) != FLAG
        )

    @property
    def curve_count(self) -> int:
        """How many numbers stand behind the columns."""
        return len(_CURVES) * len(self.curved)

    @property
    def _columns_width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.shape or (self.width,)

    @property
    def classes(self) -> tuple[Level, ...] | None:
        return self.label.classes

    @property
    def levels_of_columns(self) -> dict[int, float]:
        """Which encoded columns are 0 or 1: places of levels, and marks of missing values.

        With each the share of rows that it has if all declared levels of its column are as
        frequent; 0 for others.
        """
        found: dict[int, float] = {}
        start = 0
        for column in self.columns:
            ends = start + column.width
            if isinstance(column, Categorical):
                declared = len(column.levels)
                found |= {
                    start + place: (place < declared) / declared for place in range(column.width)
                }
            elif column.indicator:  # a mark is the last
                found[ends - 1] = 0.0
            start = ends
        return found

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def encode(
        self,
        frame: pd.DataFrame,
        source: str = "table",
        numbers: NumberForm = PLAIN,
        strays: Strays | None = None,
    ) -> torch.Tensor:
        """Features of all rows, float32, shape (rows, *input_shape); columns are matched by name.

        `strays` counts the values that were clipped or are none of the declared levels.
        """
        if self.pixel_bounds is not None:
            raise DataError(f"{source}: this model takes images (.npz or IDX), not a table")
        absent = [name for name in self.names if name not in frame.columns]
        if absent:
            raise DataError(
                f"{source}: {missing_columns(absent)}; its columns are {short(frame.columns)}"
            )
        block = np.empty((self.width, len(frame)), dtype=np.float32)
        cells = Cells(source, self.missing_values, numbers)
        at, found = 0, {}
        for column in self.columns:
            found[column.name] = column.write(
                frame[column.name], cells, block[at : at + column.width]
            )
            at += column.width
        for (write, place), out in zip(self._curves, block[at:], strict=True):
            write(block[place], out)
        if strays is not None:
            strays.add(len(frame), found)
        # Of NumPy, which asks for huge pages: torch pays for small ones as much as for reading the
        # table.
        rows = np.empty((len(frame), self.width), dtype=np.float32)
        for start in range(0, len(frame), _ROW_BLOCK):
            rows[start : start + _ROW_BLOCK] = block[:, start : start + _ROW_BLOCK].T
        return torch.from_numpy(rows).reshape(len(frame), *self.input_shape)

    def append_curves(self, features: torch.Tensor) -> torch.Tensor:
        """What `encode` gives, from the rows that it gives without curves, bit by bit."""
        plain, width = features.numpy(), self._columns_width
        rows = np.empty((len(plain), self.width), dtype=np.float32)
        rows[:, :width] = plain
        for (write, place), out in zip(self._curves, range(width, self.width), strict=True):
            write(rows[:, place], rows[:, out])
        return torch.from_numpy(rows)

    @property
    def _curves(self) -> list[tuple[Callable[[np.ndarray, np.ndarray], None], int]]:
        """What stands behind the columns, in order: all squares, then all roots, each with the
        place of its number.
        """
        return list(itertools.product(_CURVES, self.curved))

    def encode_images(
        self, pixels: np.ndarray, source: str = "images", *, start: int = 0
    ) -> torch.Tensor:
        """Images (or rows of their values) scaled to [-1, 1] by the declared pixel range;
        `start` are before them.
        """
        if self.pixel_bounds is None:
            raise DataError(
                f"{source}: this model takes a table with columns {short(self.names)}, not images"
            )
        shape, expected = pixels.shape[1:], self.input_shape
        apart = len(shape) > 1 and len(expected) > 1 and shape not in (expected, expected[1:])
        if math.prod(shape) != self.width or apart:
            raise DataError(
                f"{source}: images of shape {shape} hold {math.prod(shape)} values, the model "
                f"takes {self.width}, shape {expected}; give images of that shape (trained with "
                "data.image.shape or that of the first file)"
            )
        scale = Numeric("pixel", *self.pixel_bounds).scale
        out = np.empty((len(pixels), self.width), dtype=np.float32)
        for at in range(0, len(pixels), _PIXEL_BLOCK):
            values = pixels[at : at + _PIXEL_BLOCK].reshape(-1, self.width).astype(np.float64)
            finite = np.asarray(np.isfinite(values).all(axis=1))
            if not finite.all():
                raise DataError(
                    f"{source}: image {start + at + first_row(~finite)}: a pixel is not finite; "
                    "fix it"
                )
            out[at : at + _PIXEL_BLOCK] = scale(values)
        return torch.from_numpy(out).reshape(len(pixels), *self.input_shape)

    def encode_labels(
        self, frame: pd.DataFrame, source: str = "table", numbers: NumberForm = PLAIN
    ) -> torch.Tensor:
        """The labels as they are: of a target, only what is trained on is clipped to its bounds."""
        if self.label.name not in frame.columns:
            raise DataError(
                f"{source}: label column {self.label.name!r} is not there; its columns are "
                f"{short(frame.columns)}; set data.label"
            )
        return self.label.encode(frame[self.label.name], source, clip=False, numbers=numbers)

    def misfits(
        self, frame: pd.DataFrame, pixels: np.ndarray | None = None, numbers: NumberForm = PLAIN
    ) -> np.ndarray:
        """Which rows `encode` (or `encode_images`) and `encode_labels` refuse, each by itself."""
        refused: np.ndarray = self.label.misfits(frame[self.label.name], numbers)
        cells = Cells("table", self.missing_values, numbers)
        for column in self.columns:
            refused = refused | column.misfits(frame[column.name], cells)
        if pixels is not None:
            refused = refused | ~np.isfinite(pixels.reshape(len(pixels), -1)).all(axis=1)
        return refused

    def to_json(self) -> dict[str, Any]:
        """A JSON-safe value that `from_json` turns back into an equal encoding."""
        return {
            "columns": [_column_to_json(column) for column in self.columns],
            "label": {
                "name": self.label.name,
                "classes": None if self.label.classes is None else list(self.label.classes),
                "bounds": None if self.label.bounds is None else list(self.label.bounds),
            },
            "id": self.id,
            "missing_values": list(self.missing_values),
            "shape": None if self.shape is None else list(self.shape),
            "pixel_bounds": None if self.pixel_bounds is None else list(self.pixel_bounds),
            # else as before there were curves, and of the same digest
            **({"curves": True} if self.curves else {}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any] | str) -> Encoding:
        """The encoding that `to_json` wrote; anything else is a DataError."""
        try:
            raw = json.loads(value) if isinstance(value, str) else value
            label = raw["label"]
            return Encoding(
                columns=tuple(_column_from_json(column) for column in raw["columns"]),
                label=Label(str(label["name"]), _tuple(label["classes"]), _pair(label["bounds"])),
                id=None if raw["id"] is None else str(raw["id"]),
                missing_values=tuple(str(text) for text in raw["missing_values"]),
                shape=(
                    None if raw["shape"] is None else tuple(_side(side) for side in raw["shape"])
                ),
                pixel_bounds=_pair(raw["pixel_bounds"]),
                curves=bool(raw.get("curves", False)),
            )
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(
                f"the column description is damaged ({type(error).__name__}: {error})"
            ) from None


def _write_square(numbers: np.ndarray, out: np.ndarray) -> None:
    """The second Legendre polynomial (3 x^2 - 1) / 2: of mean 0, and orthogonal to x, for x spread
    evenly on [-1, 1].

    One operation after the other, each rounded by itself: a fused one would round the numbers at an
    array's end apart.
    """
    np.multiply(numbers, numbers, out=out)
    out *= 1.5
    out -= 0.5


def _write_root(numbers: np.ndarray, out: np.ndarray) -> None:
    """1 + 3 u - 3.75 sqrt(u) of u = (x + 1) / 2: steep at the lower bound, where most amounts and
    counts are.

    It, too, has mean 0 and is orthogonal to x for x spread evenly on [-1, 1], and each operation is
    rounded by itself.
    """
    np.add(numbers, 1.0, out=out)
    out *= 0.5
    roots = np.sqrt(out)
    roots *= 3.75
    out *= 3.0
    out -= roots
    out += 1.0


_CURVES = (_write_square, _write_root)


def missing_columns(names: Sequence[str]) -> str:
    return (
        f"column {names[0]!r} is missing"
        if len(names) == 1
        else f"{len(names)} columns are missing: {short(names)}"
    )


def short(names: Sequence[str] | pd.Index, most: int = 8) -> str:
    """At most `most` names, so that an error stays on one line."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f", ... ({len(texts)} in all)" if len(texts) > most else "")


def _column_to_json(column: Column) -> dict[str, Any]:
    if isinstance(column, Numeric):
        return {
            "name": column.name,
            "bounds": [column.low, column.high],
            "missing": column.missing,
            "indicator": column.indicator,
        }
    if isinstance(column, Date):
        return {
            "name": column.name,
            "date": [column.first, column.last],
            "parts": list(column.parts),
            "format": column.format,
            "missing": column.missing,
            "indicator": column.indicator,
        }
    return {"name": column.name, "levels": list(column.levels), "missing": column.missing}


def _column_from_json(raw: Mapping[str, Any]) -> Column:
    name, missing = str(raw["name"]), raw["missing"]
    if "levels" in raw:
        return Categorical(name, tuple(raw["levels"]), missing)
    if "date" in raw:
        first, last = (str(day) for day in raw["date"])
        form = None if raw["format"] is None else str(raw["format"])
        return Date(
            name,
            first,
            last,
            tuple(map(str, raw["parts"])),
            form,
            str(missing),
            bool(raw["indicator"]),
        )
    low, high = (float(bound) for bound in raw["bounds"])
    rule = missing if isinstance(missing, str) else float(missing)
    return Numeric(name, low, high, rule, bool(raw["indicator"]))


def _tuple(raw: Sequence[Level] | None) -> tuple[Level, ...] | None:
    return None if raw is None else tuple(raw)


def _pair(raw: Sequence[float] | None) -> tuple[float, float] | None:
    if raw is None:
        return None
    low, high = raw
    return float(low), float(high)


def _side(raw: Any) -> int:
    side = int(raw)
    if not 1 <= side <= 1_000_000:
        raise ValueError(f"an image side of {side}")
    return side
