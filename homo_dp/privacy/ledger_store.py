"""The SQLite file under a ledger: one table, durable commits, one writer at a time, one-line errors."""

import contextlib
import functools
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from homo_dp.core.crash import crash_point
from homo_dp.core.files import make_folder, shared_with_writers, sync_directory
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger_chain import head_path
from homo_dp.privacy.ledger_rows import LedgerRow

__all__ = ["Store"]

_APPLICATION = 0x686F6D6F  # "homo": what `file` shows, and what tells a ledger from any other database
_VERSION = 2
_WAIT_SECONDS = 60.0
_COLUMNS = tuple(field.name for field in fields(LedgerRow))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM releases "
_INSERT = f"INSERT INTO releases ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
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
    UNIQUE (run, party, round, kind)
)
"""


class Store:
    """Rows in SQLite.

    Guarantees:
        - ``writing()`` is one BEGIN IMMEDIATE transaction: no other process writes inside it, and when it ends
          without an exception its rows are on disk (synchronous=FULL; the journal is truncated and synced, so that
          a power cut cannot bring it back and undo the commit);
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
                raise LedgerError(f"ledger={path} is in a directory that cannot be written; make it writable")
            if not read_only:
                self._refuse_other_writers()
            self._database = self._connect()

    def _refuse_other_writers(self) -> None:
        """A ledger that other users can write is not this party's word about what it has spent."""
        for what, file in (("ledger", self.path), ("head", head_path(self.path))):
            if (reason := shared_with_writers(file)) is not None:
                raise LedgerError(f"{what}={file} {reason}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that no other writer can enter; rolled back if the body raises."""
        if self.read_only:
            raise LedgerError(f"ledger={self.path} was opened to read only; open it with Ledger(path) to charge")
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view; nobody commits a row while it lasts, so keep it short."""
        with self._transaction("BEGIN"):
            yield

    def count(self) -> int:
        return int(self._database.execute("SELECT COUNT(*) FROM releases").fetchone()[0])

    def version(self) -> int:
        """A number that changes when another connection has committed; our own commits leave it as it is."""
        return int(self._database.execute("PRAGMA data_version").fetchone()[0])

    def rows_after(self, row: int) -> Iterator[LedgerRow]:
        for values in self._database.execute(_SELECT + "WHERE row > ? ORDER BY row", (row,)):
            yield LedgerRow(*values)

    def hash_at(self, row: int) -> str | None:
        found = self._database.execute("SELECT hash FROM releases WHERE row = ?", (row,)).fetchone()
        return None if found is None else found[0]

    def find(self, run: str, party: str, round: int, kind: str) -> LedgerRow | None:
        where = "WHERE run = ? AND party = ? AND round = ? AND kind = ?"
        values = self._database.execute(_SELECT + where, (run, party, round, kind)).fetchone()
        return None if values is None else LedgerRow(*values)

    def count_rounds(self, run: str, party: str, kind: str, first: int, rounds: int) -> int:
        where = "WHERE run = ? AND party = ? AND kind = ? AND round >= ? AND round < ?"
        values = (run, party, kind, first, first + rounds)
        return int(self._database.execute("SELECT COUNT(*) FROM releases " + where, values).fetchone()[0])

    def holds_message(self, message_sha256: str) -> bool:
        found = self._database.execute("SELECT 1 FROM releases WHERE message_sha256 = ? LIMIT 1", (message_sha256,))
        return found.fetchone() is not None

    def insert(self, row: LedgerRow) -> None:
        self._database.execute(_INSERT, tuple(vars(row).values()))

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        with self._errors():
            self._database.execute(begin)
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise

    def _create_file(self) -> None:
        """An empty file for its owner only; SQLite would make it readable for everybody."""
        if self.read_only:
            raise LedgerError(f"ledger={self.path} does not exist; name an existing ledger")
        make_folder(self.path.parent)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        sync_directory(self.path.parent)

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(
            self.path.absolute().as_uri() + "?mode=rw",
            uri=True,
            timeout=_WAIT_SECONDS,
            isolation_level=None,  # transactions are begun by name, above
            check_same_thread=False,  # the Ledger holds a lock
        )
        # A row edited to bytes that are no text must be found by its hash, not stop the reader.
        database.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        empty = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
        if self.read_only or not empty:
            self._check_schema(database)
        if self.read_only:
            return
        database.execute("PRAGMA synchronous=FULL")
        if database.execute("PRAGMA journal_mode=TRUNCATE").fetchone()[0] != "truncate":
            raise LedgerError(f"ledger={self.path} is open elsewhere in another journal mode; close it there")
        database.execute("BEGIN IMMEDIATE")  # fails on a file that cannot be written
        if database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0:
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA application_id={_APPLICATION}")
            database.execute(f"PRAGMA user_version={_VERSION}")
            crash_point("ledger.create.before_commit")
        database.execute("COMMIT")
        crash_point("ledger.create.after_commit")

    def _check_schema(self, database: sqlite3.Connection) -> None:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != _APPLICATION:
            raise LedgerError(f"ledger={self.path} is empty or a database of something else; name another file")
        if version != _VERSION:
            raise LedgerError(
                f"ledger={self.path} has version={version}, this homo_dp reads {_VERSION}; update homo_dp"
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"ledger={self.path} {_reason(error)}") from None
        except OSError as error:
            raise LedgerError(f"ledger={self.path} cannot be used ({error.strerror}); name a writable file") from None


def _reason(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    for start, reason in _REASONS.items():
        if name.startswith(start):
            return reason.format(error=error)
    return f"failed ({error}); nothing was released, check the disk and the file, then start again"


_REASONS = {
    "SQLITE_BUSY": f"was held by another process for more than {_WAIT_SECONDS:g} s; stop that process or wait",
    "SQLITE_FULL": "cannot be written: the disk is full; nothing was released, make space and start again",
    "SQLITE_READONLY": "cannot be written ({error}); make the file and its directory writable",
    "SQLITE_CANTOPEN": "cannot be opened ({error}); make the file and its directory readable and writable",
    "SQLITE_PERM": "cannot be opened ({error}); make the file and its directory readable and writable",
    "SQLITE_NOTADB": "is not a ledger ({error}); name another file",
    "SQLITE_CORRUPT": "is damaged ({error}); restore it and its .head from a backup that is not older",
}
