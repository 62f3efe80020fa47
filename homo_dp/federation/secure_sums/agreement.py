"""Keys of one run: each party signs fresh public keys, and every two neighbours get a secret that
only they know.

X25519 and, where both sides' ``cryptography`` has it, ML-KEM-768: the secret holds while either
does. An aggregator only passes these messages on; it cannot put in a key of its own, because each
party checks its peers' signatures by the identity keys of its own config.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums.roster import Roster

try:
    from cryptography.hazmat.primitives.asymmetric.mlkem import (
        MLKEM768PrivateKey,
        MLKEM768PublicKey,
    )

    MLKEM768PrivateKey.generate()
    HAS_MLKEM = True
except (
    ImportError,
    UnsupportedAlgorithm,
):  # an older `cryptography`, or its OpenSSL has no ML-KEM
    HAS_MLKEM = False

Sign = Callable[[bytes], bytes]
SIGNATURE_BYTES = 64
_X25519_BYTES = 32
_MLKEM_PUBLIC_BYTES = 1184
_MLKEM_SEALED_BYTES = 1088


@dataclass(frozen=True)
class RunKeys:
    """The private keys of one party for one run; ``raw`` is what must be on disk before the
    public half is sent.
    """

    # 32 bytes for one's own seeds, 32 bytes X25519, 64 bytes ML-KEM-768 or none
    raw: bytes = field(repr=False)

    @classmethod
    def new(cls) -> RunKeys:
        """Fresh keys."""
        mlkem = MLKEM768PrivateKey.generate().private_bytes_raw() if HAS_MLKEM else b""
        return cls(
            secrets.token_bytes(32) + X25519PrivateKey.generate().private_bytes_raw() + mlkem
        )

    @property
    def agreement(self) -> X25519PrivateKey:
        """One side of every X25519 exchange of the run."""
        return X25519PrivateKey.from_private_bytes(self.raw[32:64])

    def own_seed(self, purpose: str, sum_id: str) -> bytes:
        """A seed of this party alone, for one sum and one purpose."""
        return _expand(self.raw[:32], f"own {purpose} {sum_id}")

    @property
    def public(self) -> bytes:
        """What everybody may know."""
        public = self.agreement.public_key().public_bytes_raw()
        if len(self.raw) == 64:
            return public
        return (
            public
            + MLKEM768PrivateKey.from_seed_bytes(self.raw[64:]).public_key().public_bytes_raw()
        )


def signed(sign: Sign, roster: Roster, sender: str, kind: str, content: bytes) -> bytes:
    """Content behind its sender's signature, bound to the run, the roster, the sender and the
    kind of message.
    """
    return sign(_statement(roster, sender, kind, content)) + content


def opened(roster: Roster, sender: str, kind: str, message: bytes) -> bytes:
    """The content of a signed message of a peer; raises MessageError if it is not the peer's
    own.
    """
    signature, content = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
    check_signature(roster, sender, kind, content, signature)
    return content


def check_signature(
    roster: Roster, sender: str, kind: str, content: bytes, signature: bytes
) -> None:
    """Raise MessageError unless ``sender`` signed this content in this run."""
    identity = roster.identities.get(sender)
    if identity is None:
        raise MessageError(
            f"sender={sender}: is not among federation.parties of this party's own config"
        )
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(
            signature, _statement(roster, sender, kind, content)
        )
    except (InvalidSignature, ValueError):
        raise MessageError(
            f"sender={sender} kind={kind}: is not signed by the key that federation.parties lists "
            "for it in this run"
        ) from None


def check_public(public: bytes, sender: str) -> None:
    """Raise MessageError unless these bytes have the form of a party's public keys of a run."""
    if len(public) not in (_X25519_BYTES, _X25519_BYTES + _MLKEM_PUBLIC_BYTES):
        raise MessageError(f"sender={sender}: its keys of the run have {len(public)} bytes")


def check_keys(roster: Roster, sender: str, message: bytes) -> None:
    """Raise MessageError unless these are signed keys of a party of this roster that others can use.

    The aggregator asks the sender again then; without it, all others would refuse to go on.
    """
    public = opened(roster, sender, "keys", message)
    check_public(public, sender)
    try:
        X25519PrivateKey.generate().exchange(
            X25519PublicKey.from_public_bytes(public[:_X25519_BYTES])
        )
    except ValueError:
        raise MessageError(f"sender={sender}: its X25519 key of the run cannot be used") from None
    if HAS_MLKEM and len(public) > _X25519_BYTES:
        encapsulate(public, public, sender)


def check_sealed(roster: Roster, sender: str, peer: str, message: bytes) -> None:
    """Raise MessageError unless this is a secret that a party signed for a peer in this roster."""
    content = opened(roster, sender, f"secret for {peer}", message)
    if len(content) not in (0, _MLKEM_SEALED_BYTES):
        raise MessageError(f"sender={sender}: its secret for {peer} has {len(content)} bytes")


def encapsulate(mine: bytes, theirs: bytes, peer: str) -> tuple[bytes, bytes]:
    """A fresh ML-KEM secret for a peer, and the bytes that only that peer opens; both empty if a
    side has none.
    """
    if _X25519_BYTES in (len(mine), len(theirs)):
        return b"", b""
    try:
        return MLKEM768PublicKey.from_public_bytes(theirs[_X25519_BYTES:]).encapsulate()
    except ValueError:
        raise MessageError(f"sender={peer}: its ML-KEM key of the run cannot be read") from None


def decapsulate(keys: RunKeys, theirs: bytes, sealed: bytes, sender: str) -> bytes:
    """The ML-KEM secret that a peer chose; empty if a side has no ML-KEM."""
    expected = 0 if _X25519_BYTES in (len(keys.public), len(theirs)) else _MLKEM_SEALED_BYTES
    if len(sealed) != expected:
        raise MessageError(
            f"sender={sender}: its encapsulated secret has {len(sealed)} bytes, not {expected}"
        )
    return (
        MLKEM768PrivateKey.from_seed_bytes(keys.raw[64:]).decapsulate(sealed) if expected else b""
    )


def pair_secret(
    roster: Roster, keys: RunKeys, public: Mapping[str, bytes], pair: tuple[str, str], mlkem: bytes
) -> bytes:
    """The secret of two neighbours: both halves, bound to the run, the roster, both names and
    both public keys.
    """
    peer = pair[1]
    try:
        x25519 = keys.agreement.exchange(
            X25519PublicKey.from_public_bytes(public[peer][:_X25519_BYTES])
        )
    except ValueError:
        raise MessageError(f"sender={peer}: its X25519 key of the run cannot be used") from None
    first, second = sorted(pair)
    context = b"".join((roster.digest, public[first], public[second], f"{first}/{second}".encode()))
    return HKDF(hashes.SHA256(), 32, b"homo_dp secure sums v1", context).derive(x25519 + mlkem)


def derived(secret: bytes, purpose: str, sum_id: str) -> bytes:
    """The seed of one pair for one sum and one purpose; another sum has another seed."""
    return _expand(secret, f"pair {purpose} {sum_id}")


def _expand(key: bytes, info: str) -> bytes:
    return HKDFExpand(hashes.SHA256(), 32, b"homo_dp secure sums v1 " + info.encode()).derive(key)


def _statement(roster: Roster, sender: str, kind: str, content: bytes) -> bytes:
    head = f"homo_dp secure sums v1\0{kind}\0{sender}\0".encode()
    return head + roster.digest + content
