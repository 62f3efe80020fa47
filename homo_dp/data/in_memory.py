"""Tables that are in memory already: they stand in ``data.files`` under a name that no file can
have.

The config, and all that reads it, then needs no second way to say where a table is; the readers
look here first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MARK = "memory://"  # Path() keeps one slash only, so no path of a file is spelled like this
_tables: dict[str, pd.DataFrame] = {}
_numbers = itertools.count(1)


@contextmanager
def held_in_memory(tables: Mapping[str, pd.DataFrame]) -> Iterator[dict[str, str]]:
    """Names under which the readers find these tables, as long as the block lasts.

    >>> import pandas as pd
    >>> with held_in_memory({"a": pd.DataFrame({"x": [1]})}) as names:
    ...     table_in_memory(names["a"]).shape, names["a"].startswith(MARK)
    ((1, 1), True)
    """
    names = keep_in_memory(tables)
    try:
        yield names
    finally:
        for name in names.values():
            _tables.pop(name, None)


def keep_in_memory(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The same for the life of the process."""
    names = {party: f"{MARK}{next(_numbers)}/{party}" for party in tables}
    _tables.update({names[party]: frame for party, frame in tables.items()})
    return names


def table_in_memory(path: str | PathLike[str]) -> pd.DataFrame | None:
    """The table of that name, None if the name is that of a file."""
    return _tables.get(path) if isinstance(path, str) else None
