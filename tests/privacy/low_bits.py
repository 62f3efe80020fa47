"""Attacks that read low bits instead of values, and the verdict on a mechanism that they are tried
on.

An attack gives a release a score. It learns what scores of two worlds look like (one in which a
record is there, one in which it is not) from half of the releases, and guesses the world of the
others. With ``TRIALS`` guesses, the false-alarm rate of a verdict is FALSE_ALARM; the same test
draws the same noise each time (``tests/conftest.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

WORLDS, LEARNT, GUESSED = 2, 30, 30
TRIALS = WORLDS * GUESSED
FALSE_ALARM = 1e-7
# noise over clip norm: a record moves a release by 1/128 of sigma, so epsilon is below 0.04
MULTIPLIER = 128.0
ALLOWED = 0.51  # guesses that are right by (epsilon, delta) = (0.04, 1e-3)

Scores = NDArray[np.float64]


def lattice(released: Tensor, sigma: float) -> float:
    """Share of values that are multiples of 2**-24 times sigma, as float32 multiplies: half of the
    small float32 four-fold sums are.
    """
    steps = (released.double() / sigma * 2.0**24).round()
    multiples = (steps * 2.0**-24).float() * torch.tensor(sigma)
    return float((multiples == released.float()).double().mean())


def last_bit(released: Tensor, sigma: float) -> float:
    """Mean of the last bits of the values as float32."""
    return float((released.float().view(torch.int32) & 1).double().mean())


def differences(released: Tensor, sigma: float) -> float:
    """Share of differences of neighbours in order that are multiples of 2**-26 sigma, and not 0."""
    apart = released.double().sort().values.diff() / sigma * 2.0**26
    return float(((apart == apart.round()) & (apart > 0)).double().mean())


ATTACKS = {"lattice": lattice, "last bit": last_bit, "differences": differences}


def record(size: int, norm: float = 1.0) -> Tensor:
    """What a record adds: a vector of this norm with all of its float32 bits in use."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(5))
    return values * (0.99 * norm / float(values.norm()))


def right_guesses(
    without: Callable[[], Tensor], with_record: Callable[[], Tensor], sigma: float
) -> dict[str, int]:
    """Of TRIALS guesses of each attack, how many are right."""
    released = [[world() for _ in range(LEARNT + GUESSED)] for world in (without, with_record)]
    right = {}
    for name, attack in ATTACKS.items():
        scores = np.array([[attack(one, sigma) for one in world] for world in released])
        absent, present = scores[:, :LEARNT].mean(1)
        guesses = np.abs(scores[:, LEARNT:] - present) < np.abs(scores[:, LEARNT:] - absent)
        right[name] = int((~guesses[0]).sum() + guesses[1].sum())
    return right


def check_low_bits(
    without: Callable[[], Tensor], with_record: Callable[[], Tensor], sigma: float
) -> None:
    """No attack is right more often than the claimed epsilon allows; with noise of MULTIPLIER
    times the clip norm.
    """
    most = int(stats.binom.isf(FALSE_ALARM, TRIALS, ALLOWED))
    for attack, right in right_guesses(without, with_record, sigma).items():
        if right > most:
            raise AssertionError(
                f"{attack}: {right} of {TRIALS} guesses are right, {most} are allowed"
            )
