"""What all runs together have released about one dataset, whatever their unit, relation and
mechanism.

There is one lifetime budget: an aggregator that chooses another mechanism must not find a fresh
one. As long as all releases are about the same unit and relation they are added up as they are.
Once they differ, all are counted for the strongest of the neighbours: one record, or all that one
user has, replaced by another. What was accounted for adding or removing one is then counted at
twice the distance (replaced is removed and added), what was accounted for replacing as it is. A
user-level release counted so holds for each record of the user too, since a record more or less is
one of the ways to change what a user has.

In a run a record is with one party, but over many runs it is not known with which: parties are
renamed, and another seed splits a table differently. So every run counts, at each Renyi order, for
the party that it told most about. That bounds the loss of every record, wherever it was.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from homo_dp.privacy.accounting.accountants import Epsilon, Renyi, epsilon, renyi, renyi_epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from homo_dp.privacy.accounting.events import (
    DpEvent,
    EventText,
    event_of,
    from_json,
    gaussian_multiplier,
    parts,
    to_json,
)
from homo_dp.privacy.ledger.rows import Spend

__all__ = ["Lifetime", "Releases", "number_of", "renyi_of"]

# run -> party -> what was spent -> how many times
Releases = Mapping[str, Mapping[str, Counter[Spend]]]


class Lifetime:
    """Running sums over the runs of one dataset.

    >>> lifetime, event = Lifetime(), '{"noise_multiplier":10.0,"type":"GaussianDpEvent"}'
    >>> for run, party in [("1", "a"), ("1", "b"), ("2", "renamed")]:
    ...     lifetime.add(run, party, Spend(event, "record", "add_or_remove_one"))
    >>> lifetime.releases, bool(np.all(lifetime.renyi() == renyi({event: 2})))
    (3, True)
    >>> lifetime.add("3", "a", Spend(event, "record", "replace_one"))  # now each of the others counts four times
    >>> bool(np.allclose(lifetime.renyi(), renyi({event: 2 * 4 + 1})))
    True
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Counter[Spend]]] = {}
        self._neighbours: set[tuple[str, str]] = set()  # units and relations
        self._sums = {
            mixed: _Largest(functools.partial(_divergence, mixed=mixed)) for mixed in (False, True)
        }

    def add(self, run: str, party: str, spend: Spend, times: int = 1) -> None:
        """Count a release."""
        self._runs.setdefault(run, {}).setdefault(party, Counter())[spend] += times
        self._neighbours.add((spend.unit, spend.relation))
        for sums in self._sums.values():
            sums.unseen.add((run, party))

    @property
    def runs(self) -> int:
        """How many there were."""
        return len(self._runs)

    @property
    def releases(self) -> int:
        """How many there were, of all runs and parties."""
        return number_of(self._runs)

    @property
    def mixed(self) -> bool:
        """Whether the releases are about different neighbours, so that all count for the
        strongest.
        """
        return len(self._neighbours) > 1

    def renyi(self, planned: Releases | None = None) -> Renyi:
        """Divergence at every order of all runs, and of what is planned on top."""
        planned = planned or {}
        spends = (
            spend for parties in planned.values() for counts in parties.values() for spend in counts
        )
        mixed = len(self._neighbours.union((spend.unit, spend.relation) for spend in spends)) > 1
        return self._sums[mixed].total(self._runs, planned)

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon by RDP, and by PLD where one bound holds for all parties of each run and is
        smaller.
        """
        by_rdp = renyi_epsilon(self.renyi(), delta)
        if self.mixed:
            return Epsilon(None, by_rdp)
        together: Counter[EventText] = Counter()
        for parties in self._runs.values():
            most = _covering([_events(counts) for counts in parties.values()])
            if most is None:
                return Epsilon(None, by_rdp)
            together.update(most)
        by_pld = epsilon(event_of(together), delta).pld
        return Epsilon(None if by_pld is None or by_pld > by_rdp else by_pld, by_rdp)


class _Largest:
    """The divergence of each run's party that it told most about, added up over runs; found when
    it is asked for.
    """

    def __init__(self, divergence: Callable[[Counter[Spend]], Renyi]) -> None:
        self.unseen: set[tuple[str, str]] = (
            set()
        )  # not computed yet: divergences cost time, and many ledgers are never asked for them
        self._divergence = divergence
        self._largest: dict[str, Renyi] = {}
        self._total = renyi({})

    def total(self, runs: Releases, planned: Releases) -> Renyi:
        # sums only grow, so a new one is the largest or changes nothing
        for run, party in self.unseen:
            growth = self._growth(run, self._divergence(runs[run][party]))
            self._largest[run] = self._largest.get(run, renyi({})) + growth
            self._total = self._total + growth
        self.unseen.clear()
        total = self._total
        for run, parties in planned.items():
            known = runs.get(run, {})
            sums = [
                self._divergence(known.get(party, Counter()) + more)
                for party, more in parties.items()
            ]
            total = total + self._growth(run, np.max(sums, axis=0))
        return total

    def _growth(self, run: str, divergence: Renyi) -> Renyi:
        """By how much the largest divergence of a run grows if this is one of its parties'."""
        known = self._largest.get(run, renyi({}))
        # Never infinity - infinity. NaN (no bound at that order) stays NaN, and no later release
        # fits on top of it.
        return np.subtract(divergence, known, out=renyi({}), where=~(divergence <= known))


def _divergence(counts: Counter[Spend], *, mixed: bool) -> Renyi:
    """The divergence of what one party of a run released; if ``mixed``, with one record or user
    replaced.
    """
    far = Counter[EventText]()
    near = Counter[EventText]()
    for spend, count in counts.items():
        (far if mixed and spend.relation == "add_or_remove_one" else near)[spend.event] += count
    return renyi(near) + renyi(far, doubled=True) if far else renyi(near)


def _events(counts: Counter[Spend]) -> Counter[EventText]:
    events = Counter[EventText]()
    for spend, count in counts.items():
        events[spend.event] += count
    return events


def _covering(parties: Sequence[Counter[EventText]]) -> Counter[EventText] | None:
    """Releases that tell at least as much as those of any of these parties; None if none are known.

    A party that released all that another did, and more, told more; so does a Gaussian mechanism
    with a larger sampling rate, less noise or more repetitions.
    """
    most = max(parties, key=Counter.total)
    if all(most >= other for other in parties):
        return most
    gaussians = [
        found for counts in parties if (found := _sampled_gaussian(event_of(counts))) is not None
    ]
    if len(gaussians) < len(parties):
        return None
    rates, noises, times = zip(*gaussians, strict=True)
    event = GaussianDpEvent(min(noises))
    return Counter(
        {to_json(PoissonSampledDpEvent(max(rates), event) if max(rates) < 1 else event): max(times)}
    )


def _sampled_gaussian(event: DpEvent) -> tuple[float, float, int] | None:
    """Rate, noise multiplier and number of Gaussians that see a Poisson sample, or everything;
    None for all else.
    """
    noise = gaussian_multiplier(event)
    if noise is not None:
        return 1.0, noise, 1
    (text, count), *others = parts(event).items()
    sampled = from_json(text)
    if others or not isinstance(sampled, PoissonSampledDpEvent):
        return None
    noise = gaussian_multiplier(sampled.event)
    return None if noise is None else (float(sampled.sampling_probability), noise, count)


def number_of(releases: Releases) -> int:
    """How many there are, of all runs and parties."""
    return sum(counts.total() for parties in releases.values() for counts in parties.values())


def renyi_of(planned: Releases) -> Renyi:
    """Divergence at every order of what is planned alone."""
    return Lifetime().renyi(planned)
