"""Masks cancel exactly, and a vector under one looks like no other."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from homo_dp.federation.secure_sums.masks import add_mask


@pytest.mark.parametrize("word", [np.uint64, np.uint32])
@pytest.mark.parametrize("size", [1, 1000, 70_000])
def test_taking_a_mask_off_gives_the_same_integers(word: type, size: int) -> None:
    values: NDArray[Any] = np.arange(size).astype(word)
    masked, seed = values.copy(), os.urandom(32)
    add_mask(masked, seed)
    assert size == 1 or not np.array_equal(masked, values)
    add_mask(masked, seed, subtract=True)
    assert np.array_equal(masked, values)


def test_a_pair_s_masks_cancel_in_the_sum() -> None:
    one, other, seed = np.full(50, 3, np.uint32), np.full(50, 4, np.uint32), os.urandom(32)
    add_mask(one, seed)
    add_mask(other, seed, subtract=True)
    assert (one + other).tolist() == [7] * 50


def test_a_masked_vector_is_uniform() -> None:
    """The top bit of 40,000 words: 8 sigma of the mean is 0.02; a false alarm is below 1e-14."""
    values = np.zeros(40_000, np.uint64)
    add_mask(values, os.urandom(32))
    assert abs(float((values >> np.uint64(63)).mean()) - 0.5) < 0.02


def test_short_seeds_and_signed_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        add_mask(np.zeros(3, np.uint64), b"four")
    with pytest.raises(ValueError, match="uint64 or uint32"):
        add_mask(np.zeros(3, np.int64), os.urandom(32))


def test_every_byte_of_a_seed_counts() -> None:
    """A mask that went by the first bytes of a seed alone could be found by trying them all."""
    streams = set()
    for place in range(-1, 32):
        seed = bytearray(32)
        if place >= 0:
            seed[place] = 1
        values = np.zeros(4, np.uint64)
        add_mask(values, bytes(seed))
        streams.add(values.tobytes())
    assert len(streams) == 33


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 8, 9, 1000, 65_536, 65_545, 150_001])
def test_the_mask_is_the_keystream_of_counter_mode(
    word: type[np.unsignedinteger[Any]], size: int
) -> None:
    """By the plain definition: parties of other versions, and of other libraries, have the same
    masks.
    """
    seed, values = os.urandom(32), np.zeros(size, word)
    add_mask(values, seed)
    stream = Cipher(AES256(seed), CTR(bytes(16))).encryptor().update(bytes(values.nbytes))
    assert values.astype(values.dtype.newbyteorder("<")).tobytes() == stream
