"""A small federation of secure sums in memory, with every message in the test's hands."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homo_dp.federation.secure_sums.aggregator import SecureSum
from homo_dp.federation.secure_sums.masks import Vector
from homo_dp.federation.secure_sums.party import InMemory, SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster

SUMS = tuple(f"{number}/update" for number in range(64))


class Federation:
    """Parties that have met, and what each kept."""

    def __init__(
        self, parties: int, dropouts: int = 0, colluders: int = 1, *, meet: bool = True
    ) -> None:
        self.identities = {
            f"p{number:03d}": Ed25519PrivateKey.generate() for number in range(parties)
        }
        public = {
            name: key.public_key().public_bytes_raw() for name, key in self.identities.items()
        }
        self.roster = Roster("run", public, dropouts, colluders)
        self.kept = {name: InMemory() for name in self.identities}
        self.lists: dict[str, dict[str, bytes]] = {}
        self.parties = {name: self.start(name) for name in self.identities}
        if meet:
            self.meet()

    def start(self, name: str) -> SecureSumParty:
        """The party as it comes back from a crash: with what it kept and nothing else."""
        return SecureSumParty(self.roster, name, self.identities[name].sign, self.kept[name])

    def meet(self) -> None:
        keys = {name: party.keys() for name, party in self.parties.items()}
        sealed = {name: party.introduce(keys) for name, party in self.parties.items()}
        for name, party in self.parties.items():
            party.meet({peer: made[name] for peer, made in sealed.items() if name in made})
        if not self.roster.dropouts:
            return
        shared = {name: party.share_round_keys(SUMS) for name, party in self.parties.items()}
        self.lists = {
            name: dict(zip(SUMS, made.lists, strict=True)) for name, made in shared.items()
        }
        for name, party in self.parties.items():
            party.keep_round_keys(
                SUMS, {peer: shared[peer].sealed[name] for peer in self.roster.neighbours(name)}
            )

    def sum(
        self,
        values: Mapping[str, Vector],
        *,
        sum_id: str = "1/update",
        no_vector: Collection[str] = (),
        no_signature: Collection[str] = (),
        no_opening: Collection[str] = (),
        crashes: bool = False,
    ) -> SecureSum:
        """One sum up to its openings; parties may be missing at each message, or start anew
        before each.
        """
        first = next(iter(values.values()))
        held = SecureSum(self.roster, sum_id, len(first), first.dtype)
        party = self.start if crashes else self.parties.__getitem__
        for name in self.identities:
            vector = party(name).mask(sum_id, values[name])
            if name not in no_vector:
                held.receive(name, vector)
        passed_on = held.close()
        held.lists = {
            name: lists[sum_id] for name, lists in self.lists.items() if name not in held.survivors
        }
        for name in held.survivors:
            if name not in no_signature:
                held.agreed(name, party(name).agree(sum_id, held.survivors, passed_on[name]))
        for name in held.survivors:
            if name not in no_signature and name not in no_opening:
                held.opened(name, party(name).open(sum_id, held.signatures))
        return held


def random_values(
    names: Collection[str], length: int, word: type = np.uint64, seed: int = 1
) -> dict[str, Vector]:
    generator = np.random.default_rng(seed)
    top = np.iinfo(word).max
    return {name: generator.integers(0, top, length, dtype=word, endpoint=True) for name in names}


def plain_sum(values: Mapping[str, Vector], names: Collection[str]) -> Vector:
    first = next(iter(values.values()))
    total: Vector = np.zeros_like(first)
    for name in names:
        total += values[name]
    return total
