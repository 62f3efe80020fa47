"""What the tests of ledger and outbox share: a small release, and party processes that can be
killed.
"""

import json
import multiprocessing
import os
import resource
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent

from homo_dp.core import crash_points
from homo_dp.core.crash_points import crash_point
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Budget, Charge, Ledger, LedgerRow
from homo_dp.privacy.ledger.outbox import Outbox, releasing
from homo_dp.privacy.ledger.rows import row_hash

FREE = Budget()
DELTA = 1e-5
EVENT = GaussianDpEvent(20.0)
RELEASE = Charge(
    "run-1",
    "table",
    "record",
    "add_or_remove_one",
    "a",
    1,
    "update",
    EVENT,
    DELTA,
    20.0,
    "aggregator",
)


def release(round: int = 1, **changes: Any) -> Charge:
    return replace(RELEASE, round=round, **changes)


def budget_for(rounds: int) -> Budget:
    """Exactly enough for this many rounds, as calibration would leave it."""
    return Budget(epsilon=epsilon(compose(*[EVENT] * rounds), DELTA).quoted)


def ledger_of(folder: Path, rounds: int = 5) -> Path:
    """A ledger with some rows; closed."""
    with Ledger(folder / "ledger.sqlite") as ledger:
        for round in range(1, rounds + 1):
            ledger.charge(release(round), FREE)
    return folder / "ledger.sqlite"


def in_process(target: Callable[..., None], *arguments: object) -> int:
    """The exit code of a function run in a process of its own (negative: the signal that killed
    it).
    """
    process = start(target, *arguments)
    process.join(120)
    return -999 if process.exitcode is None else process.exitcode


def start(target: Callable[..., None], *arguments: object) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


# A party of the tests. Publishing is a line in a file; what it says was released, whatever happens
# next.


def party(
    folder: Path, rounds: int, crash_at: str | None = None, style: str = "release_once"
) -> None:
    """Release this many rounds, continuing where the last process stopped."""
    crash_points._planned = crash_points._plan(crash_at)
    with Ledger(folder / "ledger.sqlite") as ledger:
        outbox = Outbox(folder / "outbox")
        budget = budget_for(rounds)
        if style == "release_once":
            for key in outbox.pending():  # charged before a crash: sent again byte for byte
                if ledger.charged(*release(int(key)).key) is not None:
                    publish(folder, int(key), outbox.get(key) or b"")
        for round in range(1, rounds + 1):
            if arrived(folder, round):
                continue
            STYLES[style](folder, outbox, ledger, release(round), budget)
            crash_point("published")
            (folder / f"arrived-{round}").touch()
            outbox.remove(str(round))


def as_designed(
    folder: Path, outbox: Outbox, ledger: Ledger, charge: Charge, budget: Budget
) -> None:
    message = release_once(
        outbox, ledger, charge, budget, str(charge.round), lambda: os.urandom(64)
    )
    publish(folder, charge.round, message)


def broken_publish_first(
    folder: Path, outbox: Outbox, ledger: Ledger, charge: Charge, budget: Budget
) -> None:
    publish(folder, charge.round, os.urandom(64))
    ledger.charge(charge, budget)


def broken_made_again(
    folder: Path, outbox: Outbox, ledger: Ledger, charge: Charge, budget: Budget
) -> None:
    """Charges first, but makes a charged message anew after a crash: two releases for one
    charge.
    """
    message = os.urandom(64)
    ledger.charge(charge, budget)
    publish(folder, charge.round, message)


STYLES = {
    "release_once": as_designed,
    "publish_first": broken_publish_first,
    "made_again": broken_made_again,
}


def publish(folder: Path, round: int, message: bytes) -> None:
    with (folder / "published").open("a") as file:
        file.write(f"{round} {sha256(message).hexdigest()}\n")


def published(folder: Path) -> list[tuple[int, str]]:
    path = folder / "published"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines]


def arrived(folder: Path, round: int) -> bool:
    return (folder / f"arrived-{round}").exists()


def hidden_spends(folder: Path) -> list[tuple[int, str]]:
    """Distinct messages that were published beyond what the ledger holds a row for."""
    if not published(folder):
        return []
    with Ledger(folder / "ledger.sqlite", read_only=True) as ledger:
        paid = {row.round: row.message_sha256 for row in ledger.rows()}
    hidden = []
    for round, digest in dict.fromkeys(published(folder)):
        if round not in paid or paid[round] not in (None, digest):
            hidden.append((round, digest))
        elif paid[round] is None:  # charged without its message: good for one
            paid[round] = digest
    return hidden


# Other processes.


