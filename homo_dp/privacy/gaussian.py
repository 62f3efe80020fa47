"""Standard normals from a keystream, hardened against floating-point attacks by the four-fold sum."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.privacy.keystream import SLACK_BYTES, Keystream

SUMMANDS = 4
# Bytes of keystream worked on at a time: the two work arrays of such a piece stay in the second-level cache.
PIECE_BYTES = 1 << 19
# A thread that draws next to a trainer takes longer pieces. Each call ends with taking the interpreter lock, and every
# time it has to wait for it, the trainer pays for waking it: that costs more than the cache saves.
BACKGROUND_PIECE_BYTES = 1 << 22
# From here on torch works with threads of its own: in a forked child they do not exist, and it would wait for ever.
_PARALLEL = 2048

_local = threading.local()


def fill_normals(stream: Keystream, out: NDArray[np.floating], std: float) -> None:
    """Overwrite the 1-d array ``out`` (float32 or float64) with secure normals of standard deviation ``std``.

    Each value is the sum of four independent Box-Muller normals, halved: Holohan & Braghin, "Secure Random Sampling in
    Differential Privacy" (arXiv:2107.10138), section 5.1 with n = 2. The cosine and sine of one pair go to two
    different values: in one sum they would be a single normal again. Opacus throws one normal away first, so that no
    half of an earlier pair is used; here no half is ever kept between draws.
    """
    if out.size == 0:
        return
    work = _work(out.dtype)
    pieces = -(-out.size // work.piece)
    step = 2 * -(-out.size // (2 * pieces))  # even pieces of one size, but for the last one
    for start in range(0, out.size, step):
        work.fill(stream, out[start : start + step], std)


def draw_in_background() -> None:
    """Let the calling thread draw in few long calls, which disturb other threads less."""
    _local.piece_bytes = BACKGROUND_PIECE_BYTES


class _Work:
    """The arrays of one piece, reused from piece to piece by one thread."""

    def __init__(self, dtype: np.dtype[np.floating], piece_bytes: int) -> None:
        self.integer = np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)
        self.piece = piece_bytes // (SUMMANDS * dtype.itemsize)
        # From torch, which aligns memory to cache lines.
        self.random = torch.empty(piece_bytes + SLACK_BYTES, dtype=torch.uint8).numpy()
        self.floats = torch.empty(piece_bytes, dtype=torch.uint8).numpy().view(dtype)
        bits = 8 * self.integer.itemsize - 1
        self.lowest = self.integer.type(-(2**bits))
        self.units = np.array([[-1.0], [np.pi]], dtype) / dtype.type(2**bits)
        self.minus_half = dtype.type(-0.5)

    def fill(self, stream: Keystream, out: NDArray[np.floating], std: float) -> None:
        half = (out.size + 1) // 2
        pairs = SUMMANDS * half
        size = 2 * self.integer.itemsize * pairs
        stream.fill(self.random, size)
        integers = self.random[:size].view(self.integer)
        floats = self.floats[: 2 * pairs].reshape(2, pairs)
        radius, angle = floats

        # With its sign bit set a random integer k is uniform on -2**31 ... -1, so that u = -k / 2**31 is
        # in (0, 1], finest where the tail of the normal comes from. The angles are signed: [-pi, pi).
        np.bitwise_or(integers[:pairs], self.lowest, out=integers[:pairs])
        np.copyto(floats, integers.reshape(2, pairs), casting="unsafe")
        floats *= self.units
        # Half of Box-Muller's radius sqrt(-2 ln u), up to 6.5 in float32, so that the halved sum of four is cut at 13
        # and true far beyond 8. Halving is exact, so it may be done before the sum.
        np.log(radius, out=radius)
        radius *= self.minus_half
        np.sqrt(radius, out=radius)

        circle = integers.view(out.dtype).reshape(2, pairs)  # the integers are used up
        _cos_and_sin(angle, circle)
        sums = out if out.size == 2 * half else np.empty(2 * half, out.dtype)
        np.einsum(
            "kij,ij->kj",
            circle.reshape(2, SUMMANDS, half),
            radius.reshape(SUMMANDS, half),
            out=sums.reshape(2, half),
        )
        if sums is not out:
            out[:] = sums[: out.size]
        if std != 1:
            out *= out.dtype.type(std)


def _cos_and_sin(angle: NDArray[np.floating], out: NDArray[np.floating]) -> None:
    if angle.itemsize == 4:
        np.cos(angle, out=out[0])
        np.sin(angle, out=out[1])
    else:  # eight times as fast as NumPy's, which has no vector form for float64
        step = max(1, angle.size) if torch.get_num_threads() == 1 else _PARALLEL - 1
        pieces = (torch.split(torch.from_numpy(array), step) for array in (angle, out[0], out[1]))
        for angles, cosines, sines in zip(*pieces, strict=True):
            torch.cos(angles, out=cosines)
            torch.sin(angles, out=sines)


def _work(dtype: np.dtype[np.floating]) -> _Work:
    name = f"work_{dtype.name}"
    work: _Work | None = getattr(_local, name, None)
    if work is None:
        work = _Work(dtype, getattr(_local, "piece_bytes", PIECE_BYTES))
        setattr(_local, name, work)
    return work
