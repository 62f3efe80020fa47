"""Integers from the discrete Gaussian around given real numbers, in bulk: randomised rounding that
keeps sums Gaussian.

``D(c)`` takes the integer k with a probability proportional to exp(-(k - c)**2 / (2 WIDTH**2)). If
c = t + x with x normal of variance v, then D(c) follows the discrete Gaussian around t of variance
v + WIDTH**2, up to a relative 2 exp(-2 pi**2 WIDTH**2) < 1e-33 per number (Peikert 2010, theorem
3.1; Micciancio & Walter 2017), and the sum of N such integers is, to the same precision, D of the
sum of the t plus one normal with the variances added. Two uses:

- one number: D(t + x) is a function of t + x and of fresh coins, whatever D is: post-processing of
  the Gaussian mechanism, without a term for rounding in the sensitivity;
- a sum over parties that each add a part of the noise: post-processing of the Gaussian mechanism
  with all of it.

The centre is first rounded to a multiple of 1 / FRACTIONS, and probabilities are kept to 2**-32
each, so that small tables serve. Neither costs privacy, also in a sum: given the sum of all c,
which the Gaussian mechanism may show, the fractional parts of the c are uniform and tell nothing of
the t, up to exp(-pi**2 v) with v at least 64**2, whatever D makes of them (Poisson summation;
docs/secure_aggregation.md).
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
_SLOT_BITS = 6
_BITS = 26  # of a 32-bit word, 6 choose a slot and the others decide between it and its alias
LARGEST_CENTRE = 2.0**42
# A float64 of this size has units in the last place: added to another, its low bits are the nearest
# integer.
_SHIFT = 1.5 * 2.0**52
_SHIFTED = int(np.float64(_SHIFT).view(np.int64)) // FRACTIONS + _SLOTS // 2 - 1
_PIECE = 1 << 15  # numbers at a time: few calls, and arrays that stay in the cache


def draw_around(
    values: NDArray[np.float64],
    words: Callable[[int], NDArray[np.uint64]],
    scale: float = 1.0,
    beside: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """One integer for each value times ``scale``.

    Args:
        values: the centres, or what is to be added to ``beside``.
        words: ``words(n)`` gives n uniform 64-bit words.
        scale: a power of two.
        beside: added to the values without rounding: a float64 sum would keep fewer bits of its
            fraction the larger it is, and rounding could then tell how large.

    Returns:
        The integers.

    Guarantees:
        - each integer has the probability above to 2**-32, for the centre's nearest multiple of 1 /
          FRACTIONS;
        - it is a function of the centre and of fresh random bits alone, and of a centre that is
          larger by a whole number it is larger by that number; but for a relative 2**-52 of a
          fraction.

    >>> def random_words(size: int) -> NDArray[np.uint64]:
    ...     return np.random.default_rng(0).integers(0, 2**64, size, np.uint64)
    >>> drawn = draw_around(np.full(100_000, 7.25), random_words)
    >>> drawn.mean().round(1), drawn.std().round(1)
    (np.float64(7.3), np.float64(2.0))
    """
    drawn = np.empty(values.size, np.int64)
    for start in range(0, values.size, _PIECE):
        here = slice(start, start + _PIECE)
        whole, centres = _split(values[here] * scale)
        if beside is not None:
            more, fractions = _split(beside[here] * scale)
            whole += more
            centres += fractions
        if not -LARGEST_CENTRE < whole.min() <= whole.max() < LARGEST_CENTRE:
            raise ValueError(
                "a sum with noise is not finite, or too large for its grid; raise the noise "
                "multiplier"
            )
        centres *= FRACTIONS
        _fill(drawn[here], centres, words((centres.size + 1) // 2))
        drawn[here] += whole.astype(np.int64)
    return drawn


def _split(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Whole numbers and what is above them, both exact."""
    with np.errstate(invalid="ignore"):  # of an infinite value, which is refused
        whole = np.floor(values)
        values -= whole
    return whole, values


