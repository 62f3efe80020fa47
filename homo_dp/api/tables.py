"""Parties as Python has them (frames, paths, arrays) as tables that a run can read."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from homo_dp.core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Table = Any  # a DataFrame, a path, or a pair (X, y) of arrays; pandas is not imported to say so
Parties = Mapping[str, Table] | Table


def frame_of(table: Table, label: str, name: str) -> pd.DataFrame | str:
    """A frame with named columns and the label in it, or the path of a file.

    >>> import numpy as np
    >>> list(frame_of((np.zeros((2, 2)), np.array([0, 1])), "y", "a").columns)
    ['x0', 'x1', 'y']
    """
    import pandas as pd

    if isinstance(table, str | PathLike):
        return str(fspath(table))
    if isinstance(table, pd.DataFrame):
        return _tidy(table)
    if isinstance(table, tuple) and len(table) == 2:
        return _joined(*table, label, name)
    raise DataError(
        f"parties[{name!r}]: is a {type(table).__name__}; give a pandas DataFrame, a path, or a "
        "pair (X, y) of arrays"
    )


def feature_names(count: int) -> list[str]:
    """The names that columns of an array get."""
    return [f"x{number}" for number in range(count)]


def _joined(features: Any, labels: Any, label: str, name: str) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    if isinstance(features, pd.DataFrame):
        frame = _tidy(features)
    else:
        values = np.asarray(features)
        if values.ndim != 2:
            raise DataError(
                f"parties[{name!r}]: X has shape {values.shape}; give rows times columns"
            )
        frame = pd.DataFrame(values, columns=feature_names(values.shape[1]))
    if len(frame) != len(labels):
        raise DataError(
            f"parties[{name!r}]: X has {len(frame)} rows and y has {len(labels)}; give one label "
            "a row"
        )
    if label in frame.columns:
        raise DataError(
            f"parties[{name!r}]: X has a column {label!r} already; give label= another name"
        )
    frame[label] = np.asarray(labels)
    return frame


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy with names as text, rows numbered from 0, and categories as the values they stand
    for.
    """
    tidy = frame.reset_index(drop=True)
    tidy.columns = [str(name) for name in tidy.columns]
    for name in tidy.columns[[str(kind) == "category" for kind in tidy.dtypes]]:
        tidy[name] = tidy[name].astype(object)
    return tidy
