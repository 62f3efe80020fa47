"""Float64 normals from a keystream, by the inverse of the normal distribution function.

One uniform word makes one normal: a monotone map, so that a bound on the error of the map is all there is to know about
how far the normals are from ideal ones. ``grid.py`` turns that bound into what a release may differ by.
"""

from __future__ import annotations

import math
import threading

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.privacy.noise.keystream import SLACK_BYTES, Keystream

# A normal x differs from that of ideal arithmetic and endless uniform bits by at most ERROR * max(1, |x|). Between the
# tails: rounding the uniform (2**-54, times 12.7, the slope of the inverse at |x| = 2.15) and a few units in the last
# place of erfinv. In the tails: 53 bits of the tail's own probability, and ndtri.
# tests/privacy/noise/test_source.py measures it.
ERROR = 2.0**-49
# Uniforms beyond +-_CENTRE are tails: there a uniform near 1 resolves the probability that is left too coarsely.
_CENTRE = 31 / 32
# Tail words below have fewer than 53 bits: another word goes behind them.
_FEW_BITS = 1 << 52
# Bytes of keystream worked on at a time: the work arrays of such a piece stay in the second-level cache.
PIECE_BYTES = 1 << 18
# A thread that draws next to a trainer takes longer pieces. Each call ends with taking the interpreter lock, and every
# time it has to wait for it, the trainer pays for waking it: that costs more than the cache saves.
BACKGROUND_PIECE_BYTES = 1 << 22
# From here on torch works with threads of its own: in a forked child they do not exist, and it would wait for ever.
_PARALLEL = 2048

_local = threading.local()


def fill_normals(stream: Keystream, out: NDArray[np.float64], std: float) -> None:
    """Overwrite the 1-d array ``out`` with independent normals of standard deviation ``std``.

    Guarantees:
        - each is a monotone function of uniform bits of its own, within ``ERROR * max(std, |x|)`` of the ideal one;
        - no number of the keystream serves two values, and none is kept between draws.
    """
    work = _work()
    for start in range(0, out.size, work.piece):
        work.fill(stream, out[start : start + work.piece], std)


def draw_in_background() -> None:
    """Let the calling thread draw in few long calls, which disturb other threads less."""
    _local.piece_bytes = BACKGROUND_PIECE_BYTES


class _Work:
    """The bytes of one piece, reused from piece to piece by one thread."""

    def __init__(self, piece_bytes: int) -> None:
        self.piece = piece_bytes // 8
        # From torch, which aligns memory to cache lines.
        self.random = torch.empty(piece_bytes + SLACK_BYTES, dtype=torch.uint8).numpy()

    def fill(self, stream: Keystream, out: NDArray[np.float64], std: float) -> None:
        stream.fill(self.random, 8 * out.size)
        words = self.random[: 8 * out.size].view(np.int64)
        np.multiply(words, 2.0**-63, out=out, casting="unsafe")
        tails = np.flatnonzero(np.abs(out) > _CENTRE)
        probabilities, signs = _tails(stream, words[tails])
        out[tails] = 0.0  # erfinv is slow close to 1
        _apply(torch.erfinv, out)
        out *= math.sqrt(2) * std
        if tails.size:
            _apply(torch.special.ndtri, probabilities)
            out[tails] = probabilities * signs * -std


def _tails(stream: Keystream, words: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The probability beyond each word's value, below 1/64 and with 53 bits, and the side it is on."""
    left = ((1 << 63) - 1) - (words ^ (words >> 63))  # how many magnitudes are farther out
    probabilities = (left.astype(np.float64) + 0.5) * 2.0**-64
    few = np.flatnonzero(left < _FEW_BITS)
    if few.size:
        behind = (stream.words(few.size).astype(np.float64) + 0.5) * 2.0**-64
        probabilities[few] = (left[few] + behind) * 2.0**-64
    return probabilities, np.where(words < 0, -1.0, 1.0)


def _apply(function: object, values: NDArray[np.float64]) -> None:
    """A function of torch in place: with vector instructions where NumPy and SciPy have none, and without threads."""
    step = max(1, values.size) if torch.get_num_threads() == 1 else _PARALLEL - 1
    for piece in torch.split(torch.from_numpy(values), step):
        function(piece, out=piece)  # type: ignore[operator]


def _work() -> _Work:
    work: _Work | None = getattr(_local, "work", None)
    if work is None:
        work = _local.work = _Work(getattr(_local, "piece_bytes", PIECE_BYTES))
    return work
