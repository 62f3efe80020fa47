"""Tables for the rules of train.auto: dense, mixed or one-hot, skewed or not, wide bounds or not,
balanced or rare.

``generated``: up to 80 numbers and 15 columns of levels (300 encoded columns), two classes from
balanced to 2 %, by a score that is linear or partly not, weak or nearly separating. Bounds may be
up to forty times as wide as the values. Every column says as much as any other, rare levels too.

``by_effects``: as in a census, levels have effects of their own, columns differ in what they say.
``by_one_cause``: as in a clinic, up to 20 numbers, flags and short lists of levels that all go by
one hidden cause, and so does the class.
"""

from __future__ import annotations

import math

import numpy as np
from simulated_solver import Floats, Table, sigmoid

ROWS, TEST_ROWS = 8000, 6000


def generated(rng: np.random.Generator, rows: int = ROWS, test_rows: int = TEST_ROWS) -> Table:
    """One table."""
    kind = str(rng.choice(["dense", "mixed", "one-hot"]))
    numeric = {
        "dense": int(np.exp(rng.uniform(np.log(5), np.log(80)))),
        "mixed": int(rng.integers(3, 20)),
    }
    numbers = numeric.get(kind, int(rng.integers(0, 4)))
    categorical = {"dense": 0, "mixed": int(rng.integers(2, 10))}.get(
        kind, int(rng.integers(5, 15))
    )
    hidden = rng.normal(size=(rows + test_rows, int(rng.integers(2, 10))))
    wide = math.exp(rng.uniform(math.log(2), math.log(40))) if rng.uniform() < 0.5 else 1.0
    parts = [_numbers(rng, hidden, wide) for _ in range(numbers)] + [
        _levels(rng, hidden) for _ in range(categorical)
    ]
    encoded = np.concatenate(parts, axis=1)
    return _table(parts, numbers, _labels(rng, encoded, hidden), rows)


def by_effects(rng: np.random.Generator, rows: int = ROWS, test_rows: int = TEST_ROWS) -> Table:
    """One table of a few numbers and many levels, of which some columns say much and most say
    little.
    """
    numbers, categorical = int(rng.integers(4, 12)), int(rng.integers(3, 10))
    hidden = rng.normal(size=(rows + test_rows, int(rng.integers(2, 7))))
    wide = math.exp(rng.uniform(math.log(2), math.log(20))) if rng.uniform() < 0.4 else 1.0
    parts = [_numbers(rng, hidden, wide) for _ in range(numbers)] + [
        _levels(rng, hidden) for _ in range(categorical)
    ]
    score = np.zeros(len(hidden))
    for part in parts:
        scaled = (
            part
            if part.shape[1] > 1
            else np.clip((part - part.mean()) / (part.std() + 1e-6), -4, 4)
        )
        score += scaled @ rng.normal(size=part.shape[1]) * math.exp(0.7 * rng.normal())
    cause, other = hidden @ rng.normal(size=hidden.shape[1]), np.abs(hidden[:, 0])
    score = score / score.std() + rng.uniform(0.2, 1) * cause / cause.std()
    score = score / score.std() + rng.uniform(0, 0.5) * other / other.std()
    labels = _drawn(
        rng,
        score * math.exp(rng.uniform(0, math.log(4))),
        float(rng.choice([0.5, 0.4, 0.25, 0.12])),
    )
    return _table(parts, numbers, labels, rows)


def by_one_cause(rng: np.random.Generator, rows: int = ROWS, test_rows: int = TEST_ROWS) -> Table:
    """One table of numbers and flags that go by one cause, among two others that say nothing."""
    numbers, categorical = int(rng.integers(5, 10)), int(rng.integers(1, 4))
    hidden = rng.normal(size=(rows + test_rows, 3))
    parts = [_reading(rng, hidden) for _ in range(numbers)]
    for _ in range(categorical):
        count = int(rng.integers(2, 6))
        pull = np.outer(hidden[:, 0], 1.2 * rng.normal(size=count)) + rng.gumbel(
            size=(len(hidden), count)
        )
        parts.append(
            np.eye(count)[
                (pull - rng.uniform(0.3, 1) * np.log(np.arange(1, count + 1))).argmax(axis=1)
            ]
        )
    score = rng.uniform(1.5, 4) * hidden[:, 0] + 0.5 * rng.normal(size=len(hidden))
    return _table(parts, numbers, _drawn(rng, score, float(rng.uniform(0.3, 0.65))), rows)


