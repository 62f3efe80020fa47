"""Coordinates in which the rows of a federation are alike in all directions, from one noisy second
moment.

Everything here looks at released numbers only, so it costs no privacy. With S the mean of x x^T
over all rows, rows S^(-1/2) x have the same mean square in every direction. Gradients of a linear
model then need fewer rounds (one size of step fits all directions), and noise on them hurts less:
of all linear maps of rows, this one has the least excess loss for noise of the same privacy
(trace(P S) trace(P^-1 S^-1) is least for P = S^-1, by Cauchy-Schwarz).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# added to every direction, in units of noise times the root of the columns; found on generated
# tables
FLOOR = 0.8


@dataclass(frozen=True)
class Whitening:
    """Rows times ``transform`` have mean square norm 1; ``scale`` is what they had before they were
    brought to it.

    >>> rows = torch.randn(1000, 3, dtype=torch.float64) * torch.tensor([10.0, 1.0, 0.1])
    >>> found = Whitening.of(rows.t() @ rows / 1000, noise=1e-9)
    >>> round(float((rows @ found.transform).square().sum(1).mean()), 3), round(found.scale ** 2, 3)
    (1.0, 3.0)
    """

    transform: Tensor  # (width, width), float64
    scale: float

    @classmethod
    def of(cls, moment: Tensor, noise: float, scaled: Tensor | None = None) -> Whitening:
        """From the mean second moment (of rows @ ``scaled``) and the standard deviation of the
        noise in its diagonal.

        About half of what noise alone can look like (sqrt(2 width) times ``noise`` at most) is
        added to every direction, so that directions that drown in it keep their length. Columns
        that were scaled one by one are centred, and most pairs of them have little to do with each
        other: what they have is brought towards zero by its noise, which leaves less of it in all
        directions.
        """
        if scaled is not None:
            moment = towards_zero(moment, noise / math.sqrt(2))
        values, directions = torch.linalg.eigh(moment.double())
        values, floor = values.clamp(min=0.0), max(FLOOR * noise * math.sqrt(len(moment)), 1e-12)
        seen = values + floor
        scale = math.sqrt(max(1.0, float((values / seen).sum())))
        turn = (directions * seen.rsqrt()) @ directions.t() / scale
        return cls(turn if scaled is None else scaled @ turn, scale)

    @classmethod
    def none(cls, width: int, row_norm: float, scaled: Tensor | None = None) -> Whitening:
        """The columns' own coordinates (or ``scaled``), for rows of this norm: where no second
        moment could be had.
        """
        return cls(
            (torch.eye(width, dtype=torch.float64) if scaled is None else scaled) / row_norm, 1.0
        )

    def back(self, gradient: Tensor) -> Tensor:
        """A gradient (outputs x width) in these coordinates as a step of unit rate on the
        weights.
        """
        step: Tensor = gradient.double() @ self.transform.t() * self.scale**2
        return step


def towards_zero(moment: Tensor, noise: float) -> Tensor:
    """A matrix whose numbers off the diagonal are shorter by the standard deviation of their noise,
    at least 0.

    >>> towards_zero(torch.tensor([[4.0, -3.0], [0.5, 1.0]]), 1.0)
    tensor([[ 4., -2.],
            [ 0.,  1.]])
    """
    shorter = moment.sign() * (moment.abs() - noise).clamp(min=0.0)
    return torch.where(torch.eye(len(moment), dtype=torch.bool), moment, shorter)


def least_squares(moment: Tensor, noise: float) -> Tensor:
    """The weights of a linear regression from the mean second moment of rows with their target
    behind them.

    The ridge is what noise alone can look like, as in AdaSSP (Wang 2018, Algorithm 1), whose
    private estimate of the least eigenvalue the eigenvalues of the noisy moment itself stand for.

    >>> x = torch.randn(2000, 2, dtype=torch.float64)
    >>> rows = torch.cat([x, x @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)], dim=1)
    >>> least_squares(rows.t() @ rows / 2000, noise=1e-9).round(decimals=3)
    tensor([ 1., -2.], dtype=torch.float64)
    """
    width = len(moment) - 1
    values, directions = torch.linalg.eigh(moment[:width, :width].double())
    seen = values.clamp(min=0.0) + max(noise * math.sqrt(width), 1e-12)
    weights: Tensor = (directions / seen) @ (directions.t() @ moment[:width, width].double())
    return weights
