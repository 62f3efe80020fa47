"""Cryptographic random bytes: AES in counter mode, under a fresh key for every draw.

A copy of a running process (a restored snapshot of a machine, CRIU, a fork outside Python) has the
state of every generator in it. So a private source keeps no state between draws: each draw is
keyed by the operating system when it is made, which costs 5 microseconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

# A 128-bit key, as in the generator that Opacus' secure mode was written for: no known attack, a
# third faster than 256.
KEY_BYTES = 16
SEED_BYTES = KEY_BYTES + 16  # the key, then the first counter block
# Older OpenSSL bindings want room for a partial block behind the data, although counter mode never
# uses it.
SLACK_BYTES = 15

_PLAIN = memoryview(bytes(1 << 20))
_forks = 0  # between this process and the first one
_process = os.getpid()


def _count_fork() -> None:
    global _forks, _process
    _forks, _process = _forks + 1, os.getpid()


os.register_at_fork(after_in_child=_count_fork)


def forks() -> int:
    """How many forks lie between this process and the first: what was drawn at another count is
    another process's.

    Unlike a process number, which a later process or another container may get again, it never
    comes back. The process number shows a fork outside Python, of which Python's hooks are not
    told.

    >>> forks() == forks()
    True
    """
    if _process != os.getpid():
        _count_fork()
    return _forks


class Keystream:
    """Random bytes for any number of threads, each draw under a key of its own.

    Guarantees:
        - ``new_seed`` is asked for a key at every draw, and nothing is kept for later: neither
          another thread, a forked child nor a copy of this process repeats a byte, as long as the
          operating system gives each its own entropy.
    """

    def __init__(self, new_seed: Callable[[], bytes]) -> None:
        self._new_seed = new_seed

    def read(self, size: int) -> bytes:
        """A few bytes."""
        key = self._key()
        with key.lock:
            return key.encryptor.update(_PLAIN[:size])

    def fill(self, out: NDArray[np.uint8], size: int) -> None:
        """Overwrite the first ``size`` bytes of ``out``, which is at least SLACK_BYTES longer."""
        key = self._key()
        with key.lock:
            for start in range(0, size, len(_PLAIN)):
                step = min(len(_PLAIN), size - start)
                key.encryptor.update_into(
                    _PLAIN[:step], out.data[start : start + step + SLACK_BYTES]
                )

    def words(self, size: int) -> NDArray[np.uint64]:
        """``size`` uniform 64-bit words, in memory of their own."""
        out = np.empty(8 * size + SLACK_BYTES, np.uint8)
        self.fill(out, 8 * size)
        return out[: 8 * size].view(np.uint64)

    def _key(self) -> _Key:
        return _Key(self._new_seed())


class RepeatableKeystream(Keystream):
    """NOT PRIVATE: one stream under one key, which starts again after a fork; for tests."""

    def __init__(self, new_seed: Callable[[], bytes]) -> None:
        super().__init__(new_seed)
        self._kept = super()._key()

    def _key(self) -> _Key:
        if self._kept.forks != forks():
            self._kept = super()._key()
        return self._kept


class _Key:
    """A key in use, its lock, and the fork count of the process that drew it."""

    def __init__(self, seed: bytes) -> None:
        self.forks = forks()
        self.lock = threading.Lock()
        self.encryptor = Cipher(
            algorithms.AES(seed[:KEY_BYTES]), modes.CTR(seed[KEY_BYTES:SEED_BYTES])
        ).encryptor()
