"""A party's side of the secure sums of a run: keys once, then for each sum a masked vector, a
signature, an opening.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums import agreement, shares
from homo_dp.federation.secure_sums.agreement import RunKeys, Sign
from homo_dp.federation.secure_sums.masks import Vector, add_mask
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.secure_sums.round_keys import RoundKeyShares, seed_list

COMMITMENT_BYTES = 16
# the name that is used instead of one sum's where shares of all sums are sealed together
_ALL_SUMS = "all"
# what is kept beside the parts: who meets, and that a vector was masked for them
_MEMBERS, _MASKED = "members", "masked"


class Keep(Protocol):
    """Where a party keeps what must survive a crash: private, and on disk when ``put`` returns."""

    def get(self, name: str) -> bytes | None:
        """What was put under this name."""

    def put(self, name: str, content: bytes) -> None:
        """Keep it; the whole of it or nothing."""


@dataclass
class InMemory:
    """Keeps for as long as the process lives: simulation and tests."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def get(self, name: str) -> bytes | None:
        return self.kept.get(name)

    def put(self, name: str, content: bytes) -> None:
        self.kept[name] = content


@dataclass(frozen=True)
class KeptWithin:
    """A part of a ``Keep``: its names are under a name of their own."""

    keep: Keep
    name: str

    def get(self, name: str) -> bytes | None:
        """What was put under this name."""
        return self.keep.get(f"{self.name} {name}")

    def put(self, name: str, content: bytes) -> None:
        """Keep it."""
        self.keep.put(f"{self.name} {name}", content)


@dataclass(frozen=True)
class MaskedVector:
    """What a party sends for one sum: its masked integers, and for each neighbour a sealed share
    of its own seed.
    """

    values: Vector
    sealed_shares: Mapping[str, bytes]
    # of its own seed (under its own name) and of the seeds that it shares with peers
    commitments: Mapping[str, bytes]
    signature: bytes = b""  # under the set of all parties, where that is the only one there can be


@dataclass(frozen=True)
class Opening:
    """What a party opens once a quorum has signed one set of survivors.

    ``own`` has a share of each survivor's own seed, ``keys`` one of the round key of each party
    that is missing.
    """

    own: Mapping[str, bytes]
    keys: Mapping[str, bytes]


