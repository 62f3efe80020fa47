"""Solvers of linear models simulated in numpy, on tables that are generated or given: for
auto_rules.py, hand_tuned.py.

What the solvers of dp_fedsgd do with two classes, with Gaussian noise, without messages, masks and
ledgers. Noise goes by rows times mu over the root of how often it is added (kappa), so a table of
8,000 rows stands for one of any size. tests/benchmarks/test_simulated_solver.py holds it to the
product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.models.task import LEAST_CHANCE
from homo_dp.runs.auto_rules import ROWS_OF_PENALTY, PublicFacts
from homo_dp.solvers import standardisation
from homo_dp.solvers.calibration import Calibration
from homo_dp.solvers.gradient import CentredRows
from homo_dp.solvers.whitening import Whitening

Floats = NDArray[np.float64]
MOST_SCORE = math.log(1 / LEAST_CHANCE - 1)  # models are never surer
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Encoded rows with a 1 behind, labels 0 or 1, test rows, and which columns are places of
    levels.

    ``shares`` are of the columns before the 1: 1 / L for places of one of L levels, 0 for numbers.
    """

    rows: Floats
    labels: Floats
    test: Floats
    test_labels: Floats
    shares: Floats
    categorical: int  # columns of levels before they were encoded

    @property
    def levels(self) -> NDArray[np.bool_]:
        return self.shares > 0

    @property
    def numeric(self) -> int:
        return int((~self.levels).sum())

    @property
    def width(self) -> int:
        return len(self.shares)

    def with_curves(self) -> Table:
        """The table as ``data.curves`` has it: squares and roots of numbers (of more than two
        values) behind them.
        """
        values = [len(np.unique(self.rows[:, place])) for place in range(self.width)]
        bent = [
            place for place in range(self.width) if not self.levels[place] and values[place] > 2
        ]

        def wider(rows: Floats) -> Floats:
            numbers = rows[:, bent]
            parts = (numbers + 1) / 2
            curves = [(3 * numbers**2 - 1) / 2, 1 + 3 * parts - 3.75 * np.sqrt(parts)]
            return np.concatenate([rows[:, :-1], *curves, rows[:, -1:]], axis=1)

        shares = np.append(self.shares, np.zeros(2 * len(bent)))
        return replace(self, rows=wider(self.rows), test=wider(self.test), shares=shares)

    def facts(self, kappa: float, rows: int | None = None) -> PublicFacts:
        """What the rules know, for noise of this kappa (rows times mu over the root of how often it
        is added).

        ``rows`` is how many rows the table stands for, where these are some of them.
        """
        rows = rows or len(self.rows)
        return PublicFacts(
            rows=rows,
            parties=1,
            sharers=None,
            numeric=self.numeric,
            categorical=self.categorical,
            width=self.width,
            outputs=1,
            task="binary",
            linear=True,
            mu=kappa / rows,
            even_levels=float((self.shares**2).sum()),
        )

    def scores(self, weights: Floats) -> Floats:
        """AUC and log loss on test rows."""
        scores = self.test @ weights
        ranks = np.empty(len(scores))
        ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
        positive = self.test_labels == 1
        count, others = positive.sum(), (~positive).sum()
        area = (ranks[positive].sum() - count * (count + 1) / 2) / (count * others)
        scores = np.clip(scores, -MOST_SCORE, MOST_SCORE)
        return np.array([area, np.mean(np.logaddexp(0, scores) - self.test_labels * scores)])

    def without_privacy(self) -> Floats:
        """Scores of the fit that the rules take without privacy: Newton steps, with a penalty of
        3 / rows.
        """
        count, last = self.rows.shape[0], self.width
        spread = np.where(self.levels, 1.0, self.rows[:, :last].std(0))
        kept = np.append(spread > 1e-6, True)
        rows = self.rows[:, kept] / np.append(spread, 1.0)[kept]
        rows[:, :-1] -= rows[:, :-1].mean(0)
        penalty = np.append(np.full(kept.sum() - 1, ROWS_OF_PENALTY / count), 0.0)
        weights = np.zeros(rows.shape[1])
        for _ in range(40):
            chance = sigmoid(rows @ weights)
            curve = (
                rows * np.maximum(chance * (1 - chance), 0.02)[:, None]
            ).T @ rows / count + np.diag(penalty)
            step = rows.T @ (chance - self.labels) / count + penalty * weights
            weights -= np.linalg.solve(curve + 1e-9 * np.eye(len(curve)), step)
        found = np.zeros(last + 1)
        found[kept] = weights / np.append(spread, 1.0)[kept]
        found[-1] -= (self.rows[:, :last].mean(0) * found[:last]).sum()
        return self.scores(found)


