"""The SQLite file under a ledger: releases and the last checkpoint, durable commits, one writer,
one-line errors.
"""

import contextlib
import functools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from homo_dp.core.crash_points import crash_point
from homo_dp.core.files import make_folder, shared_with_writers, sync_directory
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger.hash_chain import GENESIS, head_path
from homo_dp.privacy.ledger.rows import NOT_PRIVATE, LedgerRow, row_of

__all__ = ["LedgerFile"]

# "homo": what `file` shows, and what tells a ledger from any other database
_APPLICATION = 0x686F6D6F
_VERSION = 3
# without salts and checkpoints; read as it is, and brought to 3 when it is next opened to charge
_OLD = 2
_WAIT_SECONDS = 60.0
_COLUMNS = tuple(field.name for field in fields(LedgerRow))
_SINCE_3 = ("salt", "first_row", "checkpoint")
_SELECT = {
    _VERSION: f"SELECT {', '.join(_COLUMNS)} FROM releases ",
    _OLD: (
        f"SELECT {', '.join('NULL' if name in _SINCE_3 else name for name in _COLUMNS)} FROM "
        "releases "
    ),
}
_INSERT = f"INSERT INTO releases ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_CHECKPOINTS = "CREATE TABLE checkpoints (row INTEGER PRIMARY KEY, content TEXT NOT NULL)"
_SCHEMA = """
CREATE TABLE releases (
    row INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    dataset TEXT NOT NULL,
    unit TEXT NOT NULL,
    relation TEXT NOT NULL,
    party TEXT NOT NULL,
    round INTEGER NOT NULL,
    kind TEXT NOT NULL,
    event TEXT NOT NULL,
    delta REAL NOT NULL,
    epsilon_pld REAL,
    epsilon_rdp REAL NOT NULL,
    sigma REAL NOT NULL,
    observer TEXT NOT NULL,
    noise TEXT NOT NULL,
    time TEXT NOT NULL,
    message_sha256 TEXT,
    lifetime_order REAL,
    previous_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    salt TEXT,
    first_row INTEGER,
    checkpoint TEXT,
    UNIQUE (run, party, round, kind)
)
"""


