"""A stream of cryptographic random bytes: AES in counter mode under a key that no two processes share."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

# 128 bits, as in the generator that Opacus' secure mode was written for: no known attack, and a third faster than 256.
KEY_BYTES = 16
NONCE_BYTES = 16
# OpenSSL wants room for a partial block behind the data, although counter mode never uses it.
SLACK_BYTES = 15

_PLAIN = memoryview(bytes(1 << 20))
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Keystream:
    """Random bytes for any number of threads.

    Guarantees:
        - no byte is handed out twice: the counter moves under a lock, and nothing is buffered;
        - a forked child never continues its parent's stream: it asks ``new_seed`` for a fresh one first.
    """

    def __init__(self, new_seed: Callable[[], bytes]) -> None:
        self._new_seed = new_seed
        self._state = self._fresh()

    @classmethod
    def from_entropy(cls) -> Keystream:
        """A stream keyed by the operating system."""
        return cls(lambda: os.urandom(KEY_BYTES + NONCE_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Keystream:
        """A stream that anyone who knows the seed can repeat; a forked child starts it again."""
        digest = hashlib.sha256(f"homo_dp seeded noise {seed}".encode()).digest()
        return cls(lambda: digest)

    def fill(self, out: NDArray[np.uint8], size: int) -> None:
        """Overwrite the first ``size`` bytes of ``out``, which is at least SLACK_BYTES longer."""
        state = self._state
        if state.forks != _forks:
            # Two threads of a child may both come here: each uses a fresh stream of its own, and the last one stays.
            state = self._state = self._fresh()
        with state.lock:
            for start in range(0, size, len(_PLAIN)):
                stop = min(start + len(_PLAIN), size)
                state.encryptor.update_into(_PLAIN[: stop - start], out[start : stop + SLACK_BYTES])

    def words(self, size: int) -> NDArray[np.uint64]:
        """``size`` uniform 64-bit words, in memory of their own."""
        out = np.empty(8 * size + SLACK_BYTES, np.uint8)
        self.fill(out, 8 * size)
        return out[: 8 * size].view(np.uint64)

    def _fresh(self) -> _State:
        seed = self._new_seed()
        cipher = Cipher(algorithms.AES(seed[:KEY_BYTES]), modes.CTR(seed[KEY_BYTES : KEY_BYTES + NONCE_BYTES]))
        return _State(_forks, cipher.encryptor())


class _State:
    """One key in use, its lock, and how many forks this process had behind it when the key was drawn."""

    def __init__(self, forks: int, encryptor: Any) -> None:
        self.forks = forks
        self.encryptor = encryptor
        self.lock = threading.Lock()