class SecureSumParty:
    """One party in the secure sums of a run.

    Guarantees:
        - a vector leaves only under the party's own mask and a mask with every neighbour;
        - keys are accepted only if signed by the identities of the party's own config;
        - for each sum at most one set of survivors is ever signed, on disk before the signature
          exists, never smaller than ``roster.fewest_survivors``;
        - shares are opened only for a set that a quorum has signed, and never both of a peer's own
          seed and of the key behind the seeds that it shares with others;
        - asked again, also after a crash, it answers with the same bytes.
    """

    def __init__(self, roster: Roster, name: str, sign: Sign, keep: Keep) -> None:
        if name not in roster.identities:
            raise MessageError(
                f"party={name}: is not among federation.parties; list its own public key there, too"
            )
        kept = keep.get(_MEMBERS)
        self.whole, self._root = roster, keep  # of all parties; ``roster`` is of those who met
        roster = roster if kept is None else roster.of(json.loads(kept))
        self.roster, self.name, self._sign = roster, name, sign
        if roster is not self.whole:
            keep = KeptWithin(keep, roster.digest.hex()[:16])
        self._keep = keep
        self._neighbours = roster.neighbours(name)
        self._secrets: dict[str, bytes] = {}
        self._held_keys: dict[str, dict[str, bytes]] = {}  # of neighbours, by sum
        kept = keep.get("keys")
        if kept is None:
            kept = RunKeys.new().raw
            keep.put("keys", kept)
        self._keys = RunKeys(kept)
        self._restore_secrets()

    def among(self, names: Sequence[str]) -> SecureSumParty:
        """This party where these meet and the others are missing, with keys of its own for them.

        Guarantees:
            - once a vector was masked, the parties that have met never change.
        """
        roster = self.whole.of(names)
        if self.name not in roster.identities:
            raise MessageError(f"party={self.name}: is not among the parties that are to meet")
        if roster.digest == self.roster.digest:
            return self
        if self._root.get(_MASKED) is not None:
            raise MessageError("parties: they cannot change once a sum was masked")
        self._root.put(_MEMBERS, json.dumps(list(roster.names)).encode())
        return SecureSumParty(self.whole, self.name, self._sign, self._root)

    def keys(self) -> bytes:
        """The party's public keys of this run, signed."""
        return agreement.signed(self._sign, self.roster, self.name, "keys", self._keys.public)

    def introduce(self, keys: Mapping[str, bytes]) -> dict[str, bytes]:
        """Check all parties' keys; what to pass on to each neighbour with a later name, signed.

        The keys of a run are taken once: other keys later are refused.
        """
        missing = [name for name in self.roster.names if name not in keys]
        if missing or len(keys) != len(self.roster.names):
            raise MessageError(
                f"keys of {', '.join(missing) or 'more parties than known'}: the roster needs each "
                "once"
            )
        public = {
            name: agreement.opened(self.roster, name, "keys", message)
            for name, message in keys.items()
        }
        for name, content in public.items():
            agreement.check_public(content, name)
        if public[self.name] != self._keys.public:
            raise MessageError(
                f"party={self.name}: the aggregator shows others a key that is not this party's"
            )
        later = [peer for peer in self._neighbours if peer > self.name]
        kept = self._keep.get("peers")
        if kept is None:
            chosen = {
                peer: agreement.encapsulate(self._keys.public, public[peer], peer) for peer in later
            }
            secret = {peer: made[0] for peer, made in chosen.items()}
            kept = _pack(
                {
                    "public": public,
                    "secret": secret,
                    "sealed": {peer: made[1] for peer, made in chosen.items()},
                }
            )
            self._keep.put("peers", kept)
        facts = _unpack(kept)
        if facts["public"] != public:
            raise MessageError(
                "keys of the run changed after they were taken: somebody swaps keys; start a "
                "new run"
            )
        return {
            peer: agreement.signed(
                self._sign, self.roster, self.name, f"secret for {peer}", facts["sealed"][peer]
            )
            for peer in later
        }

    def meet(self, sealed: Mapping[str, bytes]) -> None:
        """Take the secrets that neighbours with earlier names chose; after this the party can
        mask.
        """
        kept = self._keep.get("peers")
        if kept is None:
            raise MessageError("secrets of peers came before their keys")
        facts, secrets = _unpack(kept), {}
        for peer in self._neighbours:
            if peer in facts["secret"]:
                chosen = facts["secret"][peer]
            elif peer in sealed:
                content = agreement.opened(
                    self.roster, peer, f"secret for {self.name}", sealed[peer]
                )
                chosen = agreement.decapsulate(self._keys, facts["public"][peer], content, peer)
            else:
                raise MessageError(f"sender={peer}: its secret for {self.name} is missing")
            pair = (self.name, peer)
            secrets[peer] = agreement.pair_secret(
                self.roster, self._keys, facts["public"], pair, chosen
            )
        if self._secrets and self._secrets != secrets:
            raise MessageError(
                "secrets of the run changed after they were taken: somebody swaps them; start a "
                "new run"
            )
        self._keep.put("secrets", _pack({"secrets": secrets}))
        self._secrets = secrets

    def share_round_keys(self, sums: Sequence[str]) -> RoundKeyShares:
        """Shares of this party's key of each sum for each neighbour, and the lists that those
        keys open.
        """
        rows: dict[str, list[bytes]] = {peer: [] for peer in self._neighbours}
        holders, lists = self.roster.holders(self.name), []
        for sum_id in sums:
            key = self._keys.own_seed("round key", sum_id)
            seeds = [
                agreement.derived(self._secrets[peer], "mask", sum_id) for peer in self._neighbours
            ]
            lists.append(seed_list(key, seeds))
            polynomial = self._keys.own_seed("polynomial round key", sum_id)
            found = shares.split(key, self.roster.share_threshold, len(holders), polynomial)
            for holder, share in zip(holders, found, strict=True):
                if holder != self.name:
                    rows[holder].append(share)
        sealed = {
            peer: self._cipher(peer, self.name, _ALL_SUMS).encrypt(bytes(12), b"".join(row), None)
            for peer, row in rows.items()
        }
        return RoundKeyShares(sealed, lists)

    def keep_round_keys(self, sums: Sequence[str], sealed: Mapping[str, bytes]) -> None:
        """Keep the shares of neighbours' keys, on disk before the first sum; others later are
        refused.
        """
        missing = [peer for peer in self._neighbours if peer not in sealed]
        if missing:
            raise MessageError(
                f"sender={missing[0]}: its shares of round keys for {self.name} are missing"
            )
        content = _pack({"sums": {"sums": json.dumps(list(sums)).encode()}, "sealed": dict(sealed)})
        kept = self._keep.get("round keys")
        if kept is None:
            self._keep.put("round keys", content)
        elif kept != content:
            raise MessageError(
                "shares of round keys changed after they were taken; start a new run"
            )
        self._read_round_keys(content)

    @property
    def met(self) -> bool:
        """Whether all neighbours' secrets are here."""
        return len(self._secrets) == len(self._neighbours)

    @property
    def ready(self) -> bool:
        """Whether this party can mask, and open for whoever may be missing."""
        return self.met and (not self.roster.dropouts or bool(self._held_keys))

    def mask(self, sum_id: str, values: Vector, terms: bytes = b"") -> MaskedVector:
        """This party's integers under its own mask and one with every neighbour; once a sum, as
        seeds are its own.

        Args:
            sum_id: the name of the sum.
            values: the integers.
            terms: what all parties have to agree on (``add_mask``).
        """
        if not self.ready:
            raise MessageError(f"sum={sum_id}: this party has not met its peers yet")
        if self._root.get(_MASKED) is None:
            self._root.put(_MASKED, b"yes")
        masked = values.copy()
        seeds = {
            peer: agreement.derived(self._secrets[peer], "mask", sum_id)
            for peer in self._neighbours
        }
        own = self._keys.own_seed("mask", sum_id)
        add_mask(masked, own, terms)
        for peer, seed in seeds.items():
            add_mask(masked, seed, terms, subtract=peer < self.name)
        commitments = {self.name: commitment(own)}
        if self.roster.dropouts:  # where nobody may be missing, no pair seed is ever opened
            commitments.update({peer: commitment(seed) for peer, seed in seeds.items()})
        return MaskedVector(
            masked, self._sealed_shares(sum_id), commitments, self._signed_ahead(sum_id)
        )

    def _signed_ahead(self, sum_id: str) -> bytes:
        """Where nobody may be missing there is one set to sign, so its signature goes with the
        vector.
        """
        return (
            b""
            if self.roster.dropouts
            else self._sign_set(set_statement(sum_id, self.roster.names))
        )

    def agree(
        self, sum_id: str, survivors: Sequence[str], sealed_shares: Mapping[str, bytes]
    ) -> bytes:
        """The signature under a set of survivors; the first set of a sum is the only one.

        ``sealed_shares`` are those that surviving neighbours addressed to this party.
        """
        content = self.statement(sum_id, survivors)
        kept = self._keep.get(f"agreed {sum_id}")
        if kept is None:
            shared = {
                peer: sealed_shares[peer] for peer in self._neighbours if peer in sealed_shares
            }
            self._keep.put(f"agreed {sum_id}", _pack({"set": {"set": content}, "shares": shared}))
        elif _unpack(kept)["set"]["set"] != content:
            raise MessageError(
                f"sum={sum_id}: a second set of survivors; this party has signed one already"
            )
        return self._sign_set(content)

    def has_agreed(self, sum_id: str) -> bool:
        """Whether it has signed a set of survivors of this sum."""
        return self._keep.get(f"agreed {sum_id}") is not None

    def agreed_set(self, sum_id: str) -> tuple[str, ...]:
        """The survivors that this party signed."""
        kept = self._keep.get(f"agreed {sum_id}")
        if kept is None:
            raise MessageError(f"sum={sum_id}: no set of survivors was agreed to")
        return tuple(json.loads(_unpack(kept)["set"]["set"])["survivors"])

    def open(self, sum_id: str, signatures: Mapping[str, bytes]) -> Opening:
        """This party's shares of the survivors' seeds, once a quorum has signed the set that it
        signed itself.
        """
        kept = self._keep.get(f"agreed {sum_id}")
        if kept is None:
            raise MessageError(f"sum={sum_id}: no set of survivors was agreed to")
        facts = _unpack(kept)
        content = facts["set"]["set"]
        self._check_quorum(sum_id, content, signatures)
        survivors = json.loads(content)["survivors"]
        return self._opening(sum_id, survivors, facts["shares"])

    def open_all(
        self, sum_id: str, signatures: Mapping[str, bytes], sealed_shares: Mapping[str, bytes]
    ) -> Opening:
        """The same where nobody may be missing: of the set of all parties, which is the only one
        ever signed.
        """
        if self.roster.dropouts:
            raise MessageError(
                f"sum={sum_id}: parties may be missing, so the survivors have to be named first"
            )
        self._check_quorum(sum_id, set_statement(sum_id, self.roster.names), signatures)
        return self._opening(sum_id, self.roster.names, sealed_shares)

    def _check_quorum(self, sum_id: str, content: bytes, signatures: Mapping[str, bytes]) -> None:
        signers = {self.name}
        for peer, signature in signatures.items():
            if peer not in signers:
                agreement.check_signature(self.roster, peer, "survivors", content, signature)
                signers.add(peer)
        if len(signers) < self.roster.quorum:
            raise MessageError(
                f"sum={sum_id}: {len(signers)} parties signed this set of survivors, "
                f"{self.roster.quorum} must have"
            )

    def _opening(
        self, sum_id: str, survivors: Sequence[str], sealed: Mapping[str, bytes]
    ) -> Opening:
        own: dict[str, bytes] = {}
        for peer in survivors:
            if peer == self.name:
                share = self._own_shares(sum_id)[self.name]
            elif peer in sealed:
                share = self._unsealed(sum_id, peer, sealed[peer])
            else:
                continue
            # else the peer harms only the sum that it takes part in
            if len(share) == shares.SHARE_BYTES:
                own[peer] = share
        missing = [peer for peer in self._neighbours if peer not in set(survivors)]
        keys = {
            peer: self._held_keys[peer][sum_id]
            for peer in missing
            if sum_id in self._held_keys.get(peer, {})
        }
        return Opening(own, keys)

    def _sealed_shares(self, sum_id: str) -> dict[str, bytes]:
        found = self._own_shares(sum_id)
        return {
            peer: self._cipher(peer, self.name, sum_id).encrypt(bytes(12), found[peer], None)
            for peer in self._neighbours
        }

    def _own_shares(self, sum_id: str) -> dict[str, bytes]:
        """For each holder its share of this party's own seed of a sum."""
        holders, key = self.roster.holders(self.name), self._keys.own_seed("polynomial own", sum_id)
        own = self._keys.own_seed("mask", sum_id)
        return dict(
            zip(
                holders,
                shares.split(own, self.roster.share_threshold, len(holders), key),
                strict=True,
            )
        )

    def _read_round_keys(self, kept: bytes) -> None:
        facts, size = _unpack(kept), shares.SHARE_BYTES
        sums = json.loads(facts["sums"]["sums"])
        for peer, sealed in facts["sealed"].items():
            row = self._unsealed(_ALL_SUMS, peer, sealed)
            # else the peer harms only the sums that it is missing from
            if len(row) == size * len(sums):
                parts = [row[start : start + size] for start in range(0, len(row), size)]
                self._held_keys[peer] = dict(zip(sums, parts, strict=True))

    def _unsealed(self, sum_id: str, peer: str, sealed: bytes) -> bytes:
        try:
            return self._cipher(peer, peer, sum_id).decrypt(bytes(12), sealed, None)
        except InvalidTag:
            return b""

    def _cipher(self, peer: str, sender: str, sum_id: str) -> AESGCM:
        """The key of one direction of one pair for one sum: it encrypts one message, so the
        nonce may be zero.
        """
        return AESGCM(agreement.derived(self._secrets[peer], f"shares from {sender}", sum_id))

    def statement(self, sum_id: str, survivors: Sequence[str]) -> bytes:
        """What is signed for a set of survivors; MessageError if this party may not sign it."""
        names = sorted(set(survivors))
        if len(names) != len(survivors) or any(
            name not in self.roster.identities for name in names
        ):
            raise MessageError(f"sum={sum_id}: survivors must be parties of the run, each once")
        if self.name not in names:
            raise MessageError(
                f"sum={sum_id}: this party is not among the survivors, so it signs nothing"
            )
        if len(names) < self.roster.fewest_survivors:
            raise MessageError(
                f"sum={sum_id}: {len(names)} survivors; "
                f"privacy.tolerated_dropouts={self.roster.dropouts} allows no fewer than "
                f"{self.roster.fewest_survivors}"
            )
        return set_statement(sum_id, names)

    def _sign_set(self, content: bytes) -> bytes:
        return agreement.signed(self._sign, self.roster, self.name, "survivors", content)[
            : agreement.SIGNATURE_BYTES
        ]

    def _restore_secrets(self) -> None:
        kept = self._keep.get("secrets")
        if kept is not None:
            self._secrets = dict(_unpack(kept)["secrets"])
        kept = self._keep.get("round keys")
        if kept is not None and self._secrets:
            self._read_round_keys(kept)


def set_statement(sum_id: str, survivors: Sequence[str]) -> bytes:
    """What is signed: the sum and its survivors, in one form."""
    return json.dumps({"sum": sum_id, "survivors": sorted(survivors)}, sort_keys=True).encode()


def commitment(seed: bytes) -> bytes:
    """What shows that an opened seed is the one that was used; it tells nothing about a seed of
    32 random bytes.
    """
    return hashlib.sha256(b"homo_dp seed\0" + seed).digest()[:COMMITMENT_BYTES]


def _pack(content: Mapping[str, Mapping[str, bytes]]) -> bytes:
    plain = {
        part: {name: item.hex() for name, item in values.items()}
        for part, values in content.items()
    }
    return json.dumps(plain, sort_keys=True).encode()


def _unpack(kept: bytes) -> dict[str, dict[str, bytes]]:
    plain = json.loads(kept)
    return {
        part: {name: bytes.fromhex(item) for name, item in values.items()}
        for part, values in plain.items()
    }
