"""Who takes part in the secure sums of a run, how many may be missing or dishonest, and the
thresholds that follow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from homo_dp.config.privacy import masks_problem, masks_quorum
from homo_dp.core.errors import ConfigError, MessageError

ALL_PAIRS_UP_TO: Final = 50  # above, each party masks with some neighbours only (Bell et al. 2020)
LEAST_NEIGHBOURS: Final = 30


@dataclass(frozen=True)
class Roster:
    """The parties of a run's secure sums, by name with the public identity key that one's own
    config lists.

    Guarantees:
        - two different sets of survivors cannot both be signed by ``quorum`` parties, since that
          takes more than half of all parties even after ``colluders`` signed both;
        - colluders alone hold too few shares to open an honest party's seed;
        - honest survivors stay connected by masks that nobody else knows, whoever is missing and
          whoever colludes.

    >>> roster = Roster("run", {name: name.encode() for name in "abcdefghij"}, dropouts=3, colluders=1)
    >>> roster.quorum, roster.fewest_survivors, roster.noise_sharers
    (6, 7, 6)
    """

    run: str
    identities: Mapping[str, bytes]
    dropouts: int = 0
    colluders: int = 1
    terms: str = ""  # what all parties must have agreed to, such as the digest of the plan

    def __post_init__(self) -> None:
        parties = len(self.identities)
        problem = masks_problem(parties, self.dropouts, self.colluders)
        if problem is not None:
            raise ConfigError(problem)
        if len(set(self.identities.values())) < parties:
            raise ConfigError(
                "federation.parties: one public_key stands under two names; whoever holds it would "
                "count as two who share the noise and sign: give every party a key of its own"
            )

    def of(self, names: Collection[str]) -> Roster:
        """The roster of those who meet, where others are missing from the start.

        Who is missing counts as a dropout of every sum. Each set of names has a digest of its own,
        so nothing that is signed or sealed under one is of use under another.

        Guarantees:
            - ``fewest_survivors`` and ``noise_sharers`` are those of the whole roster.
        """
        if set(names) == set(self.identities):
            return self
        missing = len(self.identities) - len(names)
        if len(set(names)) < len(names) or not set(names) <= set(self.identities):
            raise MessageError("parties: must be of federation.parties, each once")
        if missing > self.dropouts:
            raise MessageError(
                f"parties: {missing} are missing, and privacy.tolerated_dropouts={self.dropouts}"
            )
        kept = {name: self.identities[name] for name in names}
        return replace(self, identities=kept, dropouts=self.dropouts - missing)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All parties in one order for everybody."""
        return tuple(sorted(self.identities))

    @property
    def quorum(self) -> int:
        """How many parties must have signed a set of survivors before anybody opens a seed."""
        return masks_quorum(len(self.identities), self.colluders)

    @property
    def fewest_survivors(self) -> int:
        """The smallest set of survivors that a party signs."""
        return len(self.identities) - self.dropouts

    @property
    def noise_sharers(self) -> int:
        """Parties that are there and honest in the worst case: their noise together is the noise
        of the sum.
        """
        return len(self.identities) - self.dropouts - self.colluders

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The parties that ``name`` shares masks and seeds with: all others, or some on both
        sides of a ring.
        """
        return self._neighbours[name]

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[str, ...]]:
        count, reach = len(self.names), self._reach
        if 2 * reach >= count - 1:
            return {
                name: tuple(other for other in self.names if other != name) for name in self.names
            }
        found = {}
        for place, name in enumerate(self.names):
            places = {(place + step) % count for step in range(-reach, reach + 1)} - {place}
            found[name] = tuple(self.names[other] for other in sorted(places))
        return found

    def holders(self, name: str) -> tuple[str, ...]:
        """Who holds shares of this party's seeds, itself among them; a holder's number is its
        place, from 1.
        """
        return tuple(sorted((*self.neighbours(name), name)))

    @property
    def share_threshold(self) -> int:
        """How many holders must open their shares of a seed."""
        return (min(2 * self._reach + 1, len(self.names)) + self.colluders) // 2 + 1

    @cached_property
    def _reach(self) -> int:
        """Neighbours on each side of the ring.

        A ring in which everybody knows the nearest r on both sides stays connected when fewer than
        2r parties are taken out of it (Harary 1962): colluders and dropouts must be fewer. And 2r +
        1 holders leave a threshold above the colluders and below what dropouts leave, which takes r
        >= dropouts + colluders / 2.
        """
        count = len(self.names)
        if count <= ALL_PAIRS_UP_TO:
            return count
        connected = (self.dropouts + self.colluders) // 2 + 1
        return max(LEAST_NEIGHBOURS // 2, connected, self.dropouts + (self.colluders + 1) // 2)

    @cached_property
    def digest(self) -> bytes:
        """What every signature and key of the run is bound to: run, terms, all identities, the
        tolerated numbers.
        """
        identities = {name: key.hex() for name, key in self.identities.items()}
        facts = [self.run, self.terms, self.dropouts, self.colluders, identities]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
