"""Checks a party's rows against its own config, before the party joins a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from homo_dp.config.addresses import masked
from homo_dp.core.errors import DataError
from homo_dp.data.columns import Cells, Label
from homo_dp.data.declared import as_levels, described_columns
from homo_dp.data.image_folders import is_image_folder
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.readers import csv_form, number_form, read_table
from homo_dp.data.rows import held_out_mask, unnamed_rows

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.config.data import DataConfig
    from homo_dp.config.schema import Config


class OwnRows(NamedTuple):
    """What a party's tables hold when it starts."""

    rows: int  # rows that may be trained on: of the table, those that are not marked as test rows
    image_shape: tuple[int, int, int] | None = None  # where the rows are images


def check_own_rows(config: Config, party: str) -> OwnRows:
    """Read a party's tables and refuse what its own config does not allow, before it joins a run.

    A table that cannot be read, an image that cannot be decoded, and a row without a user, a side
    of the split, or a value that the stated columns, classes or target allow is an error for the
    operator. A table without rows is none: the party then takes part with noise alone.

    Returns:
        How many rows there are, and the shape of the images.

    Raises:
        DataError: a table or a row is refused; the message names file, column and row.

    Guarantees:
        - the answer depends on the party's config and table alone: it is found before any plan is
          read.
    """
    data = config.data
    path = data.one_table or data.files.get(party)
    if path is None:
        return OwnRows(0)
    test = data.test_file.get(party) if isinstance(data.test_file, dict) else data.test_file
    if test is not None:
        _check_frame(_read(test, data)[0], data, masked(test))
    frame, shape = _read(path, data)
    _check_frame(frame, data, masked(path))
    count = len(frame)
    if data.split_column is not None:
        count = int((~held_out_mask(frame, data.split_column, masked(path))).sum())
    return OwnRows(count, shape)


def _read(source: str, data: DataConfig) -> tuple[pd.DataFrame, tuple[int, int, int] | None]:
    if is_image_file(source):
        images = read_images(source, data.label)
        stated = None if data.image is None else data.image.shape
        if is_image_folder(source) and stated and math.prod(stated) != math.prod(images.shape):
            raise DataError(
                f"{source}: its images have shape {images.shape}, data.image.shape={list(stated)}"
            )
        return images.frame, images.shape
    return read_table(source, csv_form(data), may_be_empty=True), None


def _check_frame(frame: pd.DataFrame, data: DataConfig, source: str) -> None:
    _, unnamed = unnamed_rows(frame, data, source)
    if unnamed is not None:
        raise DataError(unnamed)
    label = _stated_label(data)
    cells = Cells(source, tuple(str(text) for text in data.missing_values), number_form(data))
    for name, column in described_columns(data, list(frame.columns)).items():
        if data.use is None or name in data.use:
            column.write(frame[name], cells, np.empty((column.width, len(frame)), dtype=np.float32))
    if label is not None and label.name in frame.columns:
        label.encode(frame[label.name], source, clip=False, numbers=cells.numbers)


def _stated_label(data: DataConfig) -> Label | None:
    if data.target_bounds is not None:
        return Label(data.label, bounds=data.target_bounds)
    return None if data.classes is None else Label(data.label, classes=as_levels(data.classes))
