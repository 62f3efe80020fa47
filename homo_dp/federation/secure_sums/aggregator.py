"""The aggregator's side of one secure sum: collect masked vectors, name the survivors, take the
masks off the total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations, islice
from typing import Final

import numpy as np

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums import agreement, shares
from homo_dp.federation.secure_sums.masks import Vector, add_mask
from homo_dp.federation.secure_sums.party import MaskedVector, Opening, commitment, set_statement
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.secure_sums.round_keys import listed_seeds

_MOST_CHOICES: Final = 5000  # of shares that are left out: three altered ones among 30 are found


class SumDiscarded(Exception):
    """Too few parties are left to take the masks off. What the parties sent is charged and stays
    masked.
    """


@dataclass
class SecureSum:
    """One sum at the aggregator: ``receive`` vectors, ``close``, collect signatures and openings,
    then ``total``.

    Guarantees:
        - a party's vector counts once; after ``close`` no vector is added, and the survivors never
          change;
        - ``total`` is exactly the sum of the survivors' integers, or raises;
        - a holder that alters the shares that it opens costs nobody the sum, as long as enough
          others have opened theirs.
    """

    roster: Roster
    sum_id: str
    length: int
    word: np.dtype[np.unsignedinteger]  # uint64 or uint32
    terms: bytes = b""  # by which the parties must have masked (``add_mask``)
    vectors: dict[str, MaskedVector] = field(default_factory=dict)
    survivors: tuple[str, ...] = ()
    signatures: dict[str, bytes] = field(default_factory=dict)
    openings: dict[str, Opening] = field(default_factory=dict)
    # of parties that may be missing: their pair seeds, locked
    lists: Mapping[str, bytes] = field(default_factory=dict)

    def receive(self, sender: str, vector: MaskedVector) -> None:
        """Take one party's masked vector in."""
        if sender not in self.roster.identities:
            raise MessageError(f"sender={sender}: is not a party of this run")
        if self.survivors:
            raise MessageError(
                f"sender={sender}: sum {self.sum_id} is closed; its vector stays masked"
            )
        if vector.values.shape != (self.length,) or vector.values.dtype != self.word:
            raise MessageError(
                f"sender={sender}: {vector.values.shape} numbers of {vector.values.dtype}; the "
                f"plan says ({self.length},) of {self.word}"
            )
        self.vectors.setdefault(sender, vector)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Parties whose vector has not come."""
        return tuple(name for name in self.roster.names if name not in self.vectors)

    def close(self) -> dict[str, dict[str, bytes]]:
        """Name the survivors; for each of them the shares that other survivors addressed to it."""
        if len(self.vectors) < self.roster.fewest_survivors:
            raise SumDiscarded(
                f"sum={self.sum_id}: {len(self.vectors)} vectors came and "
                f"privacy.tolerated_dropouts={self.roster.dropouts} needs "
                f"{self.roster.fewest_survivors}"
            )
        self.survivors = tuple(sorted(self.vectors))
        return {
            name: {
                peer: self.vectors[peer].sealed_shares[name]
                for peer in self.roster.neighbours(name)
                if peer in self.vectors and name in self.vectors[peer].sealed_shares
            }
            for name in self.survivors
        }

    def agreed(self, sender: str, signature: bytes) -> None:
        """Take one survivor's signature in."""
        if sender not in self.survivors:
            raise MessageError(f"sender={sender}: is not a survivor of sum {self.sum_id}")
        content = set_statement(self.sum_id, self.survivors)
        agreement.check_signature(self.roster, sender, "survivors", content, signature)
        self.signatures[sender] = signature

    @property
    def has_quorum(self) -> bool:
        """Whether the parties will open their shares."""
        return len(self.signatures) >= self.roster.quorum

    def opened(self, sender: str, opening: Opening) -> None:
        """Take one survivor's opening in."""
        if sender not in self.survivors:
            raise MessageError(f"sender={sender}: is not a survivor of sum {self.sum_id}")
        self.openings.setdefault(sender, opening)

    @property
    def can_open(self) -> bool:
        """Whether enough holders of every seed and key have opened their shares."""
        wanted = [
            *(("own", name) for name in self.survivors),
            *(("keys", name) for name in self._missed),
        ]
        return all(
            len(self._shares(what, name)) >= self.roster.share_threshold for what, name in wanted
        )

    def total(self) -> Vector:
        """The sum of the survivors' integers, modulo 2^64 or 2^32."""
        total: Vector = np.zeros(self.length, dtype=self.word)
        for name in self.survivors:
            total += self.vectors[name].values
            own = self._opened_secret("own", name, partial(self._is_committed, name, name))
            add_mask(total, own, self.terms, subtract=True)
        for name in self._missed:
            neighbours = self.roster.neighbours(name)
            key = self._opened_secret("keys", name, partial(self._is_of_list, name))
            for peer, seed in zip(neighbours, self._listed(name, key), strict=True):
                if peer in self.vectors:
                    # a pair mask was added by the earlier name and taken off by the later one
                    add_mask(total, seed, self.terms, subtract=name > peer)
        return total

    @property
    def _missed(self) -> list[str]:
        """Parties that are missing and have a neighbour whose mask with them is still on."""
        missing = (name for name in self.roster.names if name not in self.survivors)
        return [
            name
            for name in missing
            if any(peer in self.survivors for peer in self.roster.neighbours(name))
        ]

    def _shares(self, what: str, name: str) -> dict[int, bytes]:
        """Opened shares of a party's own seed or round key, under the numbers of their holders."""
        found = {}
        for number, holder in enumerate(self.roster.holders(name), 1):
            if holder in self.openings and name in (opened := getattr(self.openings[holder], what)):
                found[number] = opened[name]
        return found

    def _opened_secret(self, what: str, name: str, fits: Callable[[bytes], bool]) -> bytes:
        """The secret behind shares of which some may have been altered by their holders.

        What a party masked with is known by its commitments, so shares are left out, one and then
        more, until the others fit.
        """
        found, threshold = self._shares(what, name), self.roster.share_threshold
        if len(found) < threshold:
            raise SumDiscarded(
                f"sum={self.sum_id}: {len(found)} parties opened their shares of the seeds of "
                f"{name}, {threshold} are needed"
            )
        choices = chain.from_iterable(
            combinations(found, count) for count in range(len(found) - threshold + 1)
        )
        for left_out in islice(choices, _MOST_CHOICES):
            kept = [number for number in found if number not in left_out][:threshold]
            with suppress(MessageError):
                secret = shares.combine({number: found[number] for number in kept})
                if fits(secret):
                    return secret
        raise SumDiscarded(
            f"sum={self.sum_id}: the opened seed of {name} is not the one it masked with: it or a "
            "holder altered the shares"
        )

    def _is_committed(self, name: str, peer: str, seed: bytes) -> bool:
        """Whether a party masked its vector with this seed."""
        return self.vectors[name].commitments.get(peer) == commitment(seed)

    def _listed(self, name: str, key: bytes) -> list[bytes]:
        """The seeds that a missing party shares with its neighbours, by the key of its list."""
        return listed_seeds(key, self.lists[name], len(self.roster.neighbours(name)))

    def _is_of_list(self, name: str, key: bytes) -> bool:
        """Whether a key opens the list of a missing party: its neighbours masked with what is in
        it.
        """
        seeds = zip(self.roster.neighbours(name), self._listed(name, key), strict=True)
        return all(
            self._is_committed(peer, name, seed) for peer, seed in seeds if peer in self.vectors
        )
