"""What an aggregator knows of rows it never sees: their declared columns, and a test table that
is declared public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from homo_dp.core.errors import DataError
from homo_dp.data.declared import described_names, image_encoding, table_encoding
from homo_dp.data.embedded import shipped_columns
from homo_dp.data.encoding import Encoding
from homo_dp.data.readers import csv_form, number_form
from homo_dp.data.rows import Table

if TYPE_CHECKING:
    from homo_dp.config.schema import Config


def public_encoding(config: Config) -> Encoding:
    """The encoding that the config declares; reads no table.

    >>> from homo_dp.config.load import load_config
    >>> public_encoding(load_config(None, {"data.columns_from": "breast_cancer"})).width
    30
    """
    data = config.data
    if data.image is not None and data.image.shape is not None:
        return image_encoding(config, tuple(data.image.shape))
    names = [*described_names(data), data.label, data.id]
    shipped = data.columns_from or data.embedded
    if shipped is not None:
        names += [column.name for column in shipped_columns(shipped)]
    names += [
        name
        for name in (data.party_column, data.user_column, data.split_column)
        if name is not None
    ]
    if not (
        set(names) - {data.label, data.id, data.party_column, data.user_column, data.split_column}
    ):
        raise DataError(
            "data.columns: is empty; without reading a table the features are known only if it "
            "lists the columns that all parties use, or if data.image.shape gives the shape of "
            "images"
        )
    if data.embedded is not None and data.columns_from is None:
        config = config.model_copy(
            update={"data": data.model_copy(update={"columns_from": data.embedded})}
        )
    return table_encoding(config, list(dict.fromkeys(names)), "data.columns")


def public_table(config: Config, encoding: Encoding) -> Table | None:
    """The test table that the config declares public, else None."""
    data = config.data
    if not data.public_test:
        return None
    from homo_dp.data.parties import Scored, iter_tables, load_federation

    if data.embedded is not None and not data.files and data.test_file is None:
        return load_federation(config).public_test
    if not isinstance(data.test_file, str):
        raise DataError(
            "data.public_test=true: give the public table as one path in data.test_file"
        )
    parts = list(
        iter_tables(data.test_file, encoding, how=Scored(csv_form(data), number_form(data)))
    )
    labels = [part.labels for part in parts if part.labels is not None]
    if not parts or len(labels) != len(parts):
        raise DataError(
            f"data.test_file={data.test_file}: has no rows or no label column {data.label!r}"
        )
    return Table(torch.cat([part.features for part in parts]), torch.cat(labels))
