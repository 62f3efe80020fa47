"""Axes for rows that nothing was asked about yet: places of levels around their middle, and a
shorter column of ones.

For ``train.solver: gradient``. What all rows have in common says nothing of one of them, but it is
in the length of each, and so in what clipping leaves of the rest. Without a question there are two
such things: a row has one of the L levels of a column, so 1 / L of every place is common; and it
has a 1 for the bias. Both are public. The column of ones is cut shorter only where noise would
drown what it says, the mean of all residuals: then a model keeps nearly even odds, and hears its
columns better.

Data walk: centres and the length of ones, sent with the weights -> party: rows in these axes,
gradients clipped there -> aggregator: the step in the columns' own axes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from homo_dp.config.privacy import RecordKeys, keys_of
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.solvers.solver import (
    Gradients,
    LinearGradients,
    PartyRows,
    Solver,
    in_own_coordinates,
)

# the tensor that comes with the weights: centres of the columns, then the length
CENTRES: Final = "solver.centres"
MOST_BIAS_NOISE = 0.15  # of a logit
# rows times mu (kappa) from which on the mean residual is heard as well as any column
ENOUGH = 40.0
SHORTEST = 0.3


@dataclass(frozen=True)
class CentredRows:
    """Rows (x, 1) become (x - centres, ones); ``reach`` is how much longer a step along the ones
    is.

    >>> axes = CentredRows(torch.tensor([0.0, 0.5, 0.5]), ones=0.5, reach=4.0)
    >>> axes.back(torch.tensor([[1.0, 2.0, 4.0, 3.0]]))  # the bias: 0.5 * 4 * 3 - 0.5 * 2 - 0.5 * 4
    tensor([[1., 2., 4., 3.]], dtype=torch.float64)
    """

    centres: Tensor  # of the columns before the ones
    ones: float
    reach: float

    @classmethod
    def of(cls, centres: Tensor, row_norm: float, kappa: float, noise: float) -> CentredRows:
        """For rows of this norm; ``noise`` is how far the noise of all rounds would move a weight.

        Along the ones the loss is R^2 times less curved than along a row of norm R: with one rate
        for all, the odds of a rare class are not reached in few rounds. But noise may move the bias
        by ``MOST_BIAS_NOISE`` only.
        """
        ones = min(1.0, max(SHORTEST, kappa / ENOUGH))
        return cls(
            centres, ones, min((row_norm / ones) ** 2, max(1.0, MOST_BIAS_NOISE / (noise * ones)))
        )

    @property
    def tensor(self) -> Tensor:
        """What parties need."""
        return torch.cat([self.centres, self.centres.new_tensor([self.ones])]).float()

    @staticmethod
    def signature(width: int) -> Signature:
        """Name, shape and dtype of what parties are sent, for rows of this many numbers."""
        return {CENTRES: ((width,), torch.float32)}

    def back(self, gradient: Tensor) -> Tensor:
        """A gradient (outputs x width) in these axes as a step of unit rate on the weights."""
        step = gradient.double().clone()
        # What parties were sent is float32: the way back is by the same numbers.
        centres, ones = torch.split(self.tensor.double(), [len(self.centres), 1])
        step[:, -1] = step[:, -1] * ones * self.reach - step[:, :-1] @ centres
        return step


class BoundedGradient(Solver):
    """Solver ``gradient``: the gradient of a record is bounded by its row, of a norm that is
    clipped.

    A model with a bias has its rows centred, which the bias makes up for.
    """

    def gradients(self, fit: PartyRows) -> Gradients:
        """Those of a linear layer on rows around their centres."""
        return LinearGradients(fit, CENTRES if self._centred else None, self._config.train.row_norm)

    def signature(self, round_number: int) -> Signature:
        """The centres come with all weights."""
        return CentredRows.signature(self._width) if self._centred else {}

    def tensors(self, weights: Weights, round_number: int, trains: int | None) -> Weights:
        """The centres, which follow from public numbers."""
        return {CENTRES: self.axes.tensor} if self._centred else {}

    def _back(self, total: Weights, current: Weights) -> Weights:
        return in_own_coordinates(self.axes.back, total, current) if self._centred else total

    @property
    def _centred(self) -> bool:
        return self._config.model.bias

    @functools.cached_property
    def axes(self) -> CentredRows:
        """From public numbers: the levels of columns, the noise and the rate."""
        train, rounds = self._config.train, math.sqrt(self._facts.rounds)
        clip_norm = keys_of(self._config.privacy, RecordKeys).max_grad_norm
        centres = torch.zeros(self._width - 1, dtype=torch.float64)
        for place, share in self._facts.levels.items():
            centres[place] = share
        noise = self._noise_of_mean()
        server = train.server_optimizer
        reach = train.learning_rate / (1 - (server.momentum if server.name == "fedavgm" else 0.0))
        kappa = clip_norm * rounds / noise
        return CentredRows.of(centres, train.row_norm or clip_norm, kappa, reach * noise * rounds)
