"""Standard normals from a keystream, hardened against floating-point attacks by the four-fold sum."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.privacy.keystream import SLACK_BYTES, Keystream

SUMMANDS = 4
# Outputs computed at a time: all work arrays of one piece stay in the second-level cache.
PIECE = 16384

_local = threading.local()


def fill_normals(stream: Keystream, out: NDArray[np.floating], std: float) -> None:
    """Overwrite the 1-d array ``out`` (float32 or float64) with secure normals of standard deviation ``std``.

    Each value is the sum of four independent Box-Muller normals, halved: Holohan & Braghin, "Secure Random Sampling in
    Differential Privacy" (arXiv:2107.10138), section 5.1 with n = 2. The cosine and sine of one pair go to two
    different values: in one sum they would be a single normal again. Opacus throws one normal away first, so that no
    half of an earlier pair is used; here no half is ever kept between draws.
    """
    work = _work(out.dtype)
    for start in range(0, out.size, PIECE):
        work.fill(stream, out[start : start + PIECE], std)


class _Work:
    """The arrays of one piece, one row a summand, reused from piece to piece by one thread."""

    def __init__(self, dtype: np.dtype[np.floating]) -> None:
        pairs = SUMMANDS * PIECE // 2
        self.integer = np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)
        self.random = np.empty(2 * self.integer.itemsize * pairs + SLACK_BYTES, np.uint8)
        self.radius, self.angle, self.product = (np.empty(pairs, dtype) for _ in range(3))
        largest = 2 ** (8 * self.integer.itemsize - 1) - 1
        self.mask = self.integer.type(largest)
        self.one, self.minus_two = dtype.type(1), dtype.type(-2)
        self.radius_unit, self.angle_unit = dtype.type(1 / (largest + 1)), dtype.type(np.pi / (largest + 1))

    def fill(self, stream: Keystream, out: NDArray[np.floating], std: float) -> None:
        half = (out.size + 1) // 2
        pairs = SUMMANDS * half
        size = 2 * self.integer.itemsize * pairs
        stream.fill(self.random, size)
        integers = self.random[:size].view(self.integer)
        radii, angles = integers[:pairs], integers[pairs:]
        radius, angle, product = self.radius[:pairs], self.angle[:pairs], self.product[:pairs]

        # u = (k + 1) / 2**31 (or 2**63) is in (0, 1], finest where the tail of the normal comes from, and the radius
        # is sqrt(-2 ln u): up to 6.5 in float32, so that the halved sum of four is cut at 13 and true far beyond 8.
        np.bitwise_and(radii, self.mask, out=radii)
        np.copyto(radius, radii, casting="unsafe")
        radius += self.one
        radius *= self.radius_unit
        np.log(radius, out=radius)
        radius *= self.minus_two
        np.sqrt(radius, out=radius)
        # Signed integers over the whole circle: [-pi, pi).
        np.copyto(angle, angles, casting="unsafe")
        angle *= self.angle_unit

        self.cos(angle, product)
        product *= radius
        np.add.reduce(product.reshape(SUMMANDS, half), axis=0, out=out[:half])
        self.sin(angle, product)
        product *= radius
        np.add.reduce(product.reshape(SUMMANDS, half)[:, : out.size - half], axis=0, out=out[half:])
        out *= out.dtype.type(std / 2)  # the square root of SUMMANDS

    def cos(self, angle: NDArray[np.floating], out: NDArray[np.floating]) -> None:
        if angle.itemsize == 4:
            np.cos(angle, out=out)
        else:  # eight times as fast as NumPy's, which has no vector form for float64
            torch.cos(torch.from_numpy(angle), out=torch.from_numpy(out))

    def sin(self, angle: NDArray[np.floating], out: NDArray[np.floating]) -> None:
        if angle.itemsize == 4:
            np.sin(angle, out=out)
        else:
            torch.sin(torch.from_numpy(angle), out=torch.from_numpy(out))


def _work(dtype: np.dtype[np.floating]) -> _Work:
    name = f"work_{dtype.name}"
    work: _Work | None = getattr(_local, name, None)
    if work is None:
        work = _Work(dtype)
        setattr(_local, name, work)
    return work
