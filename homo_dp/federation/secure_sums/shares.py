"""Shamir's secret sharing of 32-byte seeds, over the integers modulo a prime.

pycryptodome has Shamir's scheme too, bit by bit in Python: 0.13 s for one secret among 100 holders
against 2 ms here, and a party shares a secret or two a round
(docs/adr/0006-shamir-over-a-prime-field.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from homo_dp.core.errors import MessageError

SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_PRIME: Final = (1 << 256) + 297  # the smallest prime above every 32-byte secret
# bytes per coefficient: 128 bits more than the prime, so that the reduction is uniform
_SPARE: Final = 48


def split(secret: bytes, threshold: int, holders: int, key: bytes) -> list[bytes]:
    """Shares of a secret for holders 1, 2, ...: any ``threshold`` of them give it back, fewer tell
    nothing.

    The polynomial comes from ``key``, which must be secret and used for this secret only, so that a
    party that starts again sends the same shares.

    >>> shares = split(b"s" * 32, 2, 3, b"k" * 32)
    >>> combine({1: shares[0], 3: shares[2]}) == b"s" * 32
    True
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= holders:
        raise ValueError(
            f"threshold={threshold} holders={holders}: share 32 bytes with 1 <= threshold <= "
            "holders"
        )
    stream = _expand(key, _SPARE * (threshold - 1))
    coefficients = [
        int.from_bytes(stream[start : start + _SPARE]) % _PRIME
        for start in range(0, len(stream), _SPARE)
    ]
    coefficients.insert(0, int.from_bytes(secret))
    return [_value(coefficients, holder).to_bytes(SHARE_BYTES) for holder in range(1, holders + 1)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind at least ``threshold`` shares, each under the number of its holder."""
    holders = tuple(sorted(shares))
    return _secret(_lagrange(holders), [shares[holder] for holder in holders])


def _lagrange(holders: Sequence[int]) -> list[int]:
    """What each holder's share counts in the secret."""
    weights = []
    for holder in holders:
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * other % _PRIME
                below = below * (other - holder) % _PRIME
        weights.append(above * pow(below, -1, _PRIME) % _PRIME)
    return weights


def _secret(weights: Sequence[int], shares: Sequence[bytes]) -> bytes:
    values = [int.from_bytes(share) for share in shares]
    if any(len(share) != SHARE_BYTES for share in shares) or any(
        value >= _PRIME for value in values
    ):
        raise MessageError(
            "a share of a seed has the wrong size; its sender is left out of this sum"
        )
    secret = sum(weight * value for weight, value in zip(weights, values, strict=True)) % _PRIME
    if secret.bit_length() > 8 * SECRET_BYTES:
        raise MessageError(
            "shares of a seed do not fit together: one of their senders altered its share"
        )
    return secret.to_bytes(SECRET_BYTES)


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % _PRIME
    return value


def _expand(key: bytes, size: int) -> bytes:
    """HKDF gives at most 255 hashes a call, so long polynomials are made of several."""
    blocks = [
        HKDFExpand(hashes.SHA256(), min(8160, size - start), b"homo_dp shares %d" % start).derive(
            key
        )
        for start in range(0, size, 8160)
    ]
    return b"".join(blocks)