KINDS = {"generated": generated, "effects": by_effects, "one_cause": by_one_cause}


def _table(parts: list[Floats], numbers: int, labels: Floats, rows: int) -> Table:
    """Columns side by side with a 1 behind; the last rows are for tests."""
    encoded = np.concatenate([*parts, np.ones((len(labels), 1))], axis=1)
    shares = np.concatenate([np.full(part.shape[1], 1 / part.shape[1]) for part in parts])
    shares[:numbers] = 0
    return Table(
        encoded[:rows], labels[:rows], encoded[rows:], labels[rows:], shares, len(parts) - numbers
    )


def _reading(rng: np.random.Generator, hidden: Floats) -> Floats:
    """A number, or a flag, that goes by the first cause more than by the others."""
    pull = np.array(
        [rng.choice([-1, 1]) * rng.uniform(0.2, 0.8), 0.3 * rng.normal(), 0.3 * rng.normal()]
    )
    values = hidden @ pull + rng.normal(size=len(hidden)) * math.sqrt(max(0.1, 1 - pull @ pull))
    if rng.uniform() < 0.35:
        return np.where(values > np.quantile(values, rng.uniform(0.2, 0.85)), 1.0, -1.0)[:, None]
    return np.asarray(np.clip(values / rng.uniform(2, 6) + 0.3 * rng.normal(), -1, 1))[:, None]


def _numbers(rng: np.random.Generator, hidden: Floats, wide: float) -> Floats:
    """A column within its bounds: skewed (with many at the lower one), squeezed, or with loose
    bounds.
    """
    direction = rng.normal(size=hidden.shape[1])
    share = rng.uniform(0.2, 0.95)
    values = share * hidden @ direction / np.linalg.norm(direction)
    values = values + math.sqrt(1 - share**2) * rng.normal(size=len(hidden))
    kind = rng.uniform()
    if kind < 0.45:
        spread = rng.uniform(0.5, 1.5)
        values = (
            np.clip(np.exp(spread * values) / np.exp(spread * rng.uniform(2, 4.5)), 0, 1) * 2 - 1
        )
        if rng.uniform() < 0.3:
            values = np.where(rng.uniform(size=len(values)) < rng.uniform(0.3, 0.9), -1.0, values)
    elif kind < 0.6:
        values = 2 * sigmoid(values) - 1
    else:
        values = np.clip((values + rng.normal() * 0.5) / rng.uniform(2, 6), -1, 1)
    if wide > 1 and rng.uniform() < 0.5:
        values = np.clip(rng.uniform(-1, 1 - 2 / wide) + (values + 1) / wide, -1, 1)
    return np.asarray(values)[:, None]


def _levels(rng: np.random.Generator, hidden: Floats) -> Floats:
    """A column of levels, of which some are rare."""
    count = int(rng.integers(2, 20))
    usual = -rng.uniform(0.5, 1.5) * np.log(np.arange(1, count + 1))
    pull = hidden @ (rng.normal(size=(hidden.shape[1], count)) * rng.uniform(0, 1))
    chosen = (pull + usual + rng.gumbel(size=(len(hidden), count))).argmax(axis=1)
    places: Floats = np.eye(count)[chosen]
    return places


def _labels(rng: np.random.Generator, rows: Floats, hidden: Floats) -> Floats:
    """Two classes by a linear score with a part that is not linear, at a wanted rate."""
    rate = float(rng.choice([0.5, 0.3, 0.15, 0.05, 0.02]))
    scaled = np.clip((rows - rows.mean(0)) / (rows.std(0) + 1e-6), -4, 4)
    linear = scaled @ (rng.normal(size=rows.shape[1]) * (rng.uniform(size=rows.shape[1]) < 0.6))
    other = np.abs(hidden[:, 0]) + np.tanh(hidden[:, 0] * hidden[:, -1])
    part = rng.uniform(0, 0.6)
    score = (
        math.sqrt(1 - part) * linear / (linear.std() + 1e-9)
        + math.sqrt(part) * (other - other.mean()) / other.std()
    )
    return _drawn(rng, score * math.exp(rng.uniform(math.log(0.8), math.log(8))), rate)


def _drawn(rng: np.random.Generator, score: Floats, rate: float) -> Floats:
    """Classes by chances that rise with the score, at a wanted rate."""
    low, high = -40.0, 40.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(score + middle).mean() > rate else (middle, high)
    labels: Floats = (rng.uniform(size=len(score)) < sigmoid(score + low)).astype(np.float64)
    return labels
