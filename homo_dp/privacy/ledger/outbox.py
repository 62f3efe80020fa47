"""The one order that can lose budget but never hide a spend: make a message, keep it, charge the
ledger, publish.

``releasing`` is that order and its recovery. What it keeps is in an outbox: a private directory for
a process that may be killed and started again, memory for one that lives as long as its run.
``charge_kept`` is the only caller of ``Ledger.charge``: the aggregator, whose outbox is the state
of its run, comes here too.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from homo_dp.core.crash_points import crash_point
from homo_dp.core.files import make_folder, remove_file, sweep, sync_directory, write_file
from homo_dp.privacy.errors import BudgetExceeded, LedgerError
from homo_dp.privacy.ledger import Budget, Charge, Ledger, LedgerRow

__all__ = ["MemoryOutbox", "Outbox", "Releasing", "charge_kept", "releasing"]

_SUFFIX = ".message"
_LONGEST_KEY = 200


class Outbox:
    """Messages by key in a directory that only its owner can read; one process at a time.

    Guarantees:
        - after ``put`` returned, the whole message is on disk; after a crash inside it, all of it
          or nothing is;
        - a key is never a path: whatever its characters, the file stays inside the directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outbox = Outbox(folder + "/outbox")
    ...     outbox.put("run-1/update/1", b"weights")
    ...     print(outbox.pending(), outbox.get("run-1/update/1"), outbox.remove("run-1/update/1"), outbox.pending())
    ['run-1/update/1'] b'weights' True []
    """

    durable = True

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        with self._errors("be opened"):
            make_folder(self.directory)
            if stat.S_IMODE(self.directory.stat().st_mode) & 0o077:
                self.directory.chmod(0o700)
            sync_directory(self.directory.parent)
            sweep(self.directory)
            # of homo_dp before it had `core.files`
            for left_over in self.directory.glob("*.message.tmp"):
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
            raise LedgerError(
                f"key={key!r:.80} must be 1 to {_LONGEST_KEY} characters when quoted; shorten it"
            )
        return self.directory / (name + _SUFFIX)

    @contextlib.contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"outbox={self.directory} cannot {action} ({error.strerror}); nothing was "
                "released, make space or make it a writable directory and start again"
            ) from None


class MemoryOutbox:
    """An outbox of a process that lives as long as its run: messages are kept as they are, and lost
    with the process.

    >>> outbox = MemoryOutbox()
    >>> outbox.put("run-1/update/1", "any object")
    >>> outbox.pending(), outbox.get("run-1/update/1"), outbox.remove("run-1/update/1"), outbox.pending()
    (['run-1/update/1'], 'any object', True, [])
    """

    durable = False

    def __init__(self) -> None:
        self._messages: dict[str, Any] = {}

    def put(self, key: str, message: Any) -> None:
        """Keep a message. The same key again replaces it."""
        self._messages[key] = message

    def get(self, key: str) -> Any:
        """The message, None if there is none."""
        return self._messages.get(key)

    def pending(self) -> list[str]:
        """The keys of all messages that are kept, sorted."""
        return sorted(self._messages)

    def remove(self, key: str) -> bool:
        """Forget a message; whether there was one."""
        return self._messages.pop(key, None) is not None


@dataclass
class Releasing:
    """A release on its way: what was charged before, or what the body of ``releasing`` made and
    what that costs.
    """

    kept: Any = None
    message: Any = None
    charge: Charge | None = None


@contextlib.contextmanager
def releasing(
    outbox: Outbox | MemoryOutbox, ledger: Ledger, planned: Charge, budget: Budget, key: str
) -> Iterator[Releasing]:
    """Make, keep, charge: a release happens at most once however often this is entered or killed.

    The body makes the message, unless ``kept`` is one that was charged before, and sets ``message``
    and ``charge`` (as it came out of the work, with the sigma that was added). It touches data only
    after the budget was checked. Publish the message after the block, as often as needed;
    ``outbox.remove(key)`` once it will not be asked for again.

    Guarantees:
        - after the block the message is charged, on disk, for exactly what the outbox keeps;
        - after a crash a charged message is found byte for byte and not charged again; what was
          never charged was never published, is discarded and made anew with fresh noise;
        - a body that raises keeps nothing and charges nothing.
    """
    if ledger.waiting and outbox.durable:
        raise LedgerError(
            f"ledger={ledger.path} is inside together(): a message may leave only once it is on "
            "disk"
        )
    row = ledger.charged(*planned.key)
    if row is not None:
        yield Releasing(kept=_charged_message(outbox, ledger, row, key))
        return
    outbox.remove(key)
    reason = ledger.would_exceed([planned], budget)
    if reason is not None:
        raise BudgetExceeded(f"{reason}; no data was touched (ledger={ledger.path})")
    release = Releasing()
    yield release
    made = planned if release.charge is None else release.charge
    if made.key != planned.key or made.scope != planned.scope:
        raise LedgerError(
            f"charge={made.key} is not the planned release={planned.key}; keep run, party, round "
            "and kind"
        )
    outbox.put(key, release.message)
    crash_point("outbox.after_put")
    try:
        if isinstance(release.message, bytes):
            made = replace(made, message_sha256=_digest(release.message))
        charge_kept(ledger, [made], budget)
    except BudgetExceeded:
        outbox.remove(key)
        raise
    crash_point("outbox.after_charge")


def charge_kept(ledger: Ledger, charges: Iterable[Charge], budget: Budget) -> None:
    """Charge what was made and kept; it may be published after this. The same again changes
    nothing.
    """
    for charge in charges:
        ledger.charge(charge, budget)


def _charged_message(
    outbox: Outbox | MemoryOutbox, ledger: Ledger, row: LedgerRow, key: str
) -> Any:
    message = outbox.get(key)
    if isinstance(outbox, MemoryOutbox):
        if message is None:
            raise LedgerError(
                f"round={row.round}: was charged before and its message is gone with its process; "
                "start a new run"
            )
        return message
    if message is not None and _digest(message) == row.message_sha256:
        return message
    found = "is not in the outbox" if message is None else "is not the one in the outbox"
    raise LedgerError(
        f"key={key} run={row.run} party={row.party} round={row.round} kind={row.kind} was charged "
        f"in row={row.row} of ledger={ledger.path} but its message {found}={outbox.directory}; "
        "that spend is lost, release under a new round"
    )


def _digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()
