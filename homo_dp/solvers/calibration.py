"""The last rounds of ``second_moment``: how sure a model of two classes is, and its odds; which way
it points stays.

Gradients that are clipped, and noise, leave weights that are too long or too short and a bias that
is off. What mends both is two numbers, and two numbers stand out of noise in which a hundred
weights drown: with s = x w the score of a row and z = (s - mean) / spread, the model a z + b is
fitted instead of x w. Parties do what they do in every round: they are sent coordinates (z, 1) in
place of those of all columns, and clip their gradients there.

Data walk: mean of the last models, and its coordinates (z, 1) -> parties: gradients, clipped,
summed, noised -> the first two numbers of the sum -> one Newton step on (a, b) -> the next round,
or the model that is published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LONGEST_STEP = 1.0  # of a score: what is further off is left to the next round
LEAST_CURVE = 1e-3
SHORTEST = 0.1  # of the spread before: scores keep their order


@dataclass(frozen=True)
class Calibration:
    """Scores of rows (with their 1) at these weights are ``spread`` z + ``mean``; gradients are
    clipped at ``clip``.

    >>> rows = torch.tensor([[3.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    >>> found = Calibration(torch.tensor([2.0, 1.0], dtype=torch.float64), mean=3.0, spread=4.0, clip=math.sqrt(2.0))
    >>> rows @ found.transform
    tensor([[ 1.,  1.],
            [-1.,  1.]], dtype=torch.float64)
    """

    weights: Tensor  # one output: the weights of the columns, then the bias
    mean: float
    spread: float
    clip: float

    @classmethod
    def of(
        cls, weights: Tensor, columns: Tensor, turn: Tensor, scale: float, clip: float
    ) -> Calibration | None:
        """By the released means of columns (``columns`` centres them) and spreads of directions
        (``turn``, ``scale``).

        None where no column was centred, or where the weights say nothing: then nothing is known of
        the scores.
        """
        means = -columns[-1, :-1] / columns.diagonal()[:-1]
        if not bool(means.any()):
            return None
        mean = float(weights[:-1] @ means + weights[-1])
        centred = weights.clone()
        centred[-1] -= mean
        spread = float(torch.linalg.solve(turn, centred).norm()) / scale
        return cls(weights, mean, spread, clip) if spread > 0 and math.isfinite(spread) else None

    @property
    def transform(self) -> Tensor:
        """Rows times it are (z, 1), as long as gradients may be where z is 1 and the model is
        wholly wrong, then 0.
        """
        found = torch.zeros(len(self.weights), len(self.weights), dtype=torch.float64)
        found[:, 0] = self.weights / self.spread
        found[-1, 0] -= self.mean / self.spread
        found[-1, 1] = 1.0
        return found * self._length

    @property
    def _length(self) -> float:
        return self.clip / math.sqrt(2.0)

    def moved(self, gradient: Tensor, noise: float) -> Tensor:
        """The weights after a Newton step on spread and mean.

        The curve is that of scores spread like a normal number; what noise alone can look like is
        added to it, so that steps are short where it is much. ``gradient`` is the mean of rows in
        these coordinates.
        """
        gradient, noise = gradient[:2] / self._length, noise / self._length
        points = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
        chances = torch.sigmoid(self.spread * points + self.mean)
        # of a normal number
        curve = chances * (1 - chances) * torch.softmax(-points.square() / 2, dim=0)
        first, second = float((curve * points).sum()), float((curve * points.square()).sum())
        curves = torch.tensor([[second, first], [first, float(curve.sum())]], dtype=torch.float64)
        step = -torch.linalg.solve(
            curves + (noise + LEAST_CURVE) * torch.eye(2, dtype=torch.float64), gradient
        )
        step = step * min(1.0, LONGEST_STEP / max(float(step.abs().max()), 1e-12))
        spread = max(self.spread + float(step[0]), SHORTEST * self.spread)
        found = self.weights * (spread / self.spread)
        found[-1] += self.mean + float(step[1]) - self.mean * spread / self.spread
        return found
