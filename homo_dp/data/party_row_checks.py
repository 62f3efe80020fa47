"""Checks a party's rows against its own config, before the party joins a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from homo_dp.config.addresses import masked
from homo_dp.data.columns import Cells, Label
from homo_dp.data.declared import as_levels, described_columns
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.readers import csv_form, number_form, read_table

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.config.data import DataConfig
    from homo_dp.config.schema import Config


def check_own_rows(config: Config, party: str) -> None:
    """Refuse rows that break what the party's own config says of its columns, classes or target.

    Guarantees:
        - the answer depends on the party's config and table alone: it is found before any plan is read.
    """
    data = config.data
    label = _stated_label(data)
    path = data.one_table or data.files.get(party)
    if path is None or not (data.columns or data.columns_from or label):
        return
    test = data.test_file.get(party) if isinstance(data.test_file, dict) else data.test_file
    for source in filter(None, (path, test)):
        images = is_image_file(source)
        frame = (
            read_images(source, data.label).frame if images else read_table(source, csv_form(data))
        )
        _check_frame(frame, label, data, masked(source))


def _check_frame(frame: pd.DataFrame, label: Label | None, data: DataConfig, source: str) -> None:
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
