"""Integers from the discrete Gaussian around given real numbers, in bulk: randomised rounding that keeps sums Gaussian.

``D(c)`` takes the integer k with a probability proportional to exp(-(k - c)**2 / (2 WIDTH**2)). If c = t + x with x
normal of variance v, then D(c) follows the discrete Gaussian around t of variance v + WIDTH**2, up to a relative
2 exp(-2 pi**2 WIDTH**2) < 1e-33 per number (Peikert 2010, theorem 3.1; Micciancio & Walter 2017), and the sum of
N such integers is, to the same precision, D of the sum of the t plus one normal with the variances added. Two uses:

- one number: D(t + x) is a function of t + x and of fresh coins, whatever D is: post-processing of the Gaussian
  mechanism, without a term for rounding in the sensitivity;
- a sum over parties that each add a part of the noise: post-processing of the Gaussian mechanism with all of it.

The centre is first rounded to a multiple of 1 / FRACTIONS, so that tables serve: also a function of t + x, and in the
sum one more independent term of a width of 1/256, which changes nothing of the argument.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

WIDTH = 2.0  # eta, in steps
FRACTIONS = 256  # centres between two integers
_SLOTS = 64  # integers in a table: nearly 16 widths to each side of the centre
_BITS = 58  # of a 64-bit word, 6 choose a slot and the others decide between it and its alias
_LARGEST = 2.0**52 * FRACTIONS  # which still are 64-bit integers
_PIECE = 1 << 14  # numbers at a time, so that the arrays stay in the cache


def draw_around(centres: NDArray[np.float64], words: Callable[[int], NDArray[np.uint64]]) -> NDArray[np.int64]:
    """One integer a centre; ``words(n)`` gives n uniform 64-bit words.

    Guarantees:
        - each integer has the probability above to 2**-58, for the centre's nearest multiple of 1 / FRACTIONS.

    >>> def random_words(size: int) -> NDArray[np.uint64]:
    ...     return np.random.default_rng(0).integers(0, 2**64, size, np.uint64)
    >>> drawn = draw_around(np.full(100_000, 7.25), random_words)
    >>> drawn.mean().round(1), drawn.std().round(1)
    (np.float64(7.3), np.float64(2.0))
    """
    drawn = np.empty(centres.size, np.int64)
    for start in range(0, centres.size, _PIECE):
        _fill(drawn[start : start + _PIECE], centres[start : start + _PIECE], words)
    return drawn


def _fill(out: NDArray[np.int64], centres: NDArray[np.float64], words: Callable[[int], NDArray[np.uint64]]) -> None:
    scaled = centres * FRACTIONS
    if not -_LARGEST < scaled.min() <= scaled.max() < _LARGEST:
        raise ValueError("a sum with noise is not finite, or too large for its grid; raise the noise multiplier")
    fine = np.rint(scaled, out=scaled).astype(np.int64)
    random = words(centres.size)
    # The slot of an alias table (Walker 1977) in the top bits of the word, the coin in the bits below them.
    slots = (random >> np.uint64(_BITS)).view(np.int64)
    random &= np.uint64((1 << _BITS) - 1)
    np.right_shift(fine, FRACTIONS.bit_length() - 1, out=out)
    out -= _SLOTS // 2 - 1
    fine &= FRACTIONS - 1
    fine *= _SLOTS
    fine += slots
    thresholds, aliases = _tables()
    moves = aliases.take(fine)  # from the slot to its alias
    moves *= random >= thresholds.take(fine)
    out += slots
    out += moves


@functools.cache
def _tables() -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """For every fraction and slot: the coins that stay in the slot, out of 2**_BITS, and how far the others go."""
    thresholds = np.empty((FRACTIONS, _SLOTS), np.uint64)
    aliases = np.empty((FRACTIONS, _SLOTS), np.int64)
    for fraction in range(FRACTIONS):
        weights = _weights(fraction)
        small = [slot for slot in range(_SLOTS) if weights[slot] < 1 << _BITS]
        large = [slot for slot in range(_SLOTS) if weights[slot] >= 1 << _BITS]
        thresholds[fraction], aliases[fraction] = 1 << _BITS, np.arange(_SLOTS)
        while small and large:
            slot, giver = small.pop(), large[-1]
            thresholds[fraction, slot], aliases[fraction, slot] = weights[slot], giver
            weights[giver] -= (1 << _BITS) - weights[slot]
            if weights[giver] < 1 << _BITS:
                small.append(large.pop())
    return thresholds.reshape(-1), (aliases - np.arange(_SLOTS)).reshape(-1)


def _weights(fraction: int) -> list[int]:
    """Whole-numbered weights of the slots with the sum _SLOTS * 2**_BITS."""
    bell = _bell()
    exact = [bell[abs((slot - (_SLOTS // 2 - 1)) * FRACTIONS - fraction)] for slot in range(_SLOTS)]
    total = sum(exact)
    weights = [weight * (_SLOTS << _BITS) // total for weight in exact]
    weights[exact.index(max(exact))] += (_SLOTS << _BITS) - sum(weights)
    return weights


@functools.cache
def _bell() -> list[int]:
    """exp(-(m / FRACTIONS)**2 / (2 WIDTH**2)) for m = 0, 1, ... in units of 2**-192: products, rounded down."""
    with decimal.localcontext() as context:
        context.prec = 70
        unit = decimal.Decimal(-1) / (2 * int(WIDTH) ** 2 * FRACTIONS**2)
        ratio, square = (int(power.exp() * 2**192) for power in (unit, 2 * unit))
    values = [1 << 192]
    for _ in range(FRACTIONS * (_SLOTS // 2 + 1)):  # exp(-(m + 1)**2) = exp(-m**2) * exp(-1)**(2 m + 1)
        values.append(values[-1] * ratio >> 192)
        ratio = ratio * square >> 192
    return values
