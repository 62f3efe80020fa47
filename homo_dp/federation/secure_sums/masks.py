"""Masks: keystreams of AES in counter mode, added to whole vectors of integers modulo 2^64 or 2^32."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Vector = NDArray[Any]  # of uint64 or uint32: arithmetic wraps modulo 2^64 or 2^32, which is what makes masks cancel
_PIECE = 1 << 16  # numbers at a time: a keystream that stays in the cache


def add_mask(values: Vector, seed: bytes, *, subtract: bool = False) -> None:
    """Add (or take off) the keystream of a 32-byte seed, in place.

    >>> values = np.arange(3, dtype=np.uint64)
    >>> add_mask(values, b"s" * 32); add_mask(values, b"s" * 32, subtract=True); values.tolist()
    [0, 1, 2]
    """
    if len(seed) != 32 or values.dtype not in (np.uint64, np.uint32):
        raise ValueError(f"seed of {len(seed)} bytes, values of {values.dtype}: use 32 bytes and uint64 or uint32")
    # The counter starts at zero: a seed belongs to one pair (or party), one sum and this one use.
    stream = Cipher(AES256(seed), CTR(bytes(16))).encryptor()
    size = values.dtype.itemsize
    zeros = bytes(min(_PIECE, len(values)) * size)
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        mask = np.frombuffer(stream.update(zeros[: len(piece) * size]), dtype=values.dtype.newbyteorder("<"))
        if subtract:
            np.subtract(piece, mask, out=piece)
        else:
            np.add(piece, mask, out=piece)
