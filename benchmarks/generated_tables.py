"""Tables for the rules of train.auto: dense, mixed or one-hot, skewed or not, wide bounds or not, balanced or rare.

Up to 80 numbers and 15 columns of levels (300 encoded columns), two classes from balanced to 2 %, by a score that is
linear or partly not, weak or nearly separating. Bounds may be up to forty times as wide as the values.
"""

from __future__ import annotations

import math

import numpy as np
from simulated_solver import Floats, Table, sigmoid

ROWS, TEST_ROWS = 8000, 6000


def generated(rng: np.random.Generator, rows: int = ROWS, test_rows: int = TEST_ROWS) -> Table:
    """One table."""
    kind = str(rng.choice(["dense", "mixed", "one-hot"]))
    numeric = {"dense": int(np.exp(rng.uniform(np.log(5), np.log(80)))), "mixed": int(rng.integers(3, 20))}
    numbers = numeric.get(kind, int(rng.integers(0, 4)))
    categorical = {"dense": 0, "mixed": int(rng.integers(2, 10))}.get(kind, int(rng.integers(5, 15)))
    hidden = rng.normal(size=(rows + test_rows, int(rng.integers(2, 10))))
    wide = math.exp(rng.uniform(math.log(2), math.log(40))) if rng.uniform() < 0.5 else 1.0
    parts = [_numbers(rng, hidden, wide) for _ in range(numbers)] + [_levels(rng, hidden) for _ in range(categorical)]
    encoded = np.concatenate(parts, axis=1)
    labels = _labels(rng, encoded, hidden)
    encoded = np.concatenate([encoded, np.ones((len(encoded), 1))], axis=1)
    shares = np.concatenate([np.full(part.shape[1], 1 / part.shape[1]) for part in parts])
    shares[:numbers] = 0
    return Table(encoded[:rows], labels[:rows], encoded[rows:], labels[rows:], shares, categorical)


def _numbers(rng: np.random.Generator, hidden: Floats, wide: float) -> Floats:
    """A column within its bounds: skewed (with many at the lower one), squeezed, or with loose bounds."""
    direction = rng.normal(size=hidden.shape[1])
    share = rng.uniform(0.2, 0.95)
    values = share * hidden @ direction / np.linalg.norm(direction)
    values = values + math.sqrt(1 - share**2) * rng.normal(size=len(hidden))
    kind = rng.uniform()
    if kind < 0.45:
        spread = rng.uniform(0.5, 1.5)
        values = np.clip(np.exp(spread * values) / np.exp(spread * rng.uniform(2, 4.5)), 0, 1) * 2 - 1
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
        math.sqrt(1 - part) * linear / (linear.std() + 1e-9) + math.sqrt(part) * (other - other.mean()) / other.std()
    )
    score = score * math.exp(rng.uniform(math.log(0.8), math.log(8)))
    low, high = -40.0, 40.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(score + middle).mean() > rate else (middle, high)
    labels: Floats = (rng.uniform(size=len(score)) < sigmoid(score + low)).astype(np.float64)
    return labels
