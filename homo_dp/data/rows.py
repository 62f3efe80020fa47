"""Encoded rows of one file (or embedded set) before they fall to parties: tensors made once,
then indexed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from homo_dp.core.errors import DataError
from homo_dp.data.encoding import Encoding
from homo_dp.data.readers import number_form
from homo_dp.data.table_notes import table_notes
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import NumberForm, first_row, names

if TYPE_CHECKING:
    from homo_dp.config.data import DataConfig

_SIDES = ("train", "test")  # what a split column may say


@dataclass(frozen=True)
class Table:
    """Rows ready for a model, in the order of their file.

    `labels` are class numbers (int64) or the scaled target (float32). `frame` holds the raw rows
    that predictions repeat; it is None for training rows, which are never printed. `users` numbers
    the users of the whole federation.
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

    `public` rows (an embedded set) are split exactly, by their number; all others by a hash of each
    row alone, which one row more or less cannot change for the others.
    """

    source: str
    features: torch.Tensor
    labels: torch.Tensor
    frame: pd.DataFrame
    users: np.ndarray | None
    classes: int | None = None
    public: bool = False
    left_out: int = 0  # rows of the source that do not fit; they are not among these
    misfit: str | None = None  # what is wrong with the first of them, for the owner of the table
    strays: Strays = field(default_factory=Strays)  # values that the description does not hold
    notes: tuple[str, ...] = ()  # what is likely to be a mistake, for the owner of the table

    def __len__(self) -> int:
        return len(self.features)

    def at(self, places: np.ndarray, *, cells: bool = True) -> Rows:
        """Some of the rows, in memory of their own; without their raw cells where nobody will
        print them.
        """
        index = torch.from_numpy(places)
        return replace(
            self,
            features=self.features[index],
            labels=self.labels[index],
            frame=self.frame.iloc[places] if cells else self.frame.iloc[:0],
            users=None if self.users is None else self.users[places],
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
    """Encode a raw table, or images with their side columns; targets are not clipped: test rows may
    be among them.

    With `leave_out` a row that does not fit is left out, not refused: whether it does depends on
    that row alone.
    """
    numbers, count, misfit, strays = number_form(data), len(frame), None, Strays()
    if leave_out:
        unnamed, misfit = unnamed_rows(frame, data, source)
        frame, pixels = _without(frame, pixels, unnamed)
    try:
        features, labels = _encoded(frame, pixels, encoding, source, numbers, strays)
    except DataError as error:
        needed = (*encoding.names, encoding.label.name)
        if not leave_out or any(name not in frame.columns for name in needed):
            raise
        refused = encoding.misfits(frame, pixels, numbers)
        if not refused.any():
            raise  # it is not about single rows
        misfit = misfit or str(error)
        frame, pixels = _without(frame, pixels, refused)
        strays = Strays()
        features, labels = _encoded(frame, pixels, encoding, source, numbers, strays)
    users = None
    if data.user_column is not None and data.user_column in frame.columns:
        users = texts(frame, data.user_column, source)
    return Rows(
        source=source,
        features=features,
        labels=labels,
        frame=frame,
        users=users,
        classes=None if encoding.classes is None else len(encoding.classes),
        public=public,
        left_out=count - len(frame),
        misfit=misfit,
        strays=strays,
        notes=table_notes(frame, labels, encoding, strays, data, source),
    )


def _without(
    frame: pd.DataFrame, pixels: np.ndarray | None, refused: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray | None]:
    if not refused.any():
        return frame, pixels
    return frame[~refused], None if pixels is None else pixels[~refused]


def unnamed_rows(
    frame: pd.DataFrame, data: DataConfig, source: str
) -> tuple[np.ndarray, str | None]:
    """Rows without a user, a party, or a side of the split; and what is wrong with the first."""
    refused, wrong = np.zeros(len(frame), dtype=bool), None
    for column in (data.user_column, data.party_column, data.split_column):
        if column is None or column not in frame.columns:
            continue
        found = names(frame[column])
        allowed = _SIDES if column == data.split_column else None
        unfit = _unfit(found, allowed)
        if unfit.any():
            wrong = wrong or _unnamed(found, unfit, source, column, allowed)
            refused |= unfit
    return refused, wrong


def _encoded(
    frame: pd.DataFrame,
    pixels: np.ndarray | None,
    encoding: Encoding,
    source: str,
    numbers: NumberForm,
    strays: Strays,
) -> tuple[torch.Tensor, torch.Tensor]:
    features = (
        encoding.encode(frame, source, numbers, strays)
        if pixels is None
        else encoding.encode_images(pixels, source)
    )
    return features, encoding.encode_labels(frame, source, numbers)


def texts(
    frame: pd.DataFrame, column: str, source: str, allowed: Sequence[str] | None = None
) -> np.ndarray:
    """The names in a column (party, user, side of the split); a missing name is refused.

    Args:
        frame: the table.
        column: its column of names.
        source: what errors call the table.
        allowed: the names that there may be, in lower case; None: any.

    Raises:
        DataError: the column is missing, or a row has no name or one that is not allowed.
    """
    if column not in frame.columns:
        raise DataError(f"{source}: column {column!r} is missing")
    found = names(frame[column])
    unfit = _unfit(found, allowed)
    if unfit.any():
        raise DataError(_unnamed(found, unfit, source, column, allowed))
    return found


def held_out_mask(frame: pd.DataFrame, column: str, source: str) -> np.ndarray:
    """Which rows the split column marks as test rows; it may say train or test and nothing else."""
    mask: np.ndarray = _lower(texts(frame, column, source, _SIDES)) == "test"
    return mask


def _unfit(found: np.ndarray, allowed: Sequence[str] | None) -> np.ndarray:
    mask: np.ndarray = found == "" if allowed is None else ~np.isin(_lower(found), list(allowed))
    return mask


def _lower(found: np.ndarray) -> np.ndarray:
    return np.array([name.lower() for name in found], dtype=object)


def _unnamed(
    found: np.ndarray,
    unfit: np.ndarray,
    source: str,
    column: str,
    allowed: Sequence[str] | None,
) -> str:
    where, name = f"{source}: column {column!r} row {first_row(unfit)}", str(found[unfit.argmax()])
    if name and allowed is not None:
        return f"{where}: {name!r} is neither {' nor '.join(map(repr, allowed))}"
    return f"{where}: empty; every row needs a value there"


def gather(rows: Rows, parts: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Features and labels of each part: views of one tensor that is put in the order of the
    parts once.
    """
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
