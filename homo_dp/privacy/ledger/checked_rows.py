"""The rows in a ledger's file, each read once and checked against chain, count, head and
checkpoint.
"""

import hashlib
from collections.abc import Iterator

from homo_dp.core.crash_points import crash_point
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger.hash_chain import (
    GENESIS,
    Head,
    check_head,
    follow,
    read_head,
    write_head,
)
from homo_dp.privacy.ledger.rows import LedgerRow, row_hash
from homo_dp.privacy.ledger.store import LedgerFile
from homo_dp.privacy.ledger.totals import Totals

_RESTORE = "restore the ledger and its .head from a backup that is not older"


class CheckedRows:
    """The rows of one file up to the last that was read, and their sums.

    Guarantees:
        - a row that was changed, deleted, inserted or moved since the last checkpoint raises
          ``LedgerError``;
        - ``walk`` finds the same in all rows, and a checkpoint that is not the sums of the rows
          before it;
        - the head is written only inside a write transaction, and always for the newest row.
    """

    def __init__(self, store: LedgerFile) -> None:
        self._store = store
        self.path = store.path
        self.reached = GENESIS
        self.checkpointed = 0  # the row before the one that carries the last checkpoint
        self.anchored = False  # whether the head is known to be that of the last row
        self.totals = Totals()
        self._first = 1  # the first row of the last commit
        self._counted = -1  # the version of the file whose rows were counted

    def catch_up(self, *, repair: bool) -> None:
        """Read and check the rows since the last look, and the head against them; inside a
        transaction.
        """
        version = self._store.version()
        if version == self._counted and self.anchored:
            return  # no other process has written, and our own rows are known
        if self.reached == GENESIS:
            self._from_checkpoint()
        reached = self.reached
        if reached.count and self._store.hash_at(reached.count) != reached.hash:
            raise LedgerError(
                f"ledger={self.path} row={reached.count} was changed or deleted while it was in use"
            )
        for row in self._store.rows_after(reached.count):
            self.take(follow(self.reached, row, self.path), row)
        # counting takes longer the more rows there are; our own do not need it
        if version != self._counted:
            self._check_count(self.reached)
            self._counted = version
        ahead = self._anchor(self.reached, self._first)
        if ahead and repair:
            write_head(self.path, self.reached)
        self.anchored = repair or not ahead

    def take(self, reached: Head, row: LedgerRow) -> None:
        """Count a row that follows the last one."""
        self.reached = reached
        self._first = row.row if row.first_row is None else row.first_row
        if row.checkpoint is not None:
            self.checkpointed = row.row - 1
        self.totals.add(row)

    def _check_count(self, reached: Head) -> None:
        if self._store.count() != reached.count:
            raise LedgerError(
                f"ledger={self.path} has lost a row before row={reached.count}; run budget ledger "
                "verify"
            )

    def _anchor(self, reached: Head, first: int) -> bool:
        """Whether the head has to be written; raises if it disagrees."""
        head = read_head(self.path)
        at_head = (
            GENESIS.hash if head is None or head.count == 0 else self._store.hash_at(head.count)
        )
        return check_head(reached, first, head, at_head, self.path)

    def anchor_newest(self) -> None:
        """After a commit: anchor the newest row, whoever wrote it."""
        self.anchored = False
        crash_point("ledger.after_commit")
        with self._store.writing():
            self.catch_up(repair=True)
        crash_point("ledger.charged")

    def _from_checkpoint(self) -> None:
        """Start from the sums that a row of the chain carries the digest of."""
        found = self._store.checkpoint()
        if found is None:
            return
        number, content = found
        row, before = (
            self._store.row_at(number),
            Head(number - 1, str(self._store.hash_at(number - 1))),
        )
        if (
            row is None
            or self.checked(row).checkpoint != checkpoint_digest(content, before)
            or row.previous_hash != before.hash
        ):
            raise LedgerError(
                f"ledger={self.path} row={number} does not match its checkpoint; run budget ledger "
                "verify"
            )
        try:
            self.totals = Totals.from_text(content)
        except ValueError as error:
            raise LedgerError(
                f"ledger={self.path} row={number} has a checkpoint that cannot be read ({error})"
            ) from None
        self.reached = before

    def walk(self) -> Iterator[LedgerRow]:
        """Every row, checked from the first on, and the checkpoint against their sums."""
        with self._store.reading():
            reached, first, totals, checkpoint = (
                GENESIS,
                1,
                Totals(),
                self._store.checkpoint() or (0, ""),
            )
            for row in self._store.rows_after(0):
                if row.row == checkpoint[0] and totals.to_text() != checkpoint[1]:
                    raise LedgerError(
                        f"ledger={self.path} row={row.row} has a checkpoint of other rows; "
                        f"{_RESTORE}"
                    )
                reached = follow(reached, row, self.path)
                first = row.row if row.first_row is None else row.first_row
                if row.row < checkpoint[0]:
                    totals.add(row)
                yield row
            self._check_count(reached)
            if checkpoint[0] > reached.count:
                raise LedgerError(
                    f"ledger={self.path} row={checkpoint[0]} has a checkpoint and is missing; "
                    f"{_RESTORE}"
                )
            self._anchor(reached, first)

    def checked(self, row: LedgerRow) -> LedgerRow:
        """A row that was read by itself; raises if it was edited."""
        if row.hash != row_hash(vars(row)):
            raise LedgerError(
                f"ledger={self.path} row={row.row} was edited: it does not match its own hash"
            )
        return row


def checkpoint_digest(totals: str, reached: Head) -> str:
    """What a row says of a checkpoint: the sums, and up to which row."""
    text = f"homo_dp ledger checkpoint 1\n{reached.count} {reached.hash}\n{totals}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
