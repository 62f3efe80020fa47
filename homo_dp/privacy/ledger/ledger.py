"""The ledger: every release of a party, charged before it leaves, hash-chained and anchored, on
local disk.

Order of a charge, and what a crash between two steps leaves behind:

1. one transaction: catch up with other processes, check the budget, insert the row   (crash: no
   row, nothing spent)
2. commit, on disk                                              (crash: row without head, repaired
   by the next opener)
3. one more transaction: write the head of the last row there is                          (crash: as
   before or done)

The head is only written inside a write transaction and always for the newest row, so it never goes
back, whichever process writes it; and step 1 repairs it first, so a ledger is never more than one
commit ahead of its head.

Charges of one process that are made ``together`` share the three steps: their rows are one commit.

Now and then a row carries the digest of a checkpoint: the sums over all rows before it, kept beside
the rows. The row is chained like every other, so opening the ledger may start from these sums
instead of adding up all rows again.
"""

import contextlib
import logging
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from homo_dp.core.crash_points import crash_point
from homo_dp.privacy.accounting.accountants import Epsilon
from homo_dp.privacy.accounting.filters import epsilon_left
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.privacy.ledger import budget as budgets
from homo_dp.privacy.ledger.checked_rows import CheckedRows, checkpoint_digest
from homo_dp.privacy.ledger.hash_chain import GENESIS, Head, head_path, read_head
from homo_dp.privacy.ledger.lifetime import Releases, number_of
from homo_dp.privacy.ledger.rows import MARK, Budget, Charge, LedgerRow, row_hash
from homo_dp.privacy.ledger.store import LedgerFile
from homo_dp.privacy.ledger.totals import look_ahead

__all__ = ["Ledger", "Spent"]

log = logging.getLogger(__name__)
ROWS_PER_CHECKPOINT = 1000  # opening reads the rows since the last one: some 20 ms


@dataclass(frozen=True)
class Spent:
    """What all runs together have released about one dataset."""

    runs: int
    releases: int
    epsilon: Epsilon
    lifetime_order: float | None
    # different units or relations: epsilon is then for one record, or one user's, replaced
    mixed: bool


class _Waiting(NamedTuple):
    """A charge that is counted and will be on disk when the others of its commit are."""

    charge: Charge
    budget: Budget
    row: LedgerRow


