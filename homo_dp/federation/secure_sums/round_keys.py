"""One key a party and a sum, from which its pair seeds of that sum follow: what is opened of a
party that is missing.

Where parties may be missing, each shares its keys of all sums with its neighbours before the first
one, so that a party can be taken out of a sum although it is away, and a masked vector carries
shares of one seed only. The aggregator holds a list for every party and sum, its pair seeds under
that key: once a quorum has signed a set without the party, its neighbours open their shares of the
key, and the list can be read. Keys of other sums, and the own seed that masks a late vector, stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums.shares import SECRET_BYTES


@dataclass(frozen=True)
class RoundKeyShares:
    """What a party hands out once a run: for each neighbour its sealed shares, and a list for
    each sum.
    """

    sealed: Mapping[str, bytes]
    lists: Sequence[bytes]


def seed_list(key: bytes, seeds: Sequence[bytes]) -> bytes:
    """Seeds under a key that serves this list only, by AES in counter mode.

    >>> listed = seed_list(b"k" * 32, [b"a" * 32, b"b" * 32])
    >>> listed_seeds(b"k" * 32, listed, 2) == [b"a" * 32, b"b" * 32]
    True
    """
    return Cipher(AES256(key), CTR(bytes(16))).encryptor().update(b"".join(seeds))


def listed_seeds(key: bytes, listed: bytes, count: int) -> list[bytes]:
    """The seeds of a list; raises MessageError where it has another size."""
    if len(listed) != SECRET_BYTES * count:
        raise MessageError(
            f"a list of pair seeds has {len(listed)} bytes, not {SECRET_BYTES * count}"
        )
    text = seed_list(key, [listed])  # the same keystream takes itself off
    return [text[start : start + SECRET_BYTES] for start in range(0, len(text), SECRET_BYTES)]
