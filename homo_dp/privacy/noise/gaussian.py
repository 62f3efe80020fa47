"""Float64 normals from a keystream, by the ziggurat method (Marsaglia & Tsang 2000; Doornik 2005),
many at a time.

The area under the normal density is cut into ``_LAYERS`` pieces of one area: boxes of which the
first ends in the tail. A word chooses a layer by its low bits and a place in it by the others. A
place that lies under the layer above is a normal; of the others, 4 in a thousand, those in the tail
are drawn from it and those above the density are drawn anew.

Errors that grid.py starts from, for a word in ideal arithmetic against the same word here:

- *places*: a word's other bits are one of 2**54 steps of a layer, where an ideal place is anywhere
  in that step, and a product is rounded: at most ``2**-51 + 2**-53 |x|``. In the tail ndtri and 53
  bits of probability, ``2**-50 |x|``.
- *density*: the density at a place is the sum of 1 / width over the layers above it, as the table's
  floats have it, where the density itself decides at the edge of a layer. Widths, heights, the
  exponential and the share of the tail are right to few units in the last place, together a factor
  within ``1 +- 2**-47``.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.privacy.noise.keystream import SLACK_BYTES, Keystream

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# A normal x is within ERROR * max(1, |x|) of one whose density is that of the normal law times 1 +-
# DENSITY_ERROR.
ERROR = 2.0**-50
DENSITY_ERROR = 2.0**-47

_BITS = 10  # of a word choose the layer
_LAYERS = 1 << _BITS
_STEPS = 2.0 ** (63 - _BITS)  # in half a layer: what is left of a word with its sign
# the last place before the tail: the largest for which the layers reach the top
_LAST = 4.038849846109504
# Bytes of keystream worked on at a time: the work arrays of such a piece stay in the second-level
# cache.
PIECE_BYTES = 1 << 18
# A thread that draws next to a trainer takes longer pieces. Each call ends with taking the
# interpreter lock, and every time it has to wait for it, the trainer pays for waking it: that costs
# more than the cache saves.
BACKGROUND_PIECE_BYTES = 1 << 20

_local = threading.local()


def fill_normals(stream: Keystream, out: Floats, std: float) -> None:
    """Overwrite the 1-d array ``out`` with independent normals of standard deviation ``std``.

    Guarantees:
        - each follows the normal law but for the two errors above, times ``std``;
        - no number of the keystream serves two values, and none is kept between draws.
    """
    work, late = _work(), []
    for start in range(0, out.size, work.piece):
        found = work.fill(stream, out[start : start + work.piece], std)
        if found is not None:
            late.append((found[0] + start, found[1], found[2]))
    if late:
        places, layers, values = (np.concatenate(parts) for parts in zip(*late, strict=True))
        out[places] = _settle(stream, layers, values) * std


def draw_in_background() -> None:
    """Let the calling thread draw in few long calls, which disturb other threads less."""
    _local.piece_bytes = BACKGROUND_PIECE_BYTES


class _Work:
    """The arrays of one piece, reused from piece to piece by one thread."""

    def __init__(self, piece_bytes: int) -> None:
        self.piece = piece_bytes // 8
        # From torch, which aligns memory to cache lines.
        self.random = torch.empty(piece_bytes + SLACK_BYTES, dtype=torch.uint8).numpy()
        self.layers, self.limits = (
            torch.empty(self.piece, dtype=torch.int64).numpy() for _ in range(2)
        )
        self.late = torch.empty(self.piece, dtype=torch.bool).numpy()

    def fill(
        self, stream: Keystream, out: Floats, std: float
    ) -> tuple[Integers, Integers, Floats] | None:
        """All that lie under the layer above their own; of the others where they are, their
        layers and places.
        """
        size = out.size
        stream.fill(self.random, 8 * size)
        words, layers, limits = (
            self.random[: 8 * size].view(np.int64),
            self.layers[:size],
            self.limits[:size],
        )
        table = _table()
        np.bitwise_and(words, _LAYERS - 1, out=layers)
        np.right_shift(words, _BITS, out=words)
        np.take(table.scaled(std), layers, out=out, mode="clip")
        np.multiply(out, words, out=out)
        np.take(table.limits, layers, out=limits, mode="clip")
        np.abs(words, out=words)
        places = np.flatnonzero(np.greater_equal(words, limits, out=self.late[:size]))
        if not places.size:
            return None
        layers = layers[places]
        return places, layers, np.copysign(words[places] * table.units[layers], out[places])


def _settle(stream: Keystream, layers: Integers, values: Floats) -> Floats:
    """Standard normals for places that lie beyond the layer above: in the tail, under the
    density, or drawn anew.
    """
    table = _table()
    coins = stream.words(layers.size)
    heights = table.heights[layers]
    heights += (table.heights[layers + 1] - heights) * ((coins.astype(np.float64) + 0.5) * 2.0**-64)
    again = np.flatnonzero((heights >= np.exp(-0.5 * np.square(values))) & (layers > 0))
    tail = np.flatnonzero(layers == 0)
    if tail.size:
        values[tail] = np.copysign(_tail(stream, coins[tail]), values[tail])
    if again.size:
        fresh = np.empty(again.size)
        fill_normals(stream, fresh, 1.0)
        values[again] = fresh
    return values


def _tail(stream: Keystream, words: NDArray[np.uint64]) -> Floats:
    """Normals beyond the last layer, by the inverse of the distribution function; a second word
    goes behind each.
    """
    behind = (stream.words(words.size).astype(np.float64) + 0.5) * 2.0**-64
    probabilities = (words.astype(np.float64) + behind) * (2.0**-64 * _table().tail)
    drawn = torch.from_numpy(probabilities)
    # from 2048 on torch works with threads of its own: in a forked child they do not exist
    step = 2047
    for piece in torch.split(drawn, step):
        torch.special.ndtri(piece, out=piece)
    return -probabilities


class _Table(NamedTuple):
    """The layers, from the one that ends in the tail to the top."""

    units: Floats  # width of a layer over the steps in it
    limits: Integers  # steps of a layer that lie under the one above
    heights: Floats  # where a layer begins, and the last one ends; the density is exp(-x**2 / 2)
    tail: float  # probability beyond the last layer, on one side

    def scaled(self, std: float) -> Floats:
        return self.units if std == 1.0 else self.units * std


@functools.cache
def _table() -> _Table:
    density = math.exp(-0.5 * _LAST**2)
    beyond = math.sqrt(math.pi / 2) * math.erfc(_LAST / math.sqrt(2))
    area = _LAST * density + beyond
    widths, heights = [area / density, _LAST], [0.0, density]
    # sums of 1 / width without rounding: in integers, whose quotient is rounded once
    total = int(density * 2.0**100)
    for _ in range(1, _LAYERS):
        total += int(area / widths[-1] * 2.0**100)
        heights.append(total / (1 << 100))
        if heights[-1] < 1:
            widths.append(math.sqrt(-2 * math.log(heights[-1])))
    across = np.array(widths)
    limits = np.append(across[1:], 0.0) / across * _STEPS
    return _Table(
        across / _STEPS,
        limits.astype(np.int64),
        np.array(heights),
        math.erfc(_LAST / math.sqrt(2)) / 2,
    )


def _work() -> _Work:
    work: _Work | None = getattr(_local, "work", None)
    if work is None:
        work = _local.work = _Work(getattr(_local, "piece_bytes", PIECE_BYTES))
    return work