def _fill(out: NDArray[np.int64], centres: NDArray[np.float64], words: NDArray[np.uint64]) -> None:
    """Overwrites the centres, which are in units of 1 / FRACTIONS and below 2."""
    centres += _SHIFT
    fine = centres.view(np.int64)
    random = words.view(np.uint32)[: centres.size]
    # The slot of an alias table (Walker 1977) in the low bits of the word, the coin in the bits
    # above them.
    slots = random & np.uint32(_SLOTS - 1)
    random |= np.uint32(_SLOTS - 1)  # the coin alone is compared with an entry
    np.bitwise_and(fine, FRACTIONS - 1, out=out)
    out <<= _SLOT_BITS
    out |= slots
    entries = _table().take(out)
    leaves = random >= entries
    entries &= np.uint32(_SLOTS - 1)
    entries *= leaves
    slots += entries
    slots &= np.uint32(_SLOTS - 1)
    np.right_shift(fine, FRACTIONS.bit_length() - 1, out=out)
    out += slots
    out -= _SHIFTED


@functools.cache
def _table() -> NDArray[np.uint32]:
    """For every fraction and slot: how many coins of 2**_BITS stay in the slot, and below it how
    far the others go.

    A word (coin, ones) stays if it is below its entry (stays, move): as move is never above ones,
    the coin alone decides.
    """
    table = np.empty((FRACTIONS, _SLOTS), np.uint32)
    for fraction in range(FRACTIONS):
        for slot, (stays, alias) in enumerate(_aliases(_weights(fraction))):
            move = (alias - slot) % _SLOTS
            table[fraction, slot] = (stays << _SLOT_BITS) + move
    return table.reshape(-1)


def _aliases(weights: list[int]) -> list[tuple[int, int]]:
    """Slots of equal size that have these weights: how many coins stay in each, and where the
    others go.
    """
    whole = 1 << _BITS
    # A slot that keeps all of its coins goes to itself with the last one.
    found = [(whole - 1, slot) for slot in range(_SLOTS)]
    small = [slot for slot in range(_SLOTS) if weights[slot] < whole]
    large = [slot for slot in range(_SLOTS) if weights[slot] >= whole]
    while small and large:
        slot, giver = small.pop(), large[-1]
        found[slot] = (weights[slot], giver)
        weights[giver] -= whole - weights[slot]
        if weights[giver] < whole:
            small.append(large.pop())
    return found


def _weights(fraction: int) -> list[int]:
    """Whole-numbered weights of the slots with the sum _SLOTS * 2**_BITS, each within one of its
    exact value: rounded down, and up again where most was cut off.
    """
    bell = _bell()
    exact = [bell[abs((slot - (_SLOTS // 2 - 1)) * FRACTIONS - fraction)] for slot in range(_SLOTS)]
    total = sum(exact)
    found = [divmod(weight * (_SLOTS << _BITS), total) for weight in exact]
    weights = [weight for weight, _ in found]
    most_cut = sorted(range(_SLOTS), key=lambda slot: found[slot][1], reverse=True)
    for slot in most_cut[: (_SLOTS << _BITS) - sum(weights)]:
        weights[slot] += 1
    return weights


@functools.cache
def _bell() -> list[int]:
    """exp(-(m / FRACTIONS)**2 / (2 WIDTH**2)) for m = 0, 1, ... in units of 2**-192: products,
    rounded down.
    """
    with decimal.localcontext() as context:
        context.prec = 70
        unit = decimal.Decimal(-1) / (2 * int(WIDTH) ** 2 * FRACTIONS**2)
        ratio, square = (int(power.exp() * 2**192) for power in (unit, 2 * unit))
    values = [1 << 192]
    # exp(-(m + 1)**2) = exp(-m**2) * exp(-1)**(2 m + 1)
    for _ in range(FRACTIONS * (_SLOTS // 2 + 1)):
        values.append(values[-1] * ratio >> 192)
        ratio = ratio * square >> 192
    return values
