"""The newest ledger head that each party has shown, over all runs of an aggregator.

A ledger only grows. A party that shows a shorter one than before has lost or rolled back releases,
by accident or not, and is refused until it brings them back.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, TypeAdapter

from homo_dp.core.errors import InputError, MessageError
from homo_dp.core.files import make_folder, shared_with_writers, write_file
from homo_dp.core.untrusted_text import Foreign, Schema
from homo_dp.federation.protocol.messages import Json
from homo_dp.federation.sessions.crash_state import explained

Head = dict[str, Any]  # {"count": rows, "hash": of the last}
LARGEST_BOOK = 16 << 20  # bytes: about 100,000 parties


class _ShownHead(Schema):
    """A head as a party shows it, and as the book holds it."""

    count: Annotated[int, Strict(), Field(ge=0, le=2**53)]
    hash: Annotated[str, Field(max_length=200)]


_BOOK = TypeAdapter(dict[str, _ShownHead])


class LedgerHeads:
    """Heads by party in one small file; several aggregators may share it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     book = LedgerHeads(Path(folder) / "heads.json")
    ...     book.take("bank_a", {"count": 2, "hash": "b" * 64})
    ...     book.take("bank_a", {"count": 1, "hash": "a" * 64})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    homo_dp.core.errors.MessageError: ledger of bank_a has 1 rows, it showed 2 before: restore it, ...
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if (reason := shared_with_writers(path)) is not None:
            raise InputError(f"heads={path} {reason}")
        self._heads = self._read()
        self._heard = dict(self._heads)  # by this aggregator, and by all before it was started

    def take(self, party: str, shown: Json, *, underway: bool = False) -> None:
        """Remember a head; MessageError if this party has shown a later or another one before.

        A message that was ``underway`` may show an older head than the party has shown in other
        runs since.
        """
        foreign = Foreign(f"ledger_head of {party}", "it must hold count and hash", MessageError)
        head = foreign.check(_ShownHead, shown).model_dump() if isinstance(shown, dict) else None
        known = (self._heard if underway else self._heads).get(party)
        if known is not None and (head is None or head["count"] < known["count"]):
            rows = head["count"] if head else "no"
            raise MessageError(
                f"ledger of {party} has {rows} rows, it showed {known['count']} before: restore "
                "it, nothing is taken meanwhile; after a trial that starts afresh, remove "
                "heads.json of federation.state_dir"
            )
        if head is None:
            return
        for before in (known, self._heads.get(party)):
            if (
                before is not None
                and head["count"] == before["count"]
                and head["hash"] != before["hash"]
            ):
                raise MessageError(
                    f"ledger of {party} has another row {head['count']} than it showed before: "
                    "restore it"
                )
        if head["count"]:
            self._heard[party] = head
            self._heads[party] = max(
                head, self._heads.get(party, head), key=lambda each: int(each["count"])
            )

    def newest(self, party: str) -> Head | None:
        """The newest head that a party has shown."""
        return self._heads.get(party)

    def save(self) -> None:
        """Write the book down, together with what other aggregators wrote into it."""
        with explained(self._path):
            make_folder(self._path.parent)
            lock = os.open(
                self._path.with_name("heads.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                on_disk = self._read()
                for party, head in on_disk.items():
                    if head["count"] > self._heads.get(party, {"count": 0})["count"]:
                        self._heads[party] = head
                if on_disk != self._heads:
                    write_file(
                        self._path, json.dumps(self._heads, sort_keys=True).encode(), point="heads"
                    )
            finally:
                os.close(lock)

    def _read(self) -> dict[str, Head]:
        file = Foreign(f"heads={self._path}", "restore it from a backup", InputError, LARGEST_BOOK)
        try:
            found = file.check(_BOOK, file.json(file.read(self._path)))
        except FileNotFoundError:
            return {}
        return {party: head.model_dump() for party, head in found.items()}


class HeadsInMemory(LedgerHeads):
    """The heads of one run whose parties are in this process."""

    def __init__(self) -> None:
        self._heads = {}
        self._heard = {}

    def save(self) -> None:
        """Nothing to write down: the ledgers are read by this process itself."""
