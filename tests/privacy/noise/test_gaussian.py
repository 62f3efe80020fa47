"""Normals from the ziggurat: within the stated error of ideal ones, by their own density; a
broken table is seen.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

from homo_dp.privacy.noise.gaussian import (
    _LAST,
    DENSITY_ERROR,
    ERROR,
    _Table,
    _table,
    _tail,
    fill_normals,
)
from homo_dp.privacy.noise.keystream import SEED_BYTES, Keystream, RepeatableKeystream
from homo_dp.privacy.noise.source import (
    SeededNoise,
)


@pytest.mark.parametrize("seed", [3, 4])
def test_each_value_is_within_its_stated_error_of_the_ideal_normal(seed: int) -> None:
    """A ziggurat one word at a time, in exact arithmetic, with the bits of the stream as they
    are.
    """
    source, size = SeededNoise(seed), 30_000
    stream = RepeatableKeystream(source._new_seed)
    table, late, ideal = _table(), [], []
    for number, word in enumerate(np.frombuffer(stream.read(8 * size), np.int64).tolist()):
        layer, steps = word % 1024, word >> 10
        ideal.append(Fraction(table.units[layer]) * steps)
        if abs(steps) >= table.limits[layer]:
            late.append((number, layer))
    coins, fresh = stream.words(len(late)).tolist(), []
    for (number, layer), coin in zip(late, coins, strict=True):
        low, high = table.heights[layer], table.heights[layer + 1]
        if layer > 0 and low + (high - low) * (coin + 0.5) / 2**64 >= math.exp(
            -0.5 * float(ideal[number]) ** 2
        ):
            fresh.append(number)
    tails = [
        (number, coin) for (number, layer), coin in zip(late, coins, strict=True) if layer == 0
    ]
    behind = stream.words(len(tails)).tolist()
    found = source.normal([size], 1.0, torch.float64).tolist()
    assert len(late) > 60
    assert len(fresh) > 20
    with mpmath.workdps(40):
        beyond = mpmath.erfc(mpmath.mpf(_LAST) / mpmath.sqrt(2)) / 2
        for (number, coin), more in zip(tails, behind, strict=True):
            probability = (coin + (more + mpmath.mpf("0.5")) / 2**64) / 2**64 * beyond
            far = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * probability)
            assert abs(abs(found[number]) - far) <= ERROR * far
            assert (found[number] > 0) == (ideal[number] > 0)
    kept = sorted(set(range(size)) - set(fresh) - {number for number, _ in tails})
    assert all(abs(found[number] - float(ideal[number])) <= ERROR for number in kept)
    redrawn = RepeatableKeystream(source._new_seed)
    redrawn.words(size + len(late) + len(tails))
    again = np.empty(len(fresh))
    fill_normals(redrawn, again, 1.0)
    assert [found[number] for number in fresh] == again.tolist()


def density_over_the_normal_one(table: _Table, places: list[float]) -> list[Fraction]:
    """What the layers of a table make of the density at some places, over exp(-x**2 / 2),
    exactly; then of the tail.
    """
    found = []
    with mpmath.workdps(50):
        for place in places:
            total = Fraction(0)
            for unit, limit, low, high in zip(*_rows(table), strict=True):
                if place < unit * 2**53:
                    inside = place < unit * limit
                    bell = Fraction(str(mpmath.exp(-(mpmath.mpf(place) ** 2) / 2)))
                    part = (
                        Fraction(1)
                        if inside
                        else (bell - Fraction(low)) / (Fraction(high) - Fraction(low))
                    )
                    total += max(Fraction(0), part) / Fraction(unit)
            found.append(total / Fraction(str(mpmath.exp(-(mpmath.mpf(place) ** 2) / 2))))
        beyond = mpmath.sqrt(mpmath.pi / 2) * mpmath.erfc(mpmath.mpf(_LAST) / mpmath.sqrt(2))
        found.append(Fraction(2**53 - int(table.limits[0])) / Fraction(str(beyond)))
    return found


def _rows(table: _Table) -> tuple[list[float], list[int], list[float], list[float]]:
    return (
        table.units.tolist(),
        table.limits.tolist(),
        table.heights[:-1].tolist(),
        table.heights[1:].tolist(),
    )


def _places(table: _Table) -> list[float]:
    """Below the last layer: some at random, and next to the edges of some layers."""
    generator = np.random.default_rng(5)
    edges = (table.units[[1, 2, 300, 700, 1022, 1023]] * 2**53).tolist()
    return [
        *generator.uniform(0, _LAST, 12).tolist(),
        1e-9,
        *(edge * (1 - 1e-12) for edge in edges),
    ]


def test_the_density_is_that_of_the_normal_law() -> None:
    found = density_over_the_normal_one(_table(), _places(_table()))
    assert max(abs(one / found[0] - 1) for one in found) <= DENSITY_ERROR


@pytest.mark.parametrize("broken", ["limits", "heights", "units", "tail"])
def test_the_density_check_sees_a_broken_table(broken: str) -> None:
    table = _table()
    if broken == "limits":
        table = table._replace(limits=np.full_like(table.limits, 2**53))
    elif broken == "heights":
        table = table._replace(heights=table.heights * (1 + 1e-9))
    elif broken == "units":
        table = table._replace(units=np.where(np.arange(1024) == 700, 1 + 1e-9, 1.0) * table.units)
    else:
        table = table._replace(limits=table.limits + (np.arange(1024) == 0) * 2**20)
    found = density_over_the_normal_one(table, _places(_table()))
    assert max(abs(one / found[0] - 1) for one in found) > DENSITY_ERROR


def test_far_tails_take_more_bits() -> None:
    """Coins next to zero: 12 standard deviations away and more, each with the bits of a word
    behind.
    """
    found = _tail(
        Keystream(lambda: bytes(SEED_BYTES)), np.array([0, 1, 1000, 2**40], np.uint64)
    ).tolist()
    more = Keystream(lambda: bytes(SEED_BYTES)).words(4).tolist()
    with mpmath.workdps(60):
        beyond = mpmath.erfc(mpmath.mpf(_LAST) / mpmath.sqrt(2)) / 2
        for value, coin, behind in zip(found, [0, 1, 1000, 2**40], more, strict=True):
            probability = (coin + (behind + mpmath.mpf("0.5")) / 2**64) / 2**64 * beyond
            assert abs(value - mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * probability)) <= ERROR * value
