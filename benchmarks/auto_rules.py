"""The rules of train.auto on generated tables: how far they are from hand-tuned settings, and what to expect of them.

python benchmarks/auto_rules.py [--tables 40] [--seed 0]            about 5 minutes on one core

Tables are drawn with 5 to 80 numbers and up to 15 columns of levels (up to 300 encoded columns), dense, mixed or
one-hot, skewed or not, with classes from balanced to 2 %, linear or partly not. What a rule does depends on rows only
through rows times mu, so 8,000 rows stand for 300 to 1,000,000: rho is drawn instead. Training is simulated in numpy
with Gaussian noise (no masks, no messages). For each table the rule of homo_dp/runs/auto_rules.py is compared with the
best of a grid of settings, by mean over draws of noise, and with the model without privacy; the last table is what
EXPECTED in that file holds.
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homo_dp.runs.auto_rules import EXPECTED, PublicFacts, choose

Floats = NDArray[np.float64]
ROWS, TEST_ROWS, DRAWS = 8000, 5000, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rho", type=float, nargs=2, default=[0.4, 3000.0], help="range")
    parser.add_argument("--no-grid", action="store_true", help="only what to expect, not the best of a grid")
    given = parser.parse_args()
    found = []
    print("columns  levels  rho   rule AUC / loss   best of grid   without privacy")
    for number in range(given.tables):
        rng = np.random.default_rng(given.seed * 10_000 + number)
        low, high = (math.log(end) for end in given.rho)
        rho = math.exp(low + (high - low) * (number + 0.5) / given.tables)
        found.append((rho, *_compared(rng, rho, grid=not given.no_grid)))
    _summary(found)


def _compared(rng: np.random.Generator, rho: float, *, grid: bool) -> tuple[Floats, Floats, Floats]:
    """AUC and log loss by the rule, of the best of the grid (each figure on its own), and without privacy."""
    table = Table(rng)
    facts = PublicFacts(
        rows=ROWS,
        parties=1,
        sharers=None,
        numeric=table.numeric,
        categorical=table.categorical,
        width=table.width,
        outputs=1,
        task="binary",
        linear=True,
        mu=rho * (table.width + 1) / ROWS,
    )
    rule = table.mean_scores(dict(choose(facts, "dp_fedsgd").settings), facts, rng)
    best = rule
    for settings in _grid(facts) if grid else ():
        scores = table.mean_scores(settings, facts, rng)
        best = np.array([max(best[0], scores[0]), min(best[1], scores[1])])
    plain = table.without_privacy()
    texts = [f"{scores[0]:.4f} / {scores[1]:.4f}" for scores in (rule, best, plain)]
    print(f"{table.width:7d} {table.categorical:7d} {rho:7.1f}   {'   '.join(texts)}", flush=True)
    return rule, best, plain


def _grid(facts: PublicFacts) -> list[dict[str, Any]]:
    """What a patient person would try: both solvers, clips, rates and rounds around the usual."""
    moment = [
        {
            "train.solver": "second_moment",
            "train.rounds": 16,
            "train.row_norm": facts.row_norm,
            "train.moment_share": 0.25,
            "privacy.max_grad_norm": clip,
            "train.learning_rate": rate,
            "train.server_optimizer": {"momentum": momentum},
            "train.averaging": {"tail": 0.5},
        }
        for clip, (rate, momentum) in itertools.product((0.35, 0.7, 1.2), ((1.0, 0.5), (2.0, 0.6), (3.0, 0.6)))
    ]
    plain = [
        {
            "train.solver": "gradient",
            "train.rounds": rounds,
            "train.row_norm": 1.2 * facts.row_norm,
            "privacy.max_grad_norm": clip * facts.row_norm,
            "train.learning_rate": rate / facts.row_norm**2,
            "train.server_optimizer": {"momentum": momentum},
            "train.averaging": {"tail": 0.3},
        }
        for clip, (rounds, rate, momentum) in itertools.product(
            (0.35, 0.7), ((16, 0.3, 0.5), (16, 1.0, 0.5), (80, 3.0, 0.9))
        )
    ]
    return moment + plain


class Table:
    """A generated table with its test rows, and training on it with simulated noise."""

    def __init__(self, rng: np.random.Generator) -> None:
        kind = rng.choice(["dense", "mixed", "one-hot"])
        numeric = {"dense": int(np.exp(rng.uniform(np.log(5), np.log(80)))), "mixed": int(rng.integers(3, 20))}
        self.numeric = numeric.get(str(kind), int(rng.integers(0, 4)))
        self.categorical = {"dense": 0, "mixed": int(rng.integers(2, 10))}.get(str(kind), int(rng.integers(5, 15)))
        hidden = rng.normal(size=(ROWS + TEST_ROWS, int(rng.integers(2, 10))))
        parts = [_numbers(rng, hidden) for _ in range(self.numeric)]
        parts += [_levels(rng, hidden) for _ in range(self.categorical)]
        rows = np.concatenate(parts, axis=1)
        self.width = rows.shape[1]
        labels = _labels(rng, rows, hidden)
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
        self.rows, self.test = rows[:ROWS], rows[ROWS:]
        self.labels, self.test_labels = labels[:ROWS], labels[ROWS:]

    def mean_scores(self, settings: dict[str, Any], facts: PublicFacts, rng: np.random.Generator) -> Floats:
        """AUC and log loss on test rows, over draws of the noise."""
        found = [self.scores(self.trained(settings, facts.mu or 1.0, rng)) for _ in range(DRAWS)]
        return np.asarray(np.mean(found, axis=0))

    def trained(self, settings: dict[str, Any], mu: float, rng: np.random.Generator) -> Floats:
        """Weights after the rounds that the settings name, as the solvers of dp_fedsgd make them."""
        count, rounds, clip = len(self.rows), settings["train.rounds"], settings["privacy.max_grad_norm"]
        width, left = self.rows.shape[1], mu
        turn, scale, rows = np.eye(width), 1.0, self.rows
        if settings["train.solver"] == "second_moment":
            share = settings["train.moment_share"]
            left = mu * math.sqrt(1 - share)
            turn, scale = self._turn(settings["train.row_norm"], mu * math.sqrt(share), rng)
        else:
            rows = rows * _factors(np.linalg.norm(rows, axis=1), settings["train.row_norm"])[:, None]
        turned = rows @ turn
        lengths = np.linalg.norm(turned, axis=1)
        weights, velocity, total = np.zeros(width), np.zeros(width), np.zeros(width)
        first = rounds - math.ceil(rounds * settings["train.averaging"].get("tail", 1e-9)) + 1
        momentum = settings["train.server_optimizer"]["momentum"]
        for number in range(1, rounds + 1):
            residuals = _sigmoid(rows @ weights) - self.labels
            residuals *= _factors(np.abs(residuals) * lengths, clip)
            noise = rng.normal(size=width) * clip * math.sqrt(rounds) / left
            gradient = turn @ (turned.T @ residuals + noise) * scale**2 / count
            if settings["train.solver"] == "gradient":  # the bias, as in DpFedSgd
                sigma = clip * math.sqrt(rounds) / left / count
                most = 0.15 / (2 * settings["train.learning_rate"] * sigma * math.sqrt(rounds))
                gradient[-1] *= min(settings["train.row_norm"] ** 2, max(1.0, most))
            velocity = momentum * velocity - settings["train.learning_rate"] * gradient
            weights = weights + velocity
            total += weights * (number >= first)
        mean: Floats = total / (rounds - first + 1)
        return mean

    def _turn(self, row_norm: float, mu: float, rng: np.random.Generator) -> tuple[Floats, float]:
        clipped = self.rows * _factors(np.linalg.norm(self.rows, axis=1), row_norm)[:, None]
        width, sigma = clipped.shape[1], row_norm**2 / mu
        noise = np.triu(rng.normal(size=(width, width)) * sigma / math.sqrt(2), 1)
        noise = noise + noise.T + np.diag(rng.normal(size=width) * sigma)
        values, directions = np.linalg.eigh((clipped.T @ clipped + noise) / len(clipped))
        values = np.maximum(values, 0.0)
        seen = values + 0.8 * sigma / len(clipped) * math.sqrt(width)
        scale = math.sqrt(max(1.0, float((values / seen).sum())))
        return (directions * seen**-0.5) @ directions.T / scale, scale

    def without_privacy(self) -> Floats:
        """Scores of the fit by Newton steps."""
        weights, count = np.zeros(self.rows.shape[1]), len(self.rows)
        for _ in range(25):
            chance = _sigmoid(self.rows @ weights)
            curve = (self.rows * (chance * (1 - chance))[:, None]).T @ self.rows / count
            step = self.rows.T @ (chance - self.labels) / count + 1e-5 * weights
            weights -= np.linalg.solve(curve + 1e-5 * np.eye(len(weights)), step)
        return self.scores(weights)

    def scores(self, weights: Floats) -> Floats:
        """AUC and log loss on test rows."""
        scores = self.test @ weights
        ranks = np.empty(len(scores))
        ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
        positive = self.test_labels == 1
        count, others = positive.sum(), (~positive).sum()
        area = (ranks[positive].sum() - count * (count + 1) / 2) / (count * others)
        return np.array([area, np.mean(np.logaddexp(0, scores) - self.test_labels * scores)])


def _numbers(rng: np.random.Generator, hidden: Floats) -> Floats:
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
        values = 2 * _sigmoid(values) - 1
    else:
        values = np.clip((values + rng.normal() * 0.5) / rng.uniform(2, 6), -1, 1)
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
    score = score * rng.uniform(0.8, 4)
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _sigmoid(score + middle).mean() > rate else (middle, high)
    labels: Floats = (rng.uniform(size=len(score)) < _sigmoid(score + low)).astype(np.float64)
    return labels


def _factors(lengths: Floats, bound: float) -> Floats:
    return np.minimum(1.0, bound / np.maximum(lengths, 1e-12))


def _sigmoid(values: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(values, -40, 40)))


def _summary(found: list[tuple[float, Floats, Floats, Floats]]) -> None:
    print(
        "\nrho up to   AUC points below best of grid (worst)   below no privacy: mean, one in ten   log loss above (%)"
    )
    low = 0.0
    for high, *_ in EXPECTED:
        group = [row for row in found if low < row[0] <= high]
        low = high
        if not group:
            continue
        rule, best, plain = (np.array([row[part] for row in group]) for part in (1, 2, 3))
        gap, lost = (best[:, 0] - rule[:, 0]) * 100, (plain[:, 0] - rule[:, 0]) * 100
        above, more = (rule[:, 1] / best[:, 1] - 1) * 100, (rule[:, 1] / plain[:, 1] - 1) * 100
        print(
            f"{high:9g}   {gap.mean():.2f} ({gap.max():.2f})   {lost.mean():.2f}, {np.quantile(lost, 0.9):.2f}   "
            f"{above.mean():.1f}, {more.mean():.1f}"
        )


if __name__ == "__main__":
    main()
