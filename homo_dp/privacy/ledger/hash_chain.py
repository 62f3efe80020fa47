"""The hash chain of a ledger and its anchored head: what a cut, edited, deleted or reordered row
is found by.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from homo_dp.core.files import write_file
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger.rows import LedgerRow, row_hash

__all__ = ["GENESIS", "Head", "check_head", "follow", "head_path", "read_head", "write_head"]

_RESTORE = (
    "restore the ledger and its .head from a backup that is not older, and ask who changed it"
)
_LARGEST_HEAD = 4096


@dataclass(frozen=True)
class Head:
    """Where a ledger ends: how many rows, and the hash of the last."""

    count: int
    hash: str


GENESIS = Head(0, "0" * 64)


def follow(reached: Head, row: LedgerRow, ledger: Path) -> Head:
    """The head after ``row``; raises, naming the row, if it is not the unaltered next row."""
    if row.row != reached.count + 1:
        raise LedgerError(
            f"ledger={ledger} row={reached.count + 1} is missing (deleted); {_RESTORE}"
        )
    if row.hash != row_hash(vars(row)):
        raise LedgerError(
            f"ledger={ledger} row={row.row} was edited or moved: it does not match its own hash; "
            f"{_RESTORE}"
        )
    if row.previous_hash != reached.hash:
        raise LedgerError(
            f"ledger={ledger} row={row.row} does not follow row={reached.count}: one of the two "
            f"was replaced, or rows were deleted or reordered; {_RESTORE}"
        )
    return Head(row.row, row.hash)


def check_head(
    reached: Head, first: int, head: Head | None, hash_at_head: str | None, ledger: Path
) -> bool:
    """Whether the ledger is exactly one commit ahead of its head (a crash in between); raises if
    they disagree.

    The head is on disk before the next rows are written, so a crash can leave the ledger ahead by
    the rows of its last commit (from ``first`` on), never behind and never further ahead. Without
    rows a missing head is a crash as well, before the first one was written.
    """
    if head is None:
        if reached.count == 0:
            return True
        raise LedgerError(
            f"ledger={ledger} has {reached.count} rows but no {head_path(ledger).name}; {_RESTORE}"
        )
    if head.count > reached.count:
        raise LedgerError(
            f"ledger={ledger} ends at row={reached.count} but its head is at row={head.count}: the "
            f"tail was cut or an older copy put back, row={reached.count + 1} is missing; "
            f"{_RESTORE}"
        )
    if hash_at_head != head.hash:
        raise LedgerError(
            f"ledger={ledger} row={head.count} is not the row that its head recorded; {_RESTORE}"
        )
    if head.count not in (reached.count, first - 1):
        raise LedgerError(
            f"ledger={ledger} ends at row={reached.count} but its head is at row={head.count}, and "
            f"a crash leaves at most the last commit between: row={first} was not written by "
            f"homo_dp, or the head is old; {_RESTORE}"
        )
    return reached.count > head.count


def head_path(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + ".head")


def read_head(ledger: Path) -> Head | None:
    """The head on disk, None if there is none."""
    path = head_path(ledger)
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_HEAD)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LedgerError(
            f"head={path} cannot be read ({error.strerror}); make it readable"
        ) from None
    try:
        fields = json.loads(text)
        head = Head(fields["count"], fields["hash"])
    except (ValueError, LookupError, TypeError, RecursionError):
        head = None
    if (
        head is None
        or type(head.count) is not int
        or head.count < 0
        or not isinstance(head.hash, str)
    ):
        raise LedgerError(
            f'head={path} is not {{"count": rows, "hash": hash of the last}}; {_RESTORE}'
        )
    return head


def write_head(ledger: Path, head: Head) -> None:
    """Put the head on disk. Call it only inside a write transaction: that is what keeps it from
    going back.
    """
    path = head_path(ledger)
    try:
        write_file(path, json.dumps(asdict(head)).encode() + b"\n", point="ledger.head")
    except OSError as error:
        raise LedgerError(
            f"head={path} cannot be written ({error.strerror}); nothing was released, make space "
            "or make the directory writable and start again"
        ) from None