class Ledger:
    """The releases of one or more parties in one file; several processes may use it at once.

    Guarantees:
        - ``charge`` checks the budget and inserts in one transaction and returns only after the row
          is on disk;
        - a release that would pass its budget raises ``BudgetExceeded`` and leaves no row;
        - a ledger that was cut, edited, thinned out or reordered since its last checkpoint raises
          ``LedgerError`` and takes no charge; ``verify`` finds it in older rows too, whose sums the
          checkpoint holds.

    >>> import tempfile
    >>> from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
    >>> release = Charge("run-1", "breast_cancer", "record", "add_or_remove_one", "a", 1, "update",
    ...                  GaussianDpEvent(4.0), delta=1e-5, sigma=4.0, observer="aggregator")
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(folder + "/ledger.sqlite") as ledger:
    ...     row = ledger.charge(release, Budget(epsilon=2.0))
    ...     advice = ledger.would_exceed([(replace(release, round=2), 99)], Budget(epsilon=2.0))
    >>> row.row, row.epsilon < 2.0, advice is None
    (1, True, False)
    """

    # charges that wait for the end of a together block
    _pending: dict[tuple[str, str, int, str], _Waiting] | None
    _checkpoint_text: str | None  # the checkpoint that the first of them carries

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._forget()
        if not read_only:
            with self._session():
                self._ready()

    def charge(self, charge: Charge, budget: Budget) -> LedgerRow:
        """Put a release on the ledger, or raise ``BudgetExceeded``; publish only after this
        returned.

        The same run, party, round and kind again returns the row there is if it is the same
        release, else raises.
        """
        with self._session():
            if self._pending is not None:
                return self._charge_later(charge, budget)
            with self._store.reading():
                self._seen.catch_up(repair=False)
                known = self._known(charge)
            # the slow part, done before the transaction that other processes wait for
            if known is None:
                self._next_row(charge, budget)
            with self._store.writing():
                self._seen.catch_up(repair=True)
                row = self._known(charge)
                if row is not None:
                    return row
                row = self._next_row(charge, budget)
                self._insert([row])
                crash_point("ledger.before_commit")
            self._seen.anchor_newest()
            return row

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Charges inside are checked at once and put on disk by one commit when the block ends.

        For the parties of a simulation, whose answers of one round go to an aggregator in the same
        process: nothing that was charged inside may leave the process, or be used, before the block
        has ended. If the commit fails, nothing was charged and the block raises; if the block
        raises, what it charged is kept.
        """
        with self._session():
            if self._pending is not None:
                raise LedgerError(
                    f"ledger={self.path} together() was called inside together(); use one block"
                )
            self._pending = {}
            try:
                yield
            finally:
                pending, self._pending = list(self._pending.values()), None
                if pending:
                    self._commit(pending)

    @property
    def waiting(self) -> bool:
        """Whether charges made now are on disk only later, when a ``together`` block ends."""
        return self._pending is not None

    def would_exceed(
        self, charges: Iterable[Charge | tuple[Charge, int]], budget: Budget
    ) -> str | None:
        """Why these releases would pass the budget, None if they fit: advice before any data is
        touched.

        ``(charge, rounds)`` stands for that many rounds from ``charge.round`` on; what is charged
        already is not counted twice. The largest plan before a dataset's first release is what its
        lifetime filter is tuned for.
        """
        with self._session():
            with self._looking():
                planned = [self._open_rounds(item) for item in charges]
            planned = [(charge, count) for charge, count in planned if count]
            if len(planned) == 1 and planned[0][1] == 1 and budget.epsilon is not None:
                # The check of a single round: its epsilon was computed ahead.
                self._seen.totals.epsilon_after(planned[0][0])
            self._remember(planned)
            return budgets.refusal(self._seen.totals, planned, budget)

    def prepare(self, charge: Charge, rounds: int) -> None:
        """Compute the epsilons of the next rounds now, so that no round waits for one."""
        with self._session():
            with self._looking():
                pass
            if rounds > 0:
                counts = self._seen.totals.run(charge, charge.observer)
                look_ahead(counts, charge.event_text, charge.delta, rounds)

    def charged(self, run: str, party: str, round: int, kind: str) -> LedgerRow | None:
        """The row of a release, None if it was never charged."""
        with self._session(), self._looking():
            return self._find((run, party, round, kind))

    def rows(self, run: str | None = None, party: str | None = None) -> list[LedgerRow]:
        """The rows of a run and a party, in order. Without a run the whole ledger is checked,
        else each of these.
        """
        with self._session():
            if run is None:
                return [row for row in self._seen.walk() if party in (None, row.party)]
            with self._looking():
                found = [self._seen.checked(row) for row in self._store.rows_of_run(run)]
            return [row for row in found if party in (None, row.party)]

    def last_rows(self) -> list[LedgerRow]:
        """The last release of every run, party and observer: its epsilon is that of the run
        against that observer.
        """
        with self._session(), self._looking():
            return [self._seen.checked(row) for row in self._store.last_rows() if row.is_release]

    def runs(self) -> dict[str, tuple[str, bool]]:
        """When each run was first charged, and whether all its noise was private."""
        with self._session(), self._looking():
            return self._store.runs()

    def extract(self, run: str) -> list[dict[str, Any]]:
        """The rows of one run with plain names, for its run folder."""
        return [row.to_dict() for row in self.rows(run)]

    def spent(self, dataset: str, delta: float) -> Spent:
        """What all runs released about a dataset, of all units and relations: epsilon by RDP,
        and by PLD beside it.
        """
        with self._session():
            with self._looking():
                pass
            lifetime, order = (
                self._seen.totals.lifetime(dataset),
                self._seen.totals.lifetime_order(dataset),
            )
            return Spent(
                lifetime.runs, lifetime.releases, lifetime.epsilon(delta), order, lifetime.mixed
            )

    def epsilon_left(self, dataset: str, budget: Budget) -> float | None:
        """Epsilon by RDP of one further Gaussian release about a dataset that the lifetime budget
        would still allow; None without a lifetime budget.
        """
        if budget.lifetime_epsilon is None or budget.lifetime_delta is None:
            return None
        with self._session():
            with self._looking():
                pass
            lifetime = self._seen.totals.lifetime(dataset)
            return epsilon_left(
                lifetime.renyi(),
                self._seen.totals.lifetime_order(dataset),
                budget.lifetime_epsilon,
                budget.lifetime_delta,
                doubled=lifetime.mixed,
            )

    def verify(self) -> Head:
        """Check every row, their order, the checkpoint and the head, and return it; raises
        naming the row.
        """
        with self._session():
            reached = GENESIS
            for row in self._seen.walk():
                reached = Head(row.row, row.hash)
            return reached

    def head(self) -> Head:
        """Where the ledger ends now, on disk."""
        with self._session(), self._looking():
            return self._before_pending()

    def extends(self, head: Head) -> bool:
        """Whether this ledger went through that head: false for a ledger that was rolled back or
        swapped.
        """
        with self._session(), self._looking():
            return head == GENESIS or self._store.hash_at(head.count) == head.hash

    def close(self) -> None:
        """Release the file; the ledger cannot be used afterwards."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _forget(self) -> None:
        """Open the file and know nothing about it yet."""
        # also False where this user may not look at it
        if not self.read_only and not os.path.exists(self.path):
            head = read_head(self.path)
            if head is not None and head.count > 0:
                raise LedgerError(
                    f"ledger={self.path} is missing but {head_path(self.path).name} says it has "
                    f"{head.count} rows, row=1 and all after it are gone; restore it from a "
                    "backup that is not older. To start a trial afresh, remove "
                    f"{head_path(self.path)} too, or name another privacy.ledger: what was spent "
                    "so far is then not counted"
                )
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._store = LedgerFile(self.path, read_only=self.read_only)
        self._plans: dict[str, Releases] = {}
        self._planned: dict[str, int] = {}  # how many releases each of them has
        self._pending = None
        self._start_over()

    def _start_over(self) -> None:
        """Know nothing about the rows."""
        self._seen = CheckedRows(self._store)
        self._checkpoint_text = None

    def _ready(self) -> None:
        """Check the rows that are there, repair the head after a crash, and bring an old file to
        this version.
        """
        with self._store.writing():
            self._seen.catch_up(repair=True)
            marked = self._store.old
            if marked:
                self._store.migrate()
                if self._seen.reached.count:
                    self._insert([self._mark()])
        if marked:
            log.warning(
                "ledger=%s was of version 2: from now on every row has a secret salt in its hash%s",
                self.path,
                (
                    f", row={self._seen.reached.count + 1} marks the place"
                    if self._seen.reached.count
                    else ""
                ),
            )
            self._seen.anchor_newest()

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        """One thread at a time, and never SQLite's connection of another process."""
        if os.getpid() != self._process:
            # closing it here would drop what the parent is doing
            _of_the_parent.append(self._store)
            self._forget()
        with self._lock:
            yield

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """A view of the rows that are there; with charges on the way, the one they were made on."""
        if self._pending:
            yield
            return
        with self._store.reading():
            self._seen.catch_up(repair=False)
            yield

    def _known(self, charge: Charge) -> LedgerRow | None:
        """The row of this very release; raises if its run, party, round and kind were charged
        for another.
        """
        row = self._find(charge.key)
        if row is None:
            return None
        for name, value in _columns(charge).items():
            if getattr(row, name) != value:
                raise LedgerError(
                    f"{name}={value} but run={row.run} party={row.party} round={row.round} "
                    f"kind={row.kind} was charged with {name}={getattr(row, name)} in "
                    f"row={row.row}; a new release needs a new round or kind"
                )
        return row

    def _find(self, key: tuple[str, str, int, str]) -> LedgerRow | None:
        if self._pending and key in self._pending:
            return self._pending[key].row
        found = self._store.find(*key)
        return None if found is None else self._seen.checked(found)

    def _next_row(self, charge: Charge, budget: Budget) -> LedgerRow:
        """The row that this release would be; raises if it would pass the budget."""
        spent = self._seen.totals.epsilon_after(charge)
        order = self._fitting_order(charge, budget) if charge.is_release else None
        if not math.isfinite(spent.quoted):
            raise PrivacyError(
                f"event={charge.event_text:.80} has no finite epsilon at delta={charge.delta:g}; "
                "add more noise"
            )
        return self._chained(
            **_columns(charge), epsilon_pld=spent.pld, epsilon_rdp=spent.rdp, lifetime_order=order
        )

    def _fitting_order(self, charge: Charge, budget: Budget) -> float | None:
        """The order of the lifetime filter that this release fits, None without one; raises if
        it passes a budget.
        """
        counts = self._seen.totals.run(charge) + Counter([charge.event_text])
        self._refuse(budgets.run_refusal(counts, charge, budget))
        release: Releases = {charge.run: {charge.party: Counter([charge.spend])}}
        plan = self._plans.get(charge.dataset, release)
        order = budgets.lifetime_order(self._seen.totals, charge.dataset, plan, budget)
        self._refuse(budgets.lifetime_refusal(self._seen.totals, charge, release, order, budget))
        return order

    def _mark(self) -> LedgerRow:
        """A row that releases nothing: without it the hash of an old row, which has no salt,
        would be shown as head.
        """
        return self._chained(
            run="homo_dp",
            dataset="homo_dp",
            unit="record",
            relation="add_or_remove_one",
            party="homo_dp",
            round=0,
            kind="first salt",
            event=MARK,
            delta=0.0,
            epsilon_pld=0.0,
            epsilon_rdp=0.0,
            sigma=0.0,
            observer="aggregator",
            noise="none",
            message_sha256=None,
            lifetime_order=None,
        )

    def _chained(self, **values: Any) -> LedgerRow:
        """A row with these values after the last one, with a fresh salt, and a checkpoint if it
        is time for one.
        """
        first = self._before_pending().count + 1
        number = self._seen.reached.count + 1
        due = (
            number == first
            and self._seen.reached.count - self._seen.checkpointed >= ROWS_PER_CHECKPOINT
        )
        unhashed = LedgerRow(
            row=number,
            **values,
            time=datetime.now(UTC).isoformat(timespec="microseconds"),
            previous_hash=self._seen.reached.hash,
            hash="",
            salt=secrets.token_hex(16),
            first_row=first,
            checkpoint=(
                checkpoint_digest(self._seen.totals.to_text(), self._seen.reached) if due else None
            ),
        )
        return replace(unhashed, hash=row_hash(vars(unhashed)))

    def _insert(self, rows: list[LedgerRow], totals: str | None = None) -> None:
        """Put rows of one commit into the file, with the checkpoint that the first of them may
        carry.
        """
        self._store.insert(rows)
        if rows[0].checkpoint is not None:
            self._store.keep_checkpoint(
                rows[0].row, self._seen.totals.to_text() if totals is None else totals
            )

    def _charge_later(self, charge: Charge, budget: Budget) -> LedgerRow:
        """Check a charge and count it in memory, until the block of ``together`` ends."""
        with self._looking():
            pass
        return self._count_charge(charge, budget)

    def _count_charge(self, charge: Charge, budget: Budget) -> LedgerRow:
        row = self._known(charge)
        if row is None:
            row = self._next_row(charge, budget)
            if row.checkpoint is not None:
                self._checkpoint_text = self._seen.totals.to_text()
            self._pending = {} if self._pending is None else self._pending
            self._pending[charge.key] = _Waiting(charge, budget, row)
            self._seen.take(Head(row.row, row.hash), row)
        return row

    def _commit(self, pending: list[_Waiting]) -> None:
        """Put charges that were made together on disk; if others have written meanwhile, check
        them all again.
        """
        first = pending[0].row
        try:
            with self._store.writing():
                last = self._store.last()
                if last == (first.row - 1, first.previous_hash) and self._seen.anchored:
                    self._insert([each.row for each in pending], self._checkpoint_text)
                else:
                    self._start_over()
                    self._seen.catch_up(repair=True)
                    for each in pending:
                        self._count_charge(each.charge, each.budget)
                    again = [each.row for each in (self._pending or {}).values()]
                    if again:
                        self._insert(again, self._checkpoint_text)
                crash_point("ledger.before_commit")
        except BaseException:
            self._start_over()  # what was counted in memory is not on disk
            raise
        finally:
            self._pending = None
        self._seen.anchor_newest()

    def _before_pending(self) -> Head:
        """Where the rows on disk end."""
        if not self._pending:
            return self._seen.reached
        first = next(iter(self._pending.values())).row
        return Head(first.row - 1, first.previous_hash)

    def _refuse(self, reason: str | None) -> None:
        if reason is not None:
            raise BudgetExceeded(f"{reason}; nothing was released (ledger={self.path})")

    def _remember(self, planned: list[tuple[Charge, int]]) -> None:
        for dataset, plan in budgets.by_dataset(planned).items():
            if number_of(plan) >= self._planned.get(dataset, 0):
                self._plans[dataset], self._planned[dataset] = plan, number_of(plan)

    def _open_rounds(self, item: Charge | tuple[Charge, int]) -> tuple[Charge, int]:
        charge, rounds = (item, 1) if isinstance(item, Charge) else item
        if rounds < 0:
            raise PrivacyError(f"rounds={rounds} must be >= 0")
        done = self._store.count_rounds(charge.run, charge.party, charge.kind, charge.round, rounds)
        waiting = self._pending or {}
        if rounds == 1:
            return charge, 1 - done - (charge.key in waiting)
        for run, party, number, kind in waiting:
            same = (run, party, kind) == (charge.run, charge.party, charge.kind)
            done += same and charge.round <= number < charge.round + rounds
        return charge, rounds - done


_of_the_parent: list[LedgerFile] = []


def _columns(charge: Charge) -> dict[str, Any]:
    return {
        "run": charge.run,
        "dataset": charge.dataset,
        "unit": charge.unit,
        "relation": charge.relation,
        "party": charge.party,
        "round": charge.round,
        "kind": charge.kind,
        "event": charge.event_text,
        "delta": float(charge.delta),
        "sigma": float(charge.sigma),
        "observer": charge.observer,
        "noise": charge.noise,
        "message_sha256": charge.message_sha256,
    }
