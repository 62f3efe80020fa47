"""A place in [0, 1) for each row of a private table: a keyed hash of that row alone.

Who is held out, and which party gets a row, is decided by comparing its place with public numbers.
So a row that is added or removed changes its own place and no other. A permutation of the row count
lacks this property: one row more reshuffles the whole table, and the clipped sum moves by many
times the clip norm that the noise was chosen for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from homo_dp.data.rows import Rows

_ROWS_AT_ONCE = 4096
# bytes: rows of different content do not share a digest, even rows that somebody crafted for it
_DIGEST = 16


def row_places(rows: Rows, part: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """The places of some rows, from what a model would see of them (features and label).

    Rows with the same content cannot be told apart, so the first of them has one place, the second
    another, and so on: one such row more adds one place and changes none.

    Guarantees:
        - the places of two tables that differ in one row differ in one place (as multisets over
          equal rows);
        - places of different rows are independent and uniform, as far as keyed BLAKE2b is a random
          function.
    """
    digests = _digests(_contents(rows, part), _key(seed, purpose))
    if len(np.unique(digests[:, 0])) == len(digests):
        return _uniform(digests)  # all rows differ, as in most tables
    again = pd.DataFrame({"high": digests[:, 0], "low": digests[:, 1]})
    twins = again.duplicated().to_numpy()
    if twins.any():
        number = again.groupby(["high", "low"], sort=False).cumcount().to_numpy()
        repeated = (
            digests[at].tobytes() + int(number[at]).to_bytes(8, "big")
            for at in np.flatnonzero(twins)
        )
        digests[twins] = _digests(repeated, _key(seed, f"{purpose} again"))
    return _uniform(digests)


def name_places(names: Iterable[str], seed: int, purpose: str) -> np.ndarray:
    """The places of users by their names.

    >>> bool(np.array_equal(name_places(["a", "b"], 1, "test"), name_places(["b", "a"], 1, "test")[::-1]))
    True
    """
    return _uniform(_digests((str(name).encode() for name in names), _key(seed, purpose)))


def _contents(rows: Rows, part: np.ndarray) -> Iterator[bytes]:
    for at in range(0, len(part), _ROWS_AT_ONCE):
        some = part[at : at + _ROWS_AT_ONCE]
        features = rows.features[some].numpy().reshape(len(some), -1).view(np.uint8)
        labels = rows.labels[some].numpy().reshape(len(some), -1).view(np.uint8)
        content = np.concatenate([features, labels], axis=1)
        width, text = content.shape[1], content.tobytes()
        yield from (text[start : start + width] for start in range(0, len(text), width))


def _digests(contents: Iterable[bytes], key: bytes) -> np.ndarray:
    """Two 64-bit numbers for each content."""
    blake2b = hashlib.blake2b
    joined = b"".join(
        [blake2b(content, digest_size=_DIGEST, key=key).digest() for content in contents]
    )
    return np.frombuffer(joined, dtype=">u8").reshape(-1, 2).astype(np.uint64)


def _key(seed: int, purpose: str) -> bytes:
    return hashlib.blake2b(f"homo_dp places\n{seed}\n{purpose}".encode(), digest_size=32).digest()


def _uniform(digests: np.ndarray) -> np.ndarray:
    places: np.ndarray = (digests[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return places
