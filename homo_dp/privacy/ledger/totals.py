"""Sums over the rows of a ledger: what each run and each dataset has spent, and the epsilon that
comes to.
"""

from __future__ import annotations

import collections
import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from homo_dp.privacy.accounting.accountants import Epsilon, epsilon, epsilon_curve
from homo_dp.privacy.accounting.events import Counts, EventText, event_of, from_json
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger.lifetime import Lifetime
from homo_dp.privacy.ledger.rows import Charge, LedgerRow, Spend

__all__ = ["Totals", "epsilon_after", "epsilon_of", "known_epsilon", "look_ahead"]

_CACHED = 100_000
# rounds; those beyond are computed when they come, so that memory does not grow with a plan
_AHEAD = 10_000


class Entry(NamedTuple):
    """What rows are counted by: all that budgets and epsilons depend on."""

    run: str
    party: str
    dataset: str
    unit: str
    relation: str
    observer: str
    event: EventText

    @property
    def spend(self) -> Spend:
        """What was spent, and for which neighbours."""
        return Spend(self.event, self.unit, self.relation)


class Totals:
    """Running sums of verified rows, so that a charge costs the same however long the ledger is."""

    def __init__(self) -> None:
        self._tally: dict[Entry, int] = {}  # the entry that grew last stands last
        self._runs: dict[tuple[str, str], list[Entry]] = collections.defaultdict(list)
        self._about: dict[tuple[str, str], Entry] = {}  # the last of each run and party
        self._lifetimes: dict[str, Lifetime] = {}  # of the datasets that somebody has asked for
        self._orders: dict[str, float] = {}

    def add(self, row: LedgerRow) -> None:
        """Count a row."""
        if not row.is_release:
            return
        entry = Entry(
            row.run, row.party, row.dataset, row.unit, row.relation, row.observer, row.event
        )
        self._count(entry, 1)
        if row.lifetime_order is not None:
            self._orders.setdefault(row.dataset, row.lifetime_order)

    def run(self, charge: Charge, observer: str = "model_reader") -> Counter[EventText]:
        """What this run released about this party's data, as far as the observer can see it.

        What the aggregator sees, the reader of the model may learn as well, so the model reader's
        sum holds every row; a guarantee against the aggregator is about the aggregator's rows
        alone.
        """
        last = self._about.get((charge.run, charge.party))
        for name in ("dataset", "unit", "relation"):
            if last is not None and getattr(last, name) != getattr(charge, name):
                raise LedgerError(
                    f"{name}={getattr(charge, name)} but run={charge.run} party={charge.party} was "
                    f"charged with {name}={getattr(last, name)}, and under another its total "
                    f"would start anew; {_ONE[name]}"
                )
        counts = Counter[EventText]()
        for entry in self._runs.get((charge.run, charge.party), ()):
            if observer != "aggregator" or entry.observer == "aggregator":
                counts[entry.event] += self._tally[entry]
        return counts

    def epsilon_after(self, charge: Charge) -> Epsilon:
        """Epsilon of the run with this release, against its observer.

        Rounds repeat one mechanism: after n equal ones the next n are computed at once, unless
        ``look_ahead`` did it.
        """
        event = charge.event_text
        before = self.run(charge, charge.observer)
        last = self._about.get((charge.run, charge.party))
        repeated = last is not None and last.event == event
        return epsilon_after(before, event, charge.delta, max(1, before[event]) if repeated else 1)

    def lifetime(self, dataset: str) -> Lifetime:
        """What all runs released about this dataset."""
        if dataset not in self._lifetimes:
            lifetime = self._lifetimes[dataset] = Lifetime()
            for entry, times in self._tally.items():
                if entry.dataset == dataset:
                    lifetime.add(entry.run, entry.party, entry.spend, times)
        return self._lifetimes[dataset]

    def lifetime_order(self, dataset: str) -> float | None:
        """The Renyi order that the first charge under a lifetime budget fixed."""
        return self._orders.get(dataset)

    def to_text(self) -> str:
        """All sums, as a checkpoint keeps them: the same rows give the same text."""
        words: dict[str, int] = {}
        entries = [
            [*(words.setdefault(word, len(words)) for word in entry), n]
            for entry, n in self._tally.items()
        ]
        return json.dumps(
            {"words": list(words), "entries": entries, "orders": self._orders},
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Totals:
        """The sums that ``to_text`` wrote down; ValueError for anything else."""
        totals = cls()
        try:
            tree = json.loads(text)
            words = tree["words"]
            for *entry, times in tree["entries"]:
                totals._count(Entry._make(map(words.__getitem__, entry)), int(times))
            totals._orders = {
                str(dataset): float(order) for dataset, order in tree["orders"].items()
            }
        except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return totals

    def _count(self, entry: Entry, times: int) -> None:
        before = self._tally.pop(entry, 0)
        self._tally[entry] = before + times
        if not before:
            self._runs[entry.run, entry.party].append(entry)
        self._about[entry.run, entry.party] = entry
        if entry.dataset in self._lifetimes:
            self._lifetimes[entry.dataset].add(entry.run, entry.party, entry.spend, times)


_ONE = {
    "dataset": "keep data.name until the run is over",
    "unit": "use one unit for all releases of a run",
    "relation": "use one relation for all releases of a run",
}


def epsilon_of(counts: Counts, delta: float) -> Epsilon:
    """Epsilon of all these releases, in one computation as calibration does it."""
    return epsilon(event_of(counts), delta)


def known_epsilon(counts: Counts, delta: float) -> Epsilon | None:
    """Epsilon of all these releases if looking ahead has found it before."""
    curve, place = _known.get((delta, frozenset(counts.items())), (None, 0))
    return None if curve is None else curve[place]


_Key = tuple[float, frozenset[tuple[EventText, int]]]
# Shared by all ledgers of this process, so that parties with one mechanism compute it once. A curve
# is lazy.
_known: dict[_Key, tuple[Sequence[Epsilon], int]] = {}


def epsilon_after(before: Counts, event: EventText, delta: float, ahead: int = 1) -> Epsilon:
    """Epsilon of ``before`` and one more ``event``; if it has to be computed, the next ``ahead``
    are at once.
    """
    key = _key(before, event, 1, delta)
    if key not in _known:
        look_ahead(before, event, delta, ahead)
    curve, place = _known[key]
    return curve[place]


def look_ahead(before: Counts, event: EventText, delta: float, rounds: int) -> None:
    """Compute epsilon after each of the next rounds, at most ``_AHEAD``, and keep it for when
    they come.
    """
    rounds = min(rounds, _AHEAD)
    keys = [_key(before, event, done, delta) for done in range(1, rounds + 1)]
    if all(key in _known for key in keys):
        return
    curve = epsilon_curve(from_json(event), rounds, delta, event_of(before))
    if len(_known) + rounds > _CACHED:
        _known.clear()
    _known.update((key, (curve, place)) for place, key in enumerate(keys))
    curve[0]


def _key(before: Counts, event: EventText, more: int, delta: float) -> _Key:
    return delta, frozenset((Counter(before) + Counter({event: more})).items())
