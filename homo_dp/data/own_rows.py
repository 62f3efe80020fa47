"""A party's rows against what its own config states about them, before anybody hears that the party is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from homo_dp.data.columns import Column, Label
from homo_dp.data.declared import described_columns
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.readers import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from homo_dp.config.data import DataConfig
    from homo_dp.config.schema import Config


def check_own_rows(config: Config, party: str) -> None:
    """Refuse rows that break what the party's own config says of its columns, classes or target.

    Guarantees:
        - the answer is a function of the party's config and table: no plan is known yet, and none can ask.
    """
    data = config.data
    columns, label = described_columns(data), _stated_label(data)
    path = data.one_table or data.files.get(party)
    if path is None or not (columns or label):
        return
    test = data.test_file.get(party) if isinstance(data.test_file, dict) else data.test_file
    for source in filter(None, (path, test)):
        frame = read_images(source, data.label).frame if is_image_file(source) else read_table(source)
        _check_frame(frame, columns, label, data, source)


def _check_frame(
    frame: pd.DataFrame, columns: Mapping[str, Column], label: Label | None, data: DataConfig, source: str
) -> None:
    missing = tuple(str(text) for text in data.missing_values)
    for name, column in columns.items():
        if name in frame.columns and (data.use is None or name in data.use):
            column.write(frame[name], missing, source, np.empty((column.width, len(frame)), dtype=np.float32))
    if label is not None and label.name in frame.columns:
        label.encode(frame[label.name], source, clip=False)


def _stated_label(data: DataConfig) -> Label | None:
    if data.classes is None and data.target_bounds is None:
        return None
    return Label(data.label, classes=None if data.target_bounds else data.classes, bounds=data.target_bounds)
