"""Encoded rows of one file (or embedded set) before they fall to parties: tensors made once, then indexed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.encoding import Encoding
from homo_dp.data.readers import number_form
from homo_dp.data.values import NumberForm, as_texts, first_row

if TYPE_CHECKING:
    from homo_dp.config.data import DataConfig


@dataclass(frozen=True)
class Table:
    """Rows ready for a model, in the order of their file.

    `labels` are class numbers (int64) or the scaled target (float32). `frame` holds the raw rows that predictions
    repeat; it is None for training rows, which are never printed. `users` numbers the users of the whole federation.
    """

    features: torch.Tensor
    labels: torch.Tensor | None
    frame: pd.DataFrame | None = None
    users: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class Rows:
    """All rows of one source.

    `public` rows (an embedded set) are split exactly, by their number; all others by a hash of each row alone, which
    one row more or less cannot change for the others.
    """

    source: str
    features: torch.Tensor
    labels: torch.Tensor
    frame: pd.DataFrame
    users: np.ndarray | None
    classes: int | None = None
    public: bool = False
    fits: np.ndarray | None = None  # which rows could be encoded; None: all of them
    misfit: str | None = (
        None  # what is wrong with the first of the others, for the owner of the table
    )

    def __len__(self) -> int:
        return len(self.features)

    def at(self, places: np.ndarray, *, cells: bool = True) -> Rows:
        """Some of the rows, in memory of their own; without their raw cells where nobody will print them."""
        index = torch.from_numpy(places)
        return replace(
            self,
            features=self.features[index],
            labels=self.labels[index],
            frame=self.frame.iloc[places if cells else places[:0]],
            users=None if self.users is None else self.users[places],
            fits=None if self.fits is None else self.fits[places],
        )


def encode_rows(
    frame: pd.DataFrame,
    pixels: np.ndarray | None,
    encoding: Encoding,
    data: DataConfig,
    source: str,
    *,
    public: bool = False,
    leave_out: bool = False,
) -> Rows:
    """Encode a raw table, or images with their side columns; targets are not clipped: test rows may be among them.

    With `leave_out` a row that does not fit is marked, not refused: whether it does depends on that row alone.
    """
    numbers, fits, misfit = number_form(data), None, None
    try:
        features, labels = _encoded(frame, pixels, encoding, source, numbers)
    except DataError as error:
        absent = [
            name for name in (*encoding.names, encoding.label.name) if name not in frame.columns
        ]
        refused = None if absent or not leave_out else encoding.misfits(frame, pixels, numbers)
        if refused is None or not refused.any():
            raise  # it is not about single rows
        fits, misfit = ~refused, str(error)
        some = _encoded(
            frame[fits], None if pixels is None else pixels[fits], encoding, source, numbers
        )
        features, labels = (
            torch.zeros(len(frame), *part.shape[1:], dtype=part.dtype) for part in some
        )
        features[torch.from_numpy(fits)], labels[torch.from_numpy(fits)] = some
    users = None
    if data.user_column is not None and data.user_column in frame.columns:
        users = texts(frame, data.user_column, source)
    classes = None if encoding.classes is None else len(encoding.classes)
    return Rows(source, features, labels, frame, users, classes, public, fits, misfit)


def _encoded(
    frame: pd.DataFrame,
    pixels: np.ndarray | None,
    encoding: Encoding,
    source: str,
    numbers: NumberForm,
) -> tuple[torch.Tensor, torch.Tensor]:
    features = (
        encoding.encode(frame, source, numbers)
        if pixels is None
        else encoding.encode_images(pixels, source)
    )
    return features, encoding.encode_labels(frame, source, numbers)


def texts(frame: pd.DataFrame, column: str, source: str) -> np.ndarray:
    """A column that names something (party, user, split) as text; a missing name is refused."""
    if column not in frame.columns:
        raise DataError(f"{source}: column {column!r} is missing")
    series = frame[column]
    named = pd.Series(as_texts(series).to_pylist(), dtype=object).fillna("").astype(str).str.strip()
    if named.iloc[:1].str.endswith(".0").all() and named.str.fullmatch(r"-?\d+\.0").all():
        named = named.str.removesuffix(
            ".0"
        )  # whole numbers as floats: else 7.0 and another table's 7 were two users
    gaps = (named == "").to_numpy(dtype=bool)
    if gaps.any():
        raise DataError(
            f"{source}: column {column!r} row {first_row(gaps)}: empty; every row needs a value there"
        )
    return named.to_numpy(dtype=object)


def held_out_mask(frame: pd.DataFrame, column: str, source: str) -> np.ndarray:
    """Which rows the split column marks as test rows; it may say train or test and nothing else."""
    words = np.char.lower(texts(frame, column, source).astype(str))
    wrong = ~np.isin(words, ["train", "test"])
    if wrong.any():
        row = first_row(wrong)
        raise DataError(
            f"{source}: column {column!r} row {row}: {str(words[row - 1])!r} is neither 'train' nor 'test'"
        )
    mask: np.ndarray = words == "test"
    return mask


def gather(rows: Rows, parts: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Features and labels of each part: views of one tensor that is put in the order of the parts once."""
    order = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    features, labels = rows.features, rows.labels
    if len(order) != len(rows) or not np.array_equal(order, np.arange(len(rows))):
        index = torch.from_numpy(order.astype(np.int64))
        features, labels = features.index_select(0, index), labels.index_select(0, index)
    views, at = [], 0
    for part in parts:
        views.append((features[at : at + len(part)], labels[at : at + len(part)]))
        at += len(part)
    return views
