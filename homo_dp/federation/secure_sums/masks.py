"""Masks: keystreams of AES in counter mode, added to whole vectors of integers modulo 2^64 or 2^32.

AES-GCM encrypts by the same counter mode, from the third block on where nonce and counter start at
zero. OpenSSL has wide vector instructions for GCM alone, so that its bytes come more than twice as
fast; the first two blocks, which it keeps for its tag, are made by counter mode itself.
"""

from __future__ import annotations

import hmac
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from numpy.typing import NDArray

from homo_dp.privacy.noise.keystream import SLACK_BYTES

# of uint64 or uint32: arithmetic wraps modulo 2^64 or 2^32, which is what makes masks cancel
Vector = NDArray[Any]
_PIECE = 1 << 18  # bytes at a time: a keystream that stays in the cache
_ZEROS = memoryview(bytes(_PIECE))
_FIRST = 32  # bytes before those of GCM


def add_mask(values: Vector, seed: bytes, terms: bytes = b"", *, subtract: bool = False) -> None:
    """Add (or take off) the keystream of a 32-byte seed, in place.

    Args:
        values: the integers.
        seed: of the party or pair, for one sum.
        terms: what all who mask the sum have to agree on: the size of a word, the step of the grid
            and what the noise was planned by. Under other terms the keystream is another one, so
            that masks do not cancel. Laid over words of another size, one keystream would cancel in
            half of their bits and show them.
        subtract: take it off.

    >>> values = np.arange(3, dtype=np.uint64)
    >>> add_mask(values, b"s" * 32); add_mask(values, b"s" * 32, subtract=True); values.tolist()
    [0, 1, 2]
    """
    if len(seed) != 32 or values.dtype not in (np.uint64, np.uint32):
        raise ValueError(
            f"seed of {len(seed)} bytes, values of {values.dtype}: use 32 bytes and uint64 or "
            "uint32"
        )
    key = hmac.digest(seed, b"mask terms " + terms, "sha256") if terms else seed
    # The counter starts at zero: a seed belongs to one pair (or party), one sum and this one use.
    first = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    rest = Cipher(AES256(key), GCM(bytes(12))).encryptor()
    size, change = values.dtype.itemsize, np.subtract if subtract else np.add
    room = np.empty(max(_FIRST, min(_PIECE, values.nbytes)) + SLACK_BYTES, np.uint8)
    mask = room[:-SLACK_BYTES].view(values.dtype.newbyteorder("<"))
    start, step, stream = 0, _FIRST // size, first
    while start < len(values):
        piece = values[start : start + step]
        stream.update_into(_ZEROS[: piece.nbytes], room.data[: piece.nbytes + SLACK_BYTES])
        change(piece, mask[: len(piece)], out=piece)
        start, step, stream = start + step, _PIECE // size, rest