def charge_rounds(path: Path, name: str, rounds: int, budget: Budget, go: Path) -> None:
    """Charge rounds of a party, or of party "a" from two processes, until the budget is used up."""
    with Ledger(path) as ledger:
        while not go.exists():
            pass
        for round in range(1, rounds + 1):
            if name.startswith("shared"):
                if ledger.would_exceed([release(round, kind=name)], budget) is not None:
                    return
                try:
                    ledger.charge(release(round, kind=name), budget)
                except ValueError:
                    return
            else:
                ledger.charge(release(round, party=name), budget)


def charge_without_end(path: Path, published_path: Path) -> None:
    with Ledger(path) as ledger, published_path.open("a", buffering=1) as file:
        round = ledger.head().count
        while True:
            round += 1
            ledger.charge(release(round), FREE)
            file.write(f"{round}\n")


def fork_with_open_ledger(path: Path) -> None:
    """The child must not use the connection, the lock or the sums of its parent."""
    with Ledger(path) as ledger:
        ledger.charge(release(1), FREE)
        holder = threading.Thread(target=ledger._lock.acquire)
        holder.start()
        holder.join()
        child = os.fork()
        if child == 0:
            ledger.charge(release(2), FREE)
            os._exit(0 if ledger.verify().count == 2 else 3)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def fill_the_disk(folder: Path) -> None:
    """A file-size limit stands for a full disk: nothing half-written is taken for whole, and it
    resumes after.
    """
    with Ledger(folder / "ledger.sqlite") as ledger:
        outbox = Outbox(folder / "outbox")
        ledger.charge(release(1), FREE)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, unlimited[1]))
        errors = [
            refusal(lambda: ledger.charge(release(2), FREE)),
            refusal(lambda: outbox.put("x", bytes(4096))),
        ]
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        resumed = ledger.charge(release(2), FREE).row == 2 and ledger.verify().count == 2
        clean = outbox.pending() == [] and list((folder / "outbox").iterdir()) == []
        one_line = all("\n" not in error and "nothing was released" in error for error in errors)
        os._exit(0 if resumed and clean and one_line else 3)


def without_permission(folder: Path) -> None:
    """As a user who may read but not write: every operation is refused in one line."""
    ledger_of(folder, rounds=2)
    (folder / "ledger.sqlite").chmod(0o644)
    (folder / "ledger.sqlite.head").chmod(0o644)
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.setuid(65534)
    errors = [
        refusal(lambda: Ledger(folder / "ledger.sqlite")),
        refusal(lambda: Ledger(folder / "new.sqlite")),
        refusal(lambda: Outbox(folder / "outbox")),
    ]
    readable = Ledger(folder / "ledger.sqlite", read_only=True).verify().count == 2
    os._exit(0 if readable and all(error and "\n" not in error for error in errors) else 3)


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except LedgerError as error:
        return str(error)
    return ""


OLD_COLUMNS = [
    name
    for name in LedgerRow.__dataclass_fields__
    if name not in ("salt", "first_row", "checkpoint")
]


def old_ledger(folder: Path, rounds: int = 3) -> Path:
    """A ledger of version 2, as it was written before rows had salts; closed."""
    path = ledger_of(folder, rounds)
    with Ledger(path) as ledger:
        rows = ledger.rows()
    last = "0" * 64
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE checkpoints")
        for name in ("salt", "first_row", "checkpoint"):
            database.execute(f"ALTER TABLE releases DROP COLUMN {name}")
        for row in rows:
            fields = {name: getattr(row, name) for name in OLD_COLUMNS} | {"previous_hash": last}
            last = row_hash(fields)
            database.execute(
                "UPDATE releases SET previous_hash = ?, hash = ? WHERE row = ?",
                (fields["previous_hash"], last, row.row),
            )
        database.execute("PRAGMA user_version = 2")
    database.close()
    path.with_name("ledger.sqlite.head").write_text(json.dumps({"count": rounds, "hash": last}))
    return path


def charge_together(folder: Path, crash_at: str | None = None) -> None:
    """One round of three parties in one process, killed at a point; then it is written that the
    round was used.
    """
    crash_points._planned = crash_points._plan(crash_at)
    with Ledger(folder / "ledger.sqlite") as ledger:
        with ledger.together():
            for name in "abc":
                ledger.charge(release(1, party=name), budget_for(1))
        publish(folder, 1, b"the model after round 1")


def release_once(
    outbox: Outbox,
    ledger: Ledger,
    charge: Charge,
    budget: Budget,
    key: str,
    make_bytes: Callable[[], bytes],
    applied: Callable[[], Charge] | None = None,
) -> bytes:
    """One release in the order of ``releasing``: what was charged before, else what is made now."""
    with releasing(outbox, ledger, charge, budget, key) as made:
        if made.kept is None:
            made.message = make_bytes()
            made.charge = None if applied is None else applied()
    return bytes(made.message if made.kept is None else made.kept)
