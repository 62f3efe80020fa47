"""Tables in a database: ``data.files.a=postgresql+psycopg://ann:pw@db.example/clinic#patients``.

An address of SQLAlchemy, a ``#``, and the name of a table or a query that begins with SELECT or
WITH. What is read stays with the party like the rows of a file. Needs the extra ``sql`` and the
driver that the address names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from homo_dp.config.addresses import masked, without_secrets
from homo_dp.core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from sqlalchemy import Connection

_ADDRESS = re.compile(r"[A-Za-z][\w+]*://")
_QUERY = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_FILES = ("memory", "http", "https", "ftp", "s3", "file")


def is_database(path: str | PathLike[str]) -> bool:
    """Whether a value of ``data.files`` is the address of a table in a database.

    >>> is_database("sqlite:///clinic.db#patients"), is_database("patients.csv"), is_database("memory://1/a")
    (True, False, False)
    """
    text = str(path)
    return _ADDRESS.match(text) is not None and text.partition(":")[0] not in _FILES


def read_database(path: str | PathLike[str]) -> pd.DataFrame:
    """All rows of a table or query, each value as the database has it."""
    with _connected(str(path)) as (connection, query):
        result = connection.execute(query)
        return _frame(result.fetchall(), result.keys())


def read_database_chunks(path: str | PathLike[str], rows: int) -> Iterator[pd.DataFrame]:
    """The rows in pieces, in memory that does not grow with the table where the driver streams."""
    import pandas as pd

    seen = 0
    with _connected(str(path)) as (connection, query):
        result = connection.execution_options(stream_results=True).execute(query)
        names = result.keys()
        for piece in result.partitions(rows):
            frame = _frame(piece, names)
            frame.index = pd.RangeIndex(seen, seen + len(frame))
            seen += len(frame)
            yield frame


def database_columns(path: str | PathLike[str]) -> list[str]:
    """The names of the columns, without a row."""
    with _connected(str(path)) as (connection, query):
        result = connection.execute(query.limit(0))
        return list(map(str, result.keys()))


def _frame(rows: Sequence[Sequence[Any]], names: Iterable[Any]) -> pd.DataFrame:
    """Columns of one type of number get that type, which changes no value; all others stay as they
    are.

    To guess a type from all values, as pandas does, lets one row change how the others are read: a
    text among numbers makes text of them, and a missing one makes floats of whole numbers.
    """
    import pandas as pd

    columns = list(zip(*rows, strict=True)) or [() for _ in names]
    return pd.DataFrame(
        {str(name): _column(values) for name, values in zip(names, columns, strict=True)}
    )


def _column(values: Sequence[Any]) -> pd.Series:
    import pandas as pd

    kinds = set(map(type, values)) - {type(None)}
    if kinds == {float}:
        return pd.Series(values, dtype="float64")
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pd.Series(values, dtype="Int64")
    return pd.Series(values, dtype=object)


@contextmanager
def _connected(path: str) -> Iterator[tuple[Connection, Any]]:
    """A connection and the query that selects the rows; whatever the driver raises is one line
    without a password.
    """
    address, _, wanted = path.partition("#")
    shown = masked(path)
    if not wanted.strip():
        raise DataError(f"{shown}: names no table; add #TABLE, or #SELECT ... FROM ...")
    try:
        import sqlalchemy as sql
    except ImportError:
        raise DataError(
            f"{shown}: needs SQLAlchemy; install it with pip install 'homo_dp[sql]'"
        ) from None
    try:
        engine = sql.create_engine(address)
        try:
            with engine.connect() as connection:
                yield connection, _selected(sql, wanted)  # never committed
        finally:
            engine.dispose()
    except DataError:
        raise
    except ImportError as error:
        raise DataError(
            f"{shown}: the driver {error.name} is not installed; pip install 'homo_dp[sql]' brings "
            "psycopg (postgresql+psycopg://), others are packages of their own, such as pymysql"
        ) from None
    except (sql.exc.SQLAlchemyError, OSError, ValueError) as error:
        said = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        raise DataError(
            f"{shown}: cannot be read ({without_secrets(said, address)}); check address, table and "
            "rights"
        ) from None


def _selected(sql: Any, wanted: str) -> Any:
    if _QUERY.match(wanted):
        inner = sql.text(wanted.rstrip().rstrip(";").replace(":", "\\:")).columns().alias("wanted")
        return sql.select(sql.text("*")).select_from(inner)
    schema, _, name = wanted.strip().rpartition(".")
    return sql.select(sql.text("*")).select_from(sql.table(name, schema=schema or None))
