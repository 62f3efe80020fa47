"""The aggregator's side of one secure sum: collect masked vectors, name the survivors, take the masks off the total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums import agreement, shares
from homo_dp.federation.secure_sums.masks import Vector, add_mask
from homo_dp.federation.secure_sums.party import MaskedVector, Opening, commitment, set_statement
from homo_dp.federation.secure_sums.roster import Roster


class SumDiscarded(Exception):
    """Too few parties were left to take the masks off; what the parties sent is charged and tells nothing."""


@dataclass
class SecureSum:
    """One sum at the aggregator: ``receive`` vectors, ``close``, collect signatures and openings, then ``total``.

    Guarantees:
        - a party's vector counts once; after ``close`` no vector is added, and the survivors never change;
        - ``total`` is exactly the sum of the survivors' integers, or raises.
    """

    roster: Roster
    sum_id: str
    length: int
    word: np.dtype[np.unsignedinteger]  # uint64 or uint32
    vectors: dict[str, MaskedVector] = field(default_factory=dict)
    survivors: tuple[str, ...] = ()
    signatures: dict[str, bytes] = field(default_factory=dict)
    openings: dict[str, Opening] = field(default_factory=dict)

    def receive(self, sender: str, vector: MaskedVector) -> None:
        """Take one party's masked vector in."""
        if sender not in self.roster.identities:
            raise MessageError(f"sender={sender}: is not a party of this run")
        if self.survivors:
            raise MessageError(f"sender={sender}: sum {self.sum_id} is closed; its vector stays masked")
        if vector.values.shape != (self.length,) or vector.values.dtype != self.word:
            raise MessageError(
                f"sender={sender}: {vector.values.shape} numbers of {vector.values.dtype}; the plan says "
                f"({self.length},) of {self.word}"
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
                f"sum={self.sum_id}: {len(self.vectors)} vectors came and privacy.tolerated_dropouts="
                f"{self.roster.dropouts} needs {self.roster.fewest_survivors}"
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
        """Whether enough holders of every seed have opened their shares."""
        return all(
            sum(name in self.openings[holder].own for holder in self._answered(name)) >= self.roster.share_threshold
            for name in self.survivors
        )

    def total(self) -> Vector:
        """The sum of the survivors' integers, modulo 2^64 or 2^32."""
        total: Vector = np.zeros(self.length, dtype=self.word)
        missing = set(self.roster.names) - set(self.survivors)
        for name in self.survivors:
            total += self.vectors[name].values
            wanted = [name, *(peer for peer in self.roster.neighbours(name) if peer in missing)]
            for peer, seed in zip(wanted, self._seeds(name, wanted), strict=True):
                # the own mask was added; a pair mask was added by the earlier name and taken off by the later one
                add_mask(total, seed, subtract=peer == name or peer > name)
        return total

    def _answered(self, name: str) -> list[str]:
        return [holder for holder in self.roster.holders(name) if holder in self.openings]

    def _seeds(self, name: str, wanted: list[str]) -> list[bytes]:
        """The survivor's own seed and its seeds with missing peers, from the shares of its first holders."""
        holders, found = self.roster.holders(name), []
        for holder in self._answered(name):
            opening = self.openings[holder]
            held = {name: opening.own.get(name), **opening.pairs.get(name, {})}
            row = [held[peer] for peer in wanted if held.get(peer) is not None]
            if len(row) == len(wanted):
                found.append((holders.index(holder) + 1, row))
            if len(found) == self.roster.share_threshold:
                break
        else:
            raise SumDiscarded(
                f"sum={self.sum_id}: {len(found)} parties opened their shares of the seeds of {name}, "
                f"{self.roster.share_threshold} are needed"
            )
        weights = shares.lagrange([number for number, _ in found])
        columns = [[row[place] for _, row in found] for place in range(len(wanted))]
        seeds = shares.combine_all(weights, [[share for share in column if share] for column in columns])
        self._check_seeds(name, wanted, seeds)
        return seeds

    def _check_seeds(self, name: str, wanted: list[str], seeds: list[bytes]) -> None:
        commitments: Mapping[str, bytes] = self.vectors[name].commitments
        for peer, seed in zip(wanted, seeds, strict=True):
            if commitments.get(peer) != commitment(seed):
                raise SumDiscarded(
                    f"sum={self.sum_id}: the opened seed of {name} is not the one it masked with: it or a holder "
                    "altered the shares"
                )
