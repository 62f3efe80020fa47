"""A party's outbox: a private directory that keeps each message from before it is charged until it has arrived.

The one order that can lose budget but never hide a spend: make the message, put it here, charge the ledger, publish.
``release_once`` is that order and its recovery; there is no other way to use an outbox right.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

from homo_dp.core.crash import crash_point
from homo_dp.core.files import make_folder, remove_file, sweep, sync_directory, write_file
from homo_dp.privacy.errors import BudgetExceeded, LedgerError
from homo_dp.privacy.ledger import Budget, Charge, Ledger, LedgerRow

__all__ = ["Outbox", "recover", "release_once"]

_SUFFIX = ".message"
_LONGEST_KEY = 200


class Outbox:
    """Messages by key in a directory that only its owner can read; one process at a time.

    Guarantees:
        - after ``put`` returned, the whole message is on disk; after a crash inside it, all of it or nothing is;
        - a key is never a path: whatever its characters, the file stays inside the directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outbox = Outbox(folder + "/outbox")
    ...     outbox.put("run-1/update/1", b"weights")
    ...     print(outbox.pending(), outbox.get("run-1/update/1"), outbox.remove("run-1/update/1"), outbox.pending())
    ['run-1/update/1'] b'weights' True []
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        with self._errors("be opened"):
            make_folder(self.directory)
            if stat.S_IMODE(self.directory.stat().st_mode) & 0o077:
                self.directory.chmod(0o700)
            sync_directory(self.directory.parent)
            sweep(self.directory)
            for left_over in self.directory.glob("*.message.tmp"):  # of homo_dp before it had `core.files`
                left_over.unlink()

    def put(self, key: str, message: bytes) -> None:
        """Keep a message; returns once it is on disk. The same key again replaces it."""
        with self._errors("be written"):
            write_file(self._path(key), message, point="outbox")

    def get(self, key: str) -> bytes | None:
        """The message, None if there is none."""
        with self._errors("be read"):
            try:
                return self._path(key).read_bytes()
            except FileNotFoundError:
                return None

    def pending(self) -> list[str]:
        """The keys of all messages that are kept, sorted."""
        with self._errors("be read"):
            names = [path.name for path in self.directory.glob("*" + _SUFFIX)]
        return sorted(unquote(name.removesuffix(_SUFFIX)) for name in names)

    def remove(self, key: str) -> bool:
        """Forget a message that has arrived; whether there was one."""
        with self._errors("be written"):
            return remove_file(self._path(key))

    def _path(self, key: str) -> Path:
        name = quote(key, safe="")
        if not 0 < len(name) <= _LONGEST_KEY:
            raise LedgerError(f"key={key!r:.80} must be 1 to {_LONGEST_KEY} characters when quoted; shorten it")
        return self.directory / (name + _SUFFIX)

    @contextlib.contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"outbox={self.directory} cannot {action} ({error.strerror}); nothing was released, make space or "
                "make it a writable directory and start again"
            ) from None


def release_once(
    outbox: Outbox,
    ledger: Ledger,
    charge: Charge,
    budget: Budget,
    key: str,
    make_bytes: Callable[[], bytes],
    *,
    applied: Callable[[], Charge] | None = None,
) -> bytes:
    """The message of a release, made and charged at most once however often this is called or killed.

    ``make_bytes`` touches the data and is only called if the release is not charged yet and fits the budget.
    ``applied`` gives the charge as it came out of the work (the sigma that was added), for the same release.
    Publish what this returns, as often as needed; ``outbox.remove(key)`` once it has arrived and will not be asked
    for again.

    Guarantees:
        - nothing is returned that is not charged, on disk, for exactly these bytes;
        - after a crash a charged message is returned byte for byte and not charged again; what was never charged was
          never returned, is discarded and made anew with fresh noise.
    """
    if ledger.waiting:
        raise LedgerError(f"ledger={ledger.path} is inside together(): a message may leave only once it is on disk")
    row = ledger.charged(*charge.key)
    if row is not None:
        return _charged_message(outbox, ledger, row, key)
    outbox.remove(key)
    reason = ledger.would_exceed([charge], budget)
    if reason is not None:
        raise BudgetExceeded(f"{reason}; no data was touched (ledger={ledger.path})")
    message = make_bytes()
    made = charge if applied is None else applied()
    if made.key != charge.key or made.scope != charge.scope:
        raise LedgerError(f"charge={made.key} is not the planned release={charge.key}; keep run, party, round and kind")
    outbox.put(key, message)
    crash_point("outbox.after_put")
    try:
        ledger.charge(replace(made, message_sha256=_digest(message)), budget)
    except BudgetExceeded:
        outbox.remove(key)
        raise
    crash_point("outbox.after_charge")
    return message


def recover(outbox: Outbox, ledger: Ledger) -> list[str]:
    """After a start: discard what was never charged, and name what was (to be sent again byte for byte)."""
    charged = []
    for key in outbox.pending():
        message = outbox.get(key)
        if message is not None and ledger.holds_message(_digest(message)):
            charged.append(key)
        else:
            outbox.remove(key)
    return charged


def _charged_message(outbox: Outbox, ledger: Ledger, row: LedgerRow, key: str) -> bytes:
    message = outbox.get(key)
    if message is not None and _digest(message) == row.message_sha256:
        return message
    found = "is not in the outbox" if message is None else "is not the one in the outbox"
    raise LedgerError(
        f"key={key} run={row.run} party={row.party} round={row.round} kind={row.kind} was charged in row={row.row} of "
        f"ledger={ledger.path} but its message {found}={outbox.directory}; that spend is lost, release under a new "
        "round"
    )


def _digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()