def trained(table: Table, settings: Settings, kappa: float, rng: np.random.Generator) -> Floats:
    """Weights after the rounds that the settings name."""
    rows, count, width = table.rows, len(table.rows), table.rows.shape[1]
    weights, turn, scale, columns, left = np.zeros(width), np.eye(width), 1.0, np.eye(width), 1.0
    by_moment = settings["train.solver"] == "second_moment"
    if by_moment:
        turn, scale, columns, weights = _coordinates(table, settings, kappa / count, rng)
        left = 1 - settings["train.moment_share"] - settings.get("train.column_share", 0.0)
    else:
        rows = rows * _factors(np.linalg.norm(rows, axis=1), settings["train.row_norm"])[:, None]
    rounds, clip, rate = (
        settings["train.rounds"],
        settings["privacy.max_grad_norm"],
        settings["train.learning_rate"],
    )
    sigma = clip * math.sqrt(rounds / left) / kappa  # of a mean gradient
    calibrating = settings.get("train.calibration_rounds", 0)
    rounds -= calibrating
    momentum = settings["train.server_optimizer"]["momentum"]
    back = turn * scale**2
    if not by_moment:
        noise = rate / (1 - momentum) * sigma * math.sqrt(rounds)
        turn, back = _centred(
            table,
            CentredRows.of(torch.tensor(table.shares), settings["train.row_norm"], kappa, noise),
        )
    turned = rows @ turn
    lengths = np.linalg.norm(turned, axis=1)
    averaging = settings["train.averaging"]
    first = (
        rounds - math.ceil(rounds * averaging["tail"]) + 1
        if averaging.get("kind", "tail") == "tail"
        else rounds
    )
    velocity, total = np.zeros(width), np.zeros(width)
    for number in range(1, rounds + 1):
        residuals = sigmoid(rows @ weights) - table.labels
        residuals *= _factors(np.abs(residuals) * lengths, clip)
        gradient = back @ (turned.T @ residuals / count + rng.normal(size=width) * sigma)
        velocity = momentum * velocity - rate * gradient
        weights = weights + velocity
        total += weights * (number >= first)
    mean: Floats = total / (rounds - first + 1)
    for _ in range(calibrating):
        known = torch.tensor(mean), torch.tensor(columns), torch.tensor(turn)
        found = Calibration.of(*known, scale, clip)
        mean = mean if found is None else _calibrated(table, mean, found, sigma, rng)
    return mean


def _calibrated(
    table: Table, weights: Floats, found: Calibration, sigma: float, rng: np.random.Generator
) -> Floats:
    """Weights after one round in coordinates of their scores."""
    turned = table.rows @ found.transform[:, :2].numpy()
    residuals = sigmoid(table.rows @ weights) - table.labels
    residuals *= _factors(np.abs(residuals) * np.linalg.norm(turned, axis=1), found.clip)
    gradient = turned.T @ residuals / len(turned) + rng.normal(size=2) * sigma
    moved: Floats = found.moved(torch.tensor(gradient), sigma).numpy()
    return moved


def _centred(table: Table, axes: CentredRows) -> tuple[Floats, Floats]:
    """Rows @ the first are in these axes; the second takes gradients back."""
    turn = np.eye(table.width + 1)
    turn[-1] = np.append(-table.shares, axes.ones)
    return turn, axes.back(torch.eye(table.width + 1)).numpy().T


