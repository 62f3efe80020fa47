"""What the owner of a table should look at before a model is trained on it.

Each finding is one line for the owner's own screen. None of them changes what is trained or what a
party tells others.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from homo_dp.data.encoding import Encoding
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import first_row

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.config.data import DataConfig

NEARLY_ALL = 0.9  # share of a column's values from which its description is likely to be wrong
MOST_NOTES = 5  # of all tables together that are shown one by one


def table_notes(
    frame: pd.DataFrame,
    labels: torch.Tensor,
    encoding: Encoding,
    strays: Strays,
    data: DataConfig,
    source: str,
) -> tuple[str, ...]:
    """One line for each thing about a table that is likely to be a mistake.

    Args:
        frame: the rows that are trained on or tested with, as they were read.
        labels: their labels, encoded.
        encoding: the description of the columns.
        strays: the values that the description does not hold.
        data: the section of the config.
        source: what the lines call the table.
    """
    found = [
        *(f"{text}; check its unit and its description" for text in strays.warnings(NEARLY_ALL)),
        *_labels(labels, encoding),
        *_ids(frame, encoding, data),
        *_dropped(frame, data),
    ]
    return tuple(f"{source}: {text}" for text in found)


def shown_notes(notes: tuple[str, ...]) -> list[str]:
    """The first of the notes, and how many more there are.

    >>> shown_notes(tuple("abcdefg"))[-1]
    'the tables of this run have 2 more such findings'
    """
    more = len(notes) - MOST_NOTES
    rest = [f"the tables of this run have {more} more such findings"] if more > 0 else []
    return [*notes[:MOST_NOTES], *rest]


def _labels(labels: torch.Tensor, encoding: Encoding) -> Iterator[str]:
    if encoding.classes is None or len(labels) < 2 or bool((labels != labels[0]).any()):
        return
    yield (
        f"label {encoding.label.name!r}: all {len(labels)} rows are of one class; check data.label "
        "and the file"
    )


def _ids(frame: pd.DataFrame, encoding: Encoding, data: DataConfig) -> Iterator[str]:
    if encoding.id not in frame.columns or encoding.id == data.user_column:
        return
    twins = frame[encoding.id].duplicated()
    count = int(twins.sum())
    if count:
        row = first_row(twins.to_numpy(), frame[encoding.id])
        yield (
            f"id column {encoding.id!r}: {count} rows have the id of an earlier row, the first is "
            f"row {row}; a person with k rows is protected with k times this epsilon"
        )


def _dropped(frame: pd.DataFrame, data: DataConfig) -> Iterator[str]:
    names = [str(name) for name in frame.columns]
    folded = {name.lower(): name for name in names}
    for name in data.drop:
        near = difflib.get_close_matches(name.lower(), list(folded), n=1)
        if name not in names and near:
            yield f"data.drop: there is no column {name!r} (did you mean {folded[near[0]]!r}?)"
