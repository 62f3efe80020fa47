"""The ledger: every release of a party, charged before it leaves, hash-chained and anchored, on local disk.

Order of a charge, and what a crash between two steps leaves behind:

1. one transaction: catch up with other processes, check the budget, insert the row   (crash: no row, nothing spent)
2. commit, on disk                                              (crash: row without head, repaired by whoever is next)
3. one more transaction: write the head of the last row there is                          (crash: as before or done)

The head is only written inside a write transaction and always for the newest row, so it never goes back, whichever
process writes it; and step 1 repairs it first, so a ledger is never more than one row ahead of its head.
"""

import contextlib
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from homo_dp.core.crash import crash_point
from homo_dp.privacy import ledger_budget
from homo_dp.privacy.accounting import Epsilon
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.privacy.ledger_chain import GENESIS, Head, check_head, follow, head_path, read_head, write_head
from homo_dp.privacy.ledger_lifetime import Releases, number_of
from homo_dp.privacy.ledger_rows import Budget, Charge, LedgerRow, Scope, row_hash
from homo_dp.privacy.ledger_store import Store
from homo_dp.privacy.ledger_totals import Totals, look_ahead

__all__ = ["Budget", "Charge", "Head", "Ledger", "LedgerRow", "Spent"]


@dataclass(frozen=True)
class Spent:
    """What all runs together have released about one dataset, unit and relation."""

    releases: int
    epsilon: Epsilon
    lifetime_order: float | None