class LedgerFile:
    """Rows in SQLite.

    Guarantees:
        - ``writing()`` is one BEGIN IMMEDIATE transaction: no other process writes inside it, and
          when it ends without an exception its rows are on disk (synchronous=FULL; the journal is
          truncated and synced, so that a power cut cannot bring it back and undo the commit);
        - every failure of SQLite or of the file comes out as a ``LedgerError`` of one line.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        with self._errors():
            if path.is_dir():
                raise LedgerError(f"ledger={path} is a directory; name a file")
            if not path.exists():
                self._create_file()
            if not read_only and not os.access(path.parent, os.W_OK):
                raise LedgerError(
                    f"ledger={path} is in a directory that cannot be written; make it writable"
                )
            if not read_only:
                self._refuse_other_writers()
            self._database = self._connect()

    def _refuse_other_writers(self) -> None:
        """Refuse a ledger that other users can write: it would not prove what this party has
        spent.
        """
        for what, file in (("ledger", self.path), ("head", head_path(self.path))):
            if (reason := shared_with_writers(file)) is not None:
                raise LedgerError(f"{what}={file} {reason}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that no other writer can enter; rolled back if the body raises."""
        if self.read_only:
            raise LedgerError(
                f"ledger={self.path} was opened to read only; open it with Ledger(path) to charge"
            )
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view; no other process can commit while it is open, so keep it short."""
        if self._unmade and not _is_unmade(self.path):
            with self._errors():
                self.close()
                self._database = self._connect()
        with self._transaction("BEGIN"):
            yield

    def count(self) -> int:
        return int(self._one("SELECT COUNT(*) FROM releases")[0])

    def version(self) -> int:
        """A number that changes when another connection has committed; our own commits leave it
        as it is.
        """
        return int(self._one("PRAGMA data_version")[0])

    def rows_after(self, row: int) -> Iterator[LedgerRow]:
        return self._rows("WHERE row > ? ORDER BY row", (row,))

    def row_at(self, row: int) -> LedgerRow | None:
        return next(self._rows("WHERE row = ?", (row,)), None)

    def hash_at(self, row: int) -> str | None:
        found = self._one("SELECT hash FROM releases WHERE row = ?", (row,))
        return None if found is None else found[0]

    def last(self) -> tuple[int, str]:
        """Number and hash of the last row; (0, zeros) without one, as before the first."""
        found = self._one("SELECT row, hash FROM releases ORDER BY row DESC LIMIT 1")
        return (GENESIS.count, GENESIS.hash) if found is None else (found[0], found[1])

    def find(self, run: str, party: str, round: int, kind: str) -> LedgerRow | None:
        where = "WHERE run = ? AND party = ? AND round = ? AND kind = ?"
        return next(self._rows(where, (run, party, round, kind)), None)

    def rows_of_run(self, run: str) -> Iterator[LedgerRow]:
        return self._rows("WHERE run = ? ORDER BY row", (run,))

    def last_rows(self) -> Iterator[LedgerRow]:
        """The last row of every run, party and observer, in order."""
        last = "SELECT MAX(row) FROM releases GROUP BY run, party, observer"
        return self._rows(f"WHERE row IN ({last}) ORDER BY row", ())

    def runs(self) -> dict[str, tuple[str, bool]]:
        """When each run was first charged, and whether all its noise was private."""
        query = "SELECT run, MIN(time), MAX(noise LIKE ?) FROM releases GROUP BY run"
        found = self._run(query, (NOT_PRIVATE + "%",))
        return {str(run): (str(time), not repeatable) for run, time, repeatable in found}

    def count_rounds(self, run: str, party: str, kind: str, first: int, rounds: int) -> int:
        where = "WHERE run = ? AND party = ? AND kind = ? AND round >= ? AND round < ?"
        values = (run, party, kind, first, min(first + rounds, 2**63 - 1))
        return int(self._one("SELECT COUNT(*) FROM releases " + where, values)[0])

    def insert(self, rows: Sequence[LedgerRow]) -> None:
        self._database.executemany(_INSERT, [tuple(vars(row).values()) for row in rows])

    def checkpoint(self) -> tuple[int, str] | None:
        """The row that carries the newest checkpoint, and the checkpoint."""
        if self.old:
            return None
        found = self._one("SELECT row, content FROM checkpoints ORDER BY row DESC LIMIT 1")
        return None if found is None else (found[0], str(found[1]))

    def keep_checkpoint(self, row: int, content: str) -> None:
        """Replace the checkpoint before by this one."""
        self._database.execute("DELETE FROM checkpoints")
        self._database.execute("INSERT INTO checkpoints VALUES (?, ?)", (row, content))

    @property
    def old(self) -> bool:
        """Whether the file is of the version before salts."""
        return self._schema == _OLD

    def migrate(self) -> None:
        """Bring an old file to this version; inside a transaction."""
        for name, kind in zip(_SINCE_3, ("TEXT", "INTEGER", "TEXT"), strict=True):
            self._database.execute(f"ALTER TABLE releases ADD COLUMN {name} {kind}")
        self._database.execute(_CHECKPOINTS)
        self._database.execute(f"PRAGMA user_version={_VERSION}")
        self._schema = _VERSION

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        with self._errors():
            self._database.execute(begin)
            try:
                if self.old:  # another process may have brought it to this version
                    self._schema = int(self._one("PRAGMA user_version")[0])
                yield
                self._database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                    self._schema = int(self._one("PRAGMA user_version")[0])
                raise

    def _rows(self, where: str, values: tuple[Any, ...]) -> Iterator[LedgerRow]:
        for found in self._run(_SELECT[self._schema] + where, values):
            yield row_of(found, self.path)

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        return next(self._run(query, values), None)

    def _run(self, query: str, values: tuple[Any, ...]) -> Iterator[Any]:
        """What a query finds; a file whose bytes were changed can hold anything, in its schema
        too.
        """
        try:
            yield from self._database.execute(query, values)
        except (UnicodeError, OverflowError, TypeError, MemoryError) as error:
            raise LedgerError(
                f"ledger={self.path} is damaged ({type(error).__name__}: {error}); {_RESTORE}"
            ) from None

    def _create_file(self) -> None:
        """An empty file for its owner only; SQLite would make it readable for everybody."""
        if self.read_only:
            raise LedgerError(f"ledger={self.path} does not exist; name an existing ledger")
        make_folder(self.path.parent)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        sync_directory(self.path.parent)

    def _connect(self) -> sqlite3.Connection:
        """To the file; to read one in which its first user has made no tables yet: to a ledger
        without rows.
        """
        self._unmade = self.read_only and _is_unmade(self.path)
        database = sqlite3.connect(
            "file::memory:" if self._unmade else self.path.absolute().as_uri() + "?mode=rw",
            uri=True,
            timeout=_WAIT_SECONDS,
            isolation_level=None,  # transactions are begun by name, above
            check_same_thread=False,  # the Ledger holds a lock
        )
        # A row edited to bytes that are not text must be found by its hash, not stop the reader.
        database.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        if self._unmade:
            _make_tables(database)
        empty = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
        if self.read_only or not empty:
            self._check_schema(database)
        self._schema = int(database.execute("PRAGMA user_version").fetchone()[0])
        if self.read_only:
            # Not mode=ro: what a killed writer left half done is undone by whoever opens the file
            # next.
            database.execute("PRAGMA query_only=ON")
            return
        database.execute("PRAGMA synchronous=FULL")
        if database.execute("PRAGMA journal_mode=TRUNCATE").fetchone()[0] != "truncate":
            raise LedgerError(
                f"ledger={self.path} is open elsewhere in another journal mode; close it there"
            )
        database.execute("BEGIN IMMEDIATE")  # fails on a file that cannot be written
        if database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0:
            _make_tables(database)
            crash_point("ledger.create.before_commit")
        database.execute("COMMIT")
        crash_point("ledger.create.after_commit")
        self._schema = int(database.execute("PRAGMA user_version").fetchone()[0])

    def _check_schema(self, database: sqlite3.Connection) -> None:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != _APPLICATION:
            raise LedgerError(
                f"ledger={self.path} is empty or a database of something else; name another file"
            )
        if version not in (_OLD, _VERSION):
            raise LedgerError(
                f"ledger={self.path} has version={version}, this homo_dp reads {_OLD} and "
                f"{_VERSION}; update homo_dp"
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"ledger={self.path} {_reason(error)}") from None
        except UnicodeError as error:  # SQLite quotes the bytes of a damaged schema in its errors
            raise LedgerError(f"ledger={self.path} is damaged ({error}); {_RESTORE}") from None
        except OSError as error:
            raise LedgerError(
                f"ledger={self.path} cannot be used ({error.strerror}); name a writable file"
            ) from None


def _is_unmade(path: Path) -> bool:
    """Whether a ledger is an empty file: somebody has just made it, or was killed before there
    were tables.
    """
    return path.stat().st_size == 0


def _make_tables(database: sqlite3.Connection) -> None:
    database.execute(_SCHEMA)
    database.execute(_CHECKPOINTS)
    database.execute(f"PRAGMA application_id={_APPLICATION}")
    database.execute(f"PRAGMA user_version={_VERSION}")


_RESTORE = "restore it and its .head from a backup that is not older"


def _reason(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    for start, reason in _REASONS.items():
        if name.startswith(start):
            return reason.format(error=error)
    return f"failed ({error}); nothing was released, check the disk and the file, then start again"


_REASONS = {
    "SQLITE_BUSY": (
        f"was held by another process for more than {_WAIT_SECONDS:g} s; stop that process or wait"
    ),
    "SQLITE_FULL": (
        "cannot be written: the disk is full; nothing was released, make space and start again"
    ),
    "SQLITE_READONLY": "cannot be written ({error}); make the file and its directory writable",
    "SQLITE_CANTOPEN": (
        "cannot be opened ({error}); make the file and its directory readable and writable"
    ),
    "SQLITE_PERM": (
        "cannot be opened ({error}); make the file and its directory readable and writable"
    ),
    "SQLITE_NOTADB": "is not a ledger ({error}); name another file",
    "SQLITE_CORRUPT": "is damaged ({error}); " + _RESTORE,
}