def _coordinates(
    table: Table, settings: Settings, mu: float, rng: np.random.Generator
) -> tuple[Floats, float, Floats, Floats]:
    """Rows @ turn are alike in all directions; their scale; columns before that; and weights to
    start from.
    """
    rows, count, width = table.rows, len(table.rows), table.rows.shape[1]
    norm, share = settings["train.row_norm"], settings.get("train.column_share", 0.0)
    scaled, odds = np.eye(width), 0.0
    if share:
        passes = settings.get("train.column_passes", 1)
        part = mu * math.sqrt(share / passes)
        scaled, odds = _columns(table, norm, part, rng)
        for _ in range(1, passes):
            scaled = _closer(table, scaled, norm, part, rng)
    clipped = rows @ scaled
    clipped = clipped * _factors(np.linalg.norm(clipped, axis=1), norm)[:, None]
    sigma = norm**2 / (mu * math.sqrt(settings["train.moment_share"])) / count
    noise = np.triu(rng.normal(size=(width, width)) * sigma / math.sqrt(2), 1)
    noise = noise + noise.T + np.diag(rng.normal(size=width) * sigma)
    moment = torch.tensor(clipped.T @ clipped / count + noise)
    found = Whitening.of(moment, sigma, torch.tensor(scaled) if share else None)
    weights = np.zeros(width)
    weights[-1] = odds
    return found.transform.numpy(), found.scale, scaled, weights


def _columns(
    table: Table, norm: float, mu: float, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Scales of columns, and the log odds of the classes."""
    rows, count, width = table.rows, len(table.rows), table.rows.shape[1]
    whole, label = standardisation.WHOLE * norm, standardisation.LABEL * norm
    parts = np.concatenate([rows, rows**2, label * table.labels[:, None]], axis=1)
    total = (parts * _factors(np.linalg.norm(parts, axis=1), whole)[:, None]).sum(0) / count
    noise = whole / mu / count
    total = total + rng.normal(size=len(total)) * noise
    counted = max(0.3, total[width - 1])
    total, noise = total / counted, noise / counted
    means = np.clip(total[: width - 1], np.where(table.levels, 0.0, -1.0), 1.0)
    squares = total[width : 2 * width - 1]
    variances = np.maximum(np.where(table.levels, means * (1 - means), squares - means**2), 0.0)
    scales = np.where(table.levels, 1.0, (variances + standardisation.FLOOR * noise + 1e-9) ** -0.5)
    found = np.diag(np.append(scales, 1.0))
    found[-1, :-1] = -means * scales
    length = float((variances * scales**2).sum()) + 1.0
    least = max(2 * noise / label, 1e-3)
    chance = (
        min(1 - least, max(least, total[-1] / label))
        if noise / label <= standardisation.MOST_NOISE
        else 0.5
    )
    odds = math.log(chance / (1 - chance))
    seen = min(1.0, max(0.0, total[-1] / label))
    if noise > standardisation.OWN_AXES * seen * (1 - seen):
        return np.eye(width), odds
    return found * (norm / (standardisation.ROOM * math.sqrt(length))), odds


def _closer(
    table: Table, columns: Floats, norm: float, mu: float, rng: np.random.Generator
) -> Floats:
    """Columns after one more look at rows in these."""
    count, width = table.rows.shape
    if np.array_equal(columns, np.eye(width)):
        return columns
    rows, length, before, levels = (
        table.rows @ columns,
        columns[-1, -1],
        columns.diagonal()[:-1],
        table.levels,
    )
    whole = standardisation.WHOLE * norm
    parts = np.concatenate([rows, rows**2], axis=1)
    total = (parts * _factors(np.linalg.norm(parts, axis=1), whole)[:, None]).sum(0) / count
    noise = whole / mu / count
    total = total + rng.normal(size=len(total)) * noise
    counted = max(0.3, total[width - 1] / length)
    total, noise = total / counted, noise / counted
    shares = -columns[-1, :-1] / before
    means = np.where(levels, 0.0, total[: width - 1] / length)
    variances = np.maximum(total[width : 2 * width - 1] / length**2 - means**2, 0.0)
    scales = np.maximum((variances + standardisation.FLOOR * noise / length**2) ** -0.5, 1.0)
    scales = np.where(
        levels, 1.0, np.minimum(scales, np.maximum(standardisation.MOST_SCALE / before, 1.0))
    )
    spread = np.where(levels, np.maximum(shares * (1 - shares), 0.0), variances * scales**2)
    step = np.diag(np.append(scales, 1.0))
    step[-1, :-1] = -means * scales
    found: Floats = (
        columns @ step * (norm / (standardisation.ROOM * math.sqrt(spread.sum() + 1.0) * length))
    )
    return found


def _factors(lengths: Floats, bound: float) -> Floats:
    return np.minimum(1.0, bound / np.maximum(lengths, 1e-12))


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + e^-x)."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -40, 40))))
