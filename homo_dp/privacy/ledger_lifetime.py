"""What all runs together have released about one dataset.

In a run a record is with one party, but over many runs nobody can say with which: parties are renamed, and another seed
deals a table out anew. So every run counts for the party that it told most about, at each Renyi order: a bound for any
record, wherever it was.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from homo_dp.privacy.accounting import Epsilon, Renyi, epsilon, renyi, renyi_epsilon
from homo_dp.privacy.events import DpEvent, event_of, from_json, gaussian_multiplier, parts, to_json

__all__ = ["Lifetime", "Releases", "number_of", "renyi_of"]

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
        self._total = renyi({})  # of the largest of all runs
        self._unseen: set[tuple[str, str]] = set()  # divergences cost time, and only some ledgers are asked for them

    def add(self, run: str, party: str, event: str) -> None:
        """Count one release."""
        self._runs.setdefault(run, {}).setdefault(party, Counter())[event] += 1
        self._unseen.add((run, party))

    @property
    def runs(self) -> int:
        """How many there were."""
        return len(self._runs)

    @property
    def releases(self) -> int:
        """How many there were, of all runs and parties."""
        return number_of(self._runs)

    def renyi(self, planned: Releases | None = None) -> Renyi:
        """Divergence at every order of all runs, and of what is planned on top."""
        for run, party in self._unseen:  # sums only grow, so a new one is the largest or changes nothing
            growth = self._growth(run, renyi(self._runs[run][party]))
            self._largest[run] = self._largest.get(run, renyi({})) + growth
            self._total = self._total + growth
        self._unseen.clear()
        total = self._total
        for run, parties in (planned or {}).items():
            known = self._runs.get(run, {})
            sums = [renyi(known.get(party, Counter()) + more) for party, more in parties.items()]
            total = total + self._growth(run, np.max(sums, axis=0))
        return total

    def epsilon(self, delta: float) -> Epsilon:
        """By RDP, and by PLD beside it where one is known for all parties of each run that says more."""
        by_rdp = renyi_epsilon(self.renyi(), delta)
        together: Counter[str] = Counter()
        for parties in self._runs.values():
            most = _covering(list(parties.values()))
            if most is None:
                return Epsilon(None, by_rdp)
            together.update(most)
        by_pld = epsilon(event_of(together), delta).pld
        return Epsilon(None if by_pld is None or by_pld > by_rdp else by_pld, by_rdp)

    def _growth(self, run: str, divergence: Renyi) -> Renyi:
        """By how much the largest divergence of a run grows if this is one of its parties'."""
        known = self._largest.get(run, renyi({}))
        # Never infinity - infinity; but what is no number stays so, and nothing fits on top of it.
        return np.subtract(divergence, known, out=renyi({}), where=~(divergence <= known))


def _covering(parties: Sequence[Counter[str]]) -> Counter[str] | None:
    """Releases that tell at least as much as those of any of these parties; None if none are known.

    Whoever released all that another did, and more, told more; so does a Gaussian that sees a sample at a larger rate,
    adds less noise, or is repeated more often.
    """
    most = max(parties, key=Counter.total)
    if all(most >= other for other in parties):
        return most
    gaussians = [found for counts in parties if (found := _sampled_gaussian(event_of(counts))) is not None]
    if len(gaussians) < len(parties):
        return None
    rates, noises, times = zip(*gaussians, strict=True)
    event = GaussianDpEvent(min(noises))
    return Counter({to_json(PoissonSampledDpEvent(max(rates), event) if max(rates) < 1 else event): max(times)})


def _sampled_gaussian(event: DpEvent) -> tuple[float, float, int] | None:
    """Rate, noise multiplier and number of Gaussians that see a Poisson sample, or everything; None for all else."""
    noise = gaussian_multiplier(event)
    if noise is not None:
        return 1.0, noise, 1
    ((text, count), *others) = parts(event).items()
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
