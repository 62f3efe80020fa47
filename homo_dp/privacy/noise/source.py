"""Where all randomness that privacy rests on comes from: normals for noise, integers and
binomials for sampling.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.gaussian import fill_normals
from homo_dp.privacy.noise.keystream import SEED_BYTES, Keystream, RepeatableKeystream

__all__ = [
    "NOT_PRIVATE",
    "NoiseSource",
    "SecureNoise",
    "SeededNoise",
    "secure_noise",
]

NOT_PRIVATE = "NOT PRIVATE"

# For each type the standard deviations it can hold: below them noise would vanish.
_TYPES = {
    dtype: (torch.finfo(dtype).tiny, torch.finfo(dtype).max / 64)  # no normal is beyond 14
    for dtype in (torch.float32, torch.float64)
}
# Above this variance a binomial is drawn as the sum of two halves, so that its table stays small.
_LARGEST_TABLE_VARIANCE = 2.0**20


class NoiseSource(ABC):
    """Draws from a keystream; safe to use from several threads.

    Guarantees:
        - a private source keeps no state: every draw has a key of its own from the operating
          system, also in a forked child and in a copy of the process;
        - normals are float64, within a stated bound of ideal ones (``gaussian.py``), and rounded
          where another type is asked for; what is released goes through ``grid.noised``, which
          hides their low bits;
        - integers, choices and binomials are exactly distributed (binomials to a total variation
          below 2**-100);
        - ``private`` is False unless the keystream is one that nobody can repeat;
        - ``secure`` is False unless the normals come from that keystream itself.
    """

    private: bool = False
    secure: bool = False

    def __init__(self) -> None:
        self._stream = Keystream(self._new_seed)

    @abstractmethod
    def _new_seed(self) -> bytes:
        """SEED_BYTES that key a draw."""

    @property
    def label(self) -> str:
        """What every output made with this source has to say about it."""
        return (
            "secure noise"
            if self.private
            else f"{NOT_PRIVATE}: the noise of this source can be repeated"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Independent normals with mean 0 and standard deviation ``std``."""
        _check_type(std, dtype)
        out = np.empty(math.prod(shape))
        fill_normals(self._stream, out, std)
        return torch.from_numpy(out).to(dtype).reshape(tuple(shape))

    def words(self, size: int) -> NDArray[np.uint64]:
        """Independent uniform 64-bit words, in memory of their own."""
        return self._stream.words(_count("size", size))

    def uniform(self, size: int) -> Tensor:
        """Independent float64 multiples of 2**-53 in (0, 1]."""
        out = (self._stream.words(_count("size", size)) >> np.uint64(11)).astype(np.float64)
        out += 1.0
        out *= 2.0**-53
        return torch.from_numpy(out)

    def integers(self, high: int, size: int) -> Tensor:
        """Independent integers, exactly uniform on [0, high)."""
        return torch.from_numpy(
            self._integers(_count("high", high, lowest=1), _count("size", size))
        )

    def binomial(self, n: int, p: float) -> int:
        """How many of ``n`` independent trials of probability ``p`` succeed."""
        n = _count("n", n)
        if not 0 <= p <= 1:
            raise PrivacyError(f"p={p} is outside [0, 1]; give a probability")
        if p == 1:
            return n
        if n * p * (1 - p) > _LARGEST_TABLE_VARIANCE:
            return self.binomial(n // 2, p) + self.binomial(n - n // 2, p)
        first, thresholds = _binomial_table(n, float(p))
        return first + bisect_right(thresholds, int.from_bytes(self._stream.read(16), "little"))

    def choice(self, population: int, size: int) -> Tensor:
        """``size`` distinct indices below ``population``, every such set equally likely, in
        ascending order.
        """
        population, size = _count("population", population), _count("size", size)
        if size > population:
            raise PrivacyError(f"size={size} is outside [0, population={population}]; choose fewer")
        if size == population:
            return torch.arange(population)
        if 2 * size <= population:
            return torch.from_numpy(self._distinct(population, size))
        kept = np.ones(population, np.bool_)
        kept[self._distinct(population, population - size)] = False
        return torch.from_numpy(np.flatnonzero(kept))

    def _integers(self, high: int, size: int) -> NDArray[np.int64]:
        words = self._stream.words(size)
        # A word at or above the largest multiple of high would favour small remainders: draw it
        # again.
        last = 2**64 - 2**64 % high - 1
        while size and int(np.maximum.reduce(words)) > last:
            words = np.concatenate([words[words <= np.uint64(last)], self._stream.words(size)])[
                :size
            ]
        return (words % np.uint64(high)).view(np.int64)

    def _distinct(self, population: int, size: int) -> NDArray[np.int64]:
        if size == 0:
            return np.empty(0, np.int64)
        # Only what is missing is drawn again, so the set never overshoots; no index is special to
        # any step of this, hence all sets of the final size are equally likely.
        chosen = self._integers(population, size).astype(
            np.int32 if population <= 2**31 else np.int64, copy=False
        )
        chosen.sort()  # twice as fast in 32 bits
        while (again := np.flatnonzero(chosen[1:] == chosen[:-1])).size:
            chosen[again] = self._integers(population, again.size)
            chosen.sort()
        return chosen.astype(np.int64, copy=False)


class SecureNoise(NoiseSource):
    """Noise that nobody can repeat: AES-CTR under a fresh key of the operating system for every
    draw.
    """

    private = True
    secure = True

    def _new_seed(self) -> bytes:
        return os.urandom(SEED_BYTES)


class OrdinaryNoise(NoiseSource):
    """What ``secure_mode: false`` asks for: NumPy's normals, from a fresh key of the operating
    system for every draw.

    The guarantee then assumes an observer who does not exploit the generator. Releases lie on the
    same grid.
    """

    private = True

    @property
    def label(self) -> str:
        return "ordinary noise: secure mode is off"

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Independent normals with mean 0 and standard deviation ``std``."""
        _check_type(std, dtype)
        generator = np.random.Generator(
            np.random.SFC64(int.from_bytes(self._stream.read(SEED_BYTES), "little"))
        )
        out = generator.standard_normal(math.prod(shape))
        out *= std
        return torch.from_numpy(out).to(dtype).reshape(tuple(shape))

    def _new_seed(self) -> bytes:
        return os.urandom(SEED_BYTES)


class SeededNoise(NoiseSource):
    """NOT PRIVATE: repeatable noise for tests, with the code paths of the secure source; starts
    again after a fork.

    >>> SeededNoise(7)
    SeededNoise(seed=7, NOT PRIVATE: the noise of this source can be repeated)
    >>> bool((SeededNoise(7).normal([3], 1.0) == SeededNoise(7).normal([3], 1.0)).all())
    True
    """

    private = False

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._stream = RepeatableKeystream(self._new_seed)

    def _new_seed(self) -> bytes:
        return hashlib.sha256(f"homo_dp seeded noise {self.seed}".encode()).digest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seed={self.seed}, {self.label})"


@functools.cache
def secure_noise() -> SecureNoise:
    """The secure source of this process.

    >>> secure_noise() is secure_noise()
    True
    >>> secure_noise().normal([2, 3], std=1.0).shape
    torch.Size([2, 3])
    """
    return SecureNoise()


@functools.lru_cache(maxsize=1024)
def _binomial_table(n: int, p: float) -> tuple[int, list[int]]:
    """The distribution function of Binomial(n, p) in units of 2**-128, from its first value that is
    not 0.

    ``p`` is taken as the exact fraction that the float is, and the weights are integers with 192
    bits at the mode.
    """
    success, whole = p.as_integer_ratio()
    failure = whole - success
    mode = min(n, (n + 1) * success // whole)
    top = 1 << 192
    negligible = 1 << 56  # 2**-136 of the mode

    above = [top]
    for k in range(mode, n):
        above.append(above[-1] * (n - k) * success // ((k + 1) * failure))
        if above[-1] < negligible:
            break
    below: list[int] = []
    weight = top
    for k in range(mode, 0, -1):
        weight = weight * k * failure // ((n - k + 1) * success)
        if weight < negligible:
            break
        below.append(weight)

    weights = below[::-1] + above
    total = sum(weights)
    thresholds, seen = [], 0
    for weight in weights[:-1]:
        seen += weight
        thresholds.append((seen << 128) // total)
    return mode - len(below), thresholds


def _check_type(std: float, dtype: torch.dtype) -> None:
    if dtype not in _TYPES:
        raise PrivacyError(
            f"dtype={dtype} has no secure normals; draw torch.float32 or torch.float64 and convert"
        )
    lowest, highest = _TYPES[dtype]
    if not lowest <= std <= highest:
        raise PrivacyError(
            f"std={std} is outside [{lowest:.3g}, {highest:.3g}]; give noise that {dtype} can hold"
        )


def _count(name: str, value: int, lowest: int = 0) -> int:
    if not (lowest <= value < 2**62 and value // 1 == value):
        raise PrivacyError(
            f"{name}={value} is not a whole number in [{lowest}, 2**62); give a count"
        )
    return int(value)  # NumPy's integers overflow