class Ledger:
    """The releases of one or more parties in one file; several processes may use it at once.

    Guarantees:
        - ``charge`` checks the budget and inserts in one transaction and returns only after the row is on disk;
        - a release that would pass its budget raises ``BudgetExceeded`` and leaves no row;
        - a ledger that was cut, edited, thinned out or reordered raises ``LedgerError`` and takes no charge.

    >>> import tempfile
    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> release = Charge("run-1", "breast_cancer", "record", "add_or_remove_one", "a", 1, "update",
    ...                  GaussianDpEvent(4.0), delta=1e-5, sigma=4.0, observer="aggregator")
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(folder + "/ledger.sqlite") as ledger:
    ...     row = ledger.charge(release, Budget(epsilon=2.0))
    ...     advice = ledger.would_exceed([(replace(release, round=2), 99)], Budget(epsilon=2.0))
    >>> row.row, row.epsilon < 2.0, advice is None
    (1, True, False)
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._forget()
        if not read_only:
            with self._session(), self._store.writing():
                self._catch_up(repair=True)

    def charge(self, charge: Charge, budget: Budget) -> LedgerRow:
        """Put a release on the ledger, or raise ``BudgetExceeded``; publish only after this returned.

        The same run, party, round and kind again returns the row there is if it is the same release, else raises.
        """
        with self._session():
            with self._store.reading():
                self._catch_up(repair=False)
                known = self._known(charge)
            if known is None:  # the long part of the work, before others have to wait for it
                self._next_row(charge, budget)
            with self._store.writing():
                self._catch_up(repair=True)
                row = self._known(charge)
                if row is not None:
                    return row
                row = self._next_row(charge, budget)
                self._store.insert(row)
                crash_point("ledger.before_commit")
            crash_point("ledger.after_commit")
            with self._store.writing():
                self._catch_up(repair=True)
            crash_point("ledger.charged")
            return row

    def would_exceed(self, charges: Iterable[Charge | tuple[Charge, int]], budget: Budget) -> str | None:
        """Why these releases would pass the budget, None if they fit: advice before any data is touched.

        ``(charge, rounds)`` stands for that many rounds from ``charge.round`` on; what is charged already is not
        counted twice. The largest plan before a dataset's first release is what its lifetime filter is tuned for.
        """
        with self._session():
            with self._store.reading():
                self._catch_up(repair=False)
                planned = [self._open_rounds(item) for item in charges]
            planned = [(charge, count) for charge, count in planned if count]
            if len(planned) == 1 and planned[0][1] == 1 and budget.epsilon is not None:
                self._totals.epsilon_after(planned[0][0])  # a round's own check: cheap once it was looked ahead
            self._remember(planned)
            return ledger_budget.refusal(self._totals, planned, budget)

    def prepare(self, charge: Charge, rounds: int) -> None:
        """Compute the epsilons of the next rounds now, so that no round waits for one."""
        with self._session():
            with self._store.reading():
                self._catch_up(repair=False)
            if rounds > 0:
                counts = self._totals.run(charge, charge.observer)
                look_ahead(counts, charge.event_text, charge.delta, rounds)

    def charged(self, run: str, party: str, round: int, kind: str) -> LedgerRow | None:
        """The row of a release, None if it was never charged."""
        with self._session(), self._store.reading():
            self._catch_up(repair=False)
            return self._checked(self._store.find(run, party, round, kind))

    def holds_message(self, message_sha256: str) -> bool:
        """Whether some release was charged for exactly this message."""
        with self._session(), self._store.reading():
            self._catch_up(repair=False)
            return self._store.holds_message(message_sha256)

    def rows(self, run: str | None = None, party: str | None = None) -> list[LedgerRow]:
        """The rows of a run and a party (None: of all), in order, after checking the whole ledger."""
        with self._session():
            return [row for row in self._walk() if run in (None, row.run) and party in (None, row.party)]

    def extract(self, run: str) -> list[dict[str, Any]]:
        """The rows of one run with plain names, for its run folder."""
        return [row.to_dict() for row in self.rows(run)]

    def rows_json(self, run: str | None = None, party: str | None = None) -> str:
        """The rows as a JSON array, one row a line."""
        lines = [json.dumps(row.to_dict(), allow_nan=False) for row in self.rows(run, party)]
        return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"

    def spent(self, dataset: str, unit: str, relation: str, delta: float) -> Spent:
        """What all runs released about a dataset: epsilon by RDP, and by PLD beside it."""
        scope = dataset, unit, relation
        with self._session():
            with self._store.reading():
                self._catch_up(repair=False)
            lifetime = self._totals.lifetime(scope)
            return Spent(lifetime.releases, lifetime.epsilon(delta), self._totals.lifetime_order(scope))

    def verify(self) -> Head:
        """Check every row, their order and the head, and return it; raises ``LedgerError`` naming the row."""
        with self._session():
            reached = GENESIS
            for row in self._walk():
                reached = Head(row.row, row.hash)
            return reached

    def head(self) -> Head:
        """Where the ledger ends now."""
        with self._session(), self._store.reading():
            self._catch_up(repair=False)
            return self._reached

    def extends(self, head: Head) -> bool:
        """Whether this ledger went through that head: false for a ledger that was rolled back or swapped."""
        with self._session(), self._store.reading():
            self._catch_up(repair=False)
            return head == GENESIS or self._store.hash_at(head.count) == head.hash

    def close(self) -> None:
        """Release the file; the ledger cannot be used afterwards."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _forget(self) -> None:
        """Open the file and know nothing about it yet."""
        if not self.read_only and not os.path.exists(self.path):  # False too where it may not be looked at
            head = read_head(self.path)
            if head is not None and head.count > 0:
                raise LedgerError(
                    f"ledger={self.path} is missing but {head_path(self.path).name} says it has {head.count} rows, "
                    "row=1 and all after it are gone; restore it from a backup that is not older"
                )
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._store = Store(self.path, read_only=self.read_only)
        self._reached = GENESIS
        self._counted = -1  # the version of the file whose rows were counted
        self._totals = Totals()
        self._plans: dict[Scope, Releases] = {}

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        """One thread at a time, and never SQLite's connection of another process."""
        if os.getpid() != self._process:
            _of_the_parent.append(self._store)  # closing it here would drop what the parent is doing
            self._forget()
        with self._lock:
            yield

    def _catch_up(self, *, repair: bool) -> None:
        """Read and check the rows since the last look, and the head against them; inside a transaction."""
        reached = self._reached
        if reached.count and self._store.hash_at(reached.count) != reached.hash:
            raise LedgerError(f"ledger={self.path} row={reached.count} was changed or deleted while it was in use")
        for row in self._store.rows_after(reached.count):
            self._reached = follow(self._reached, row, self.path)
            self._totals.add(row)
        if self._anchor(self._reached) and repair:
            write_head(self.path, self._reached)

    def _anchor(self, reached: Head) -> bool:
        """Whether the head has to be written; raises if rows are gone or it disagrees."""
        version = self._store.version()
        if version != self._counted:  # counting takes longer the more rows there are; our own do not need it
            if self._store.count() != reached.count:
                raise LedgerError(
                    f"ledger={self.path} has lost a row before row={reached.count}; run budget ledger verify"
                )
            self._counted = version
        head = read_head(self.path)
        at_head = GENESIS.hash if head is None or head.count == 0 else self._store.hash_at(head.count)
        return check_head(reached, head, at_head, self.path)

    def _walk(self) -> Iterator[LedgerRow]:
        """Every row, checked from the first on."""
        with self._store.reading():
            reached = GENESIS
            for row in self._store.rows_after(0):
                reached = follow(reached, row, self.path)
                yield row
            self._counted = -1
            self._anchor(reached)

    def _known(self, charge: Charge) -> LedgerRow | None:
        """The row of this very release; raises if its run, party, round and kind were charged for another."""
        row = self._checked(self._store.find(*charge.key))
        if row is None:
            return None
        for name, value in _columns(charge).items():
            if getattr(row, name) != value:
                raise LedgerError(
                    f"{name}={value} but run={row.run} party={row.party} round={row.round} kind={row.kind} was charged "
                    f"with {name}={getattr(row, name)} in row={row.row}; a new release needs a new round or kind"
                )
        return row

    def _checked(self, row: LedgerRow | None) -> LedgerRow | None:
        if row is not None and row.hash != row_hash(vars(row)):
            raise LedgerError(f"ledger={self.path} row={row.row} was edited: it does not match its own hash")
        return row

    def _next_row(self, charge: Charge, budget: Budget) -> LedgerRow:
        """The row that this release would be; raises if it would pass the budget."""
        event = charge.event_text
        spent = self._totals.epsilon_after(charge)
        self._refuse(ledger_budget.run_refusal(self._totals.run(charge) + Counter([event]), charge, budget))
        release: Releases = {charge.run: {charge.party: Counter([event])}}
        plan = self._plans.get(charge.scope, release)
        order = ledger_budget.lifetime_order(self._totals, charge.scope, plan, budget)
        self._refuse(ledger_budget.lifetime_refusal(self._totals, charge, release, order, budget))
        if not math.isfinite(spent.quoted):
            raise PrivacyError(f"event={event:.80} has no finite epsilon at delta={charge.delta:g}; add more noise")
        unhashed = LedgerRow(
            row=self._reached.count + 1,
            **_columns(charge),
            epsilon_pld=spent.pld,
            epsilon_rdp=spent.rdp,
            time=datetime.now(UTC).isoformat(timespec="microseconds"),
            lifetime_order=order,
            previous_hash=self._reached.hash,
            hash="",
        )
        return replace(unhashed, hash=row_hash(vars(unhashed)))

    def _refuse(self, reason: str | None) -> None:
        if reason is not None:
            raise BudgetExceeded(f"{reason}; nothing was released (ledger={self.path})")

    def _remember(self, planned: list[tuple[Charge, int]]) -> None:
        for scope, plan in ledger_budget.by_scope(planned).items():
            if number_of(plan) >= number_of(self._plans.get(scope, {})):
                self._plans[scope] = plan

    def _open_rounds(self, item: Charge | tuple[Charge, int]) -> tuple[Charge, int]:
        charge, rounds = (item, 1) if isinstance(item, Charge) else item
        if rounds < 0:
            raise PrivacyError(f"rounds={rounds} must be >= 0")
        done = self._store.count_rounds(charge.run, charge.party, charge.kind, charge.round, rounds)
        return charge, rounds - done


_of_the_parent: list[Store] = []


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
