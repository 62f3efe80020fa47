"""Sums over the rows of a ledger: what each run and each dataset has spent, and the epsilon that comes to."""

import collections
from collections import Counter
from collections.abc import Mapping, Sequence

from homo_dp.privacy.accounting import Epsilon, epsilon, epsilon_curve
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.events import event_of, from_json
from homo_dp.privacy.ledger_lifetime import Lifetime
from homo_dp.privacy.ledger_rows import Charge, LedgerRow, Scope

__all__ = ["Totals", "epsilon_after", "epsilon_of", "known_epsilon", "look_ahead"]

_Counts = Counter[str]  # text of an event -> how many rows hold it
_CACHED = 100_000
_AHEAD = 10_000  # rounds: who plans more has the rest looked up when they come, and memory does not grow with a plan


class Totals:
    """Running sums of verified rows, so that a charge costs the same however long the ledger is."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, ...], _Counts] = collections.defaultdict(Counter)
        self._relations: dict[tuple[str, ...], str] = {}
        self._lifetimes: dict[Scope, Lifetime] = collections.defaultdict(Lifetime)
        self._orders: dict[Scope, float] = {}
        self._last: dict[tuple[str, ...], str] = {}

    def add(self, row: LedgerRow) -> None:
        run = row.run, row.party, row.dataset, row.unit
        self._runs[(*run, row.observer)][row.event] += 1
        self._relations[run] = row.relation
        self._last[run] = row.event
        self._lifetimes[row.scope].add(row.run, row.party, row.event)
        if row.lifetime_order is not None:
            self._orders.setdefault(row.scope, row.lifetime_order)

    def run(self, charge: Charge, observer: str = "model_reader") -> _Counts:
        """What this run released about this party's dataset, as far as the observer can see it.

        What the aggregator sees, the reader of the model may learn as well, so the model reader's sum holds every
        row; a guarantee against the aggregator is about the aggregator's rows alone.
        """
        run = charge.run, charge.party, charge.dataset, charge.unit
        if self._relations.get(run, charge.relation) != charge.relation:
            raise LedgerError(
                f"relation={charge.relation} but run={charge.run} party={charge.party} dataset={charge.dataset} was "
                f"charged with relation={self._relations[run]}; use one relation for all releases of a run"
            )
        seen = ("aggregator",) if observer == "aggregator" else ("aggregator", "model_reader")
        return sum((self._runs[(*run, who)] for who in seen), Counter())

    def epsilon_after(self, charge: Charge) -> Epsilon:
        """Epsilon of the run with this release, against its observer.

        Rounds repeat one mechanism: after n in a row the next n are computed at once, if nobody prepared them.
        """
        event = charge.event_text
        before = self.run(charge, charge.observer)
        repeated = self._last.get((charge.run, charge.party, charge.dataset, charge.unit)) == event
        return epsilon_after(before, event, charge.delta, max(1, before[event]) if repeated else 1)

    def lifetime(self, scope: Scope) -> Lifetime:
        """What all runs released about this dataset, unit and relation."""
        return self._lifetimes[scope]

    def lifetime_order(self, scope: Scope) -> float | None:
        """The Renyi order that the first charge under a lifetime budget fixed."""
        return self._orders.get(scope)


def epsilon_of(counts: Mapping[str, int], delta: float) -> Epsilon:
    """Epsilon of all these releases, in one computation as calibration does it."""
    return epsilon(event_of(counts), delta)


def known_epsilon(counts: Mapping[str, int], delta: float) -> Epsilon | None:
    """Epsilon of all these releases if looking ahead has found it before."""
    curve, place = _known.get((delta, frozenset(counts.items())), (None, 0))
    return None if curve is None else curve[place]


_Key = tuple[float, frozenset[tuple[str, int]]]
# Of all ledgers of this process: parties with one mechanism pay for it once. A curve finds what it is asked for.
_known: dict[_Key, tuple[Sequence[Epsilon], int]] = {}


def epsilon_after(before: Mapping[str, int], event: str, delta: float, ahead: int = 1) -> Epsilon:
    """Epsilon of ``before`` and one more ``event``; if it has to be computed, the next ``ahead`` are at once."""
    key = _key(before, event, 1, delta)
    if key not in _known:
        look_ahead(before, event, delta, ahead)
    curve, place = _known[key]
    return curve[place]


def look_ahead(before: Mapping[str, int], event: str, delta: float, rounds: int) -> None:
    """Find epsilon after each of the next rounds and keep it for when they come; of very many, the first ones now."""
    rounds = min(rounds, _AHEAD)
    keys = [_key(before, event, done, delta) for done in range(1, rounds + 1)]
    if all(key in _known for key in keys):
        return
    curve = epsilon_curve(from_json(event), rounds, delta, event_of(before))
    if len(_known) + rounds > _CACHED:
        _known.clear()
    _known.update((key, (curve, place)) for place, key in enumerate(keys))
    curve[0]


def _key(before: Mapping[str, int], event: str, more: int, delta: float) -> _Key:
    return delta, frozenset((Counter(before) + Counter({event: more})).items())
