"""What all runs together have released about one dataset.

In a run a record is with one party, but over many runs nobody can say with which: parties are renamed, and another seed
deals a table out anew. So every run counts for the party that it told most about, at each Renyi order: a bound for any
record, wherever it was.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from homo_dp.privacy.accounting import Epsilon, Renyi, epsilon, renyi, renyi_epsilon
from homo_dp.privacy.events import event_of

__all__ = ["Lifetime", "Releases", "renyi_of"]

Releases = Mapping[str, Mapping[str, Counter[str]]]  # run -> party -> text of an event -> how many times


class Lifetime:
    """Running sums over the runs of one dataset, unit and relation.

    >>> lifetime, event = Lifetime(), '{"noise_multiplier":10.0,"type":"GaussianDpEvent"}'
    >>> for run, party in [("1", "a"), ("1", "b"), ("2", "renamed")]:
    ...     lifetime.add(run, party, event)
    >>> lifetime.releases, bool(np.all(lifetime.renyi() == renyi({event: 2})))
    (3, True)
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Counter[str]]] = {}
        self._largest: dict[str, Renyi] = {}
        self._unseen: set[tuple[str, str]] = set()  # divergences cost time, and only some ledgers are asked for them

    def add(self, run: str, party: str, event: str) -> None:
        """Count one release."""
        self._runs.setdefault(run, {}).setdefault(party, Counter())[event] += 1
        self._unseen.add((run, party))

    @property
    def releases(self) -> int:
        """How many there were, of all runs and parties."""
        return sum(counts.total() for parties in self._runs.values() for counts in parties.values())

    def renyi(self, planned: Releases | None = None) -> Renyi:
        """Divergence at every order of all runs, and of what is planned on top."""
        for run, party in self._unseen:  # sums only grow, so a new one is the largest or changes nothing
            self._largest[run] = np.maximum(self._largest.get(run, 0.0), renyi(self._runs[run][party]))
        self._unseen.clear()
        with_plan = {run: self._largest_with(run, more) for run, more in (planned or {}).items()}
        total: Renyi = np.sum([renyi({}), *{**self._largest, **with_plan}.values()], axis=0)
        return total

    def epsilon(self, delta: float) -> Epsilon:
        """By RDP, and by PLD beside it, of the party that each run told most about at the order that RDP settled on."""
        total = self.renyi()
        by_rdp, order = renyi_epsilon(total, delta)
        worst: Counter[str] = Counter()
        for parties in self._runs.values():
            worst.update(max(parties.values(), key=lambda counts: float(renyi(counts)[order])))
        return Epsilon(epsilon(event_of(worst), delta).pld, by_rdp)

    def _largest_with(self, run: str, planned: Mapping[str, Counter[str]]) -> Renyi:
        known = self._runs.get(run, {})
        sums = [renyi(known.get(party, Counter()) + more) for party, more in planned.items()]
        largest: Renyi = np.max([self._largest.get(run, renyi({})), *sums], axis=0)
        return largest


def renyi_of(planned: Releases) -> Renyi:
    """Divergence at every order of what is planned alone."""
    return Lifetime().renyi(planned)
