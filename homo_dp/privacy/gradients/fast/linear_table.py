"""Clipped sums of a Linear layer with one output over batches of one table, which is made ready once.

A step of a logistic regression is some forty calls on a few hundred numbers, and a call costs more than its numbers. So
what a batch would compute anew is kept beside each row: the label in float64, and what the gradient at the output is
clamped to, C / length.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.clipped_gradients import ClippedGradients
from homo_dp.privacy.gradients.fast.chain import all_finite, filled, rows_multiple
from homo_dp.privacy.gradients.fast.linear import (
    LayerInDouble,
    OneOutputGradients,
    one_output_layer,
)
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, output_gradient
from homo_dp.privacy.gradients.row_sums import BELOW

_MOST = 1 << 22  # numbers of a table that is kept: 16 MiB in float32
_AT_ONCE = 64  # rows whose lengths are made together
_Table = tuple[Tensor, Tensor]  # features and labels


class OneOutputTable:
    """The rows of a table, ready for sums of clipped gradients.

    Guarantees:
        - a sum is as that of OneOutputGradients, or none: batches that it takes in pieces, or that have a row or a
          gradient which is not finite, are left to it;
        - rows are copied, so that nobody can change one behind the length that it is clipped by.
    """

    def __init__(
        self,
        module: nn.Linear,
        loss: Loss,
        max_grad_norm: float,
        gradients: OneOutputGradients,
        table: _Table,
    ) -> None:
        self._layer, self._loss, self._gradients, self._table = (
            LayerInDouble(module),
            loss,
            gradients,
            table,
        )
        self._bounded = (
            loss is binary_logistic
        )  # its gradient is finite wherever the output is a number
        features, labels = table
        self._count, self._multiple = features.shape[0], rows_multiple([module.weight])
        # One row more, of zeros and with a bound of zero, fills up batches.
        self._rows = features.new_zeros((self._count + 1, module.in_features))
        self._rows[: self._count] = features.flatten(1)
        lengths, room = [], self._layer.room(_AT_ONCE)
        for start in range(0, self._count, _AT_ONCE):
            piece = self._rows[start : min(start + _AT_ONCE, self._count)]
            # In batches of one size, as all numbers are made that must not depend on a row's place.
            room[:, : module.in_features] = filled(piece, _AT_ONCE)
            lengths.append(torch.linalg.vector_norm(room, dim=1)[: len(piece)])
        self._lengths = torch.cat(lengths)
        exact = labels.reshape(-1).to(self._lengths)
        # A bound of NaN makes the sum NaN, which is how a row that is not finite is found.
        most = torch.where(
            (self._lengths + exact).isfinite(), max_grad_norm * BELOW / self._lengths, math.nan
        )
        self._beside = most.new_zeros((self._count + 1, 3))  # what a batch would compute anew
        self._beside[: self._count] = torch.stack([exact, -most, most], 1)
        self._room = self._rows[:0], self._beside[:0], self._layer.room(0)
        self._views: dict[int, tuple[Tensor, ...]] = {}  # of the room, for each size of batch

    def clipped_sum(
        self, pieces: Sequence[Tensor], total: Tensor
    ) -> list[Callable[[], Tensor]] | None:
        """Overwrite ``total``, all trained weights in one, with the clipped sum of rows by their numbers.

        Returns what gives the norms of each piece; None where there is no sum.
        """
        norms: list[Callable[[], Tensor]] = []
        with torch.no_grad():
            for index, piece in enumerate(pieces):
                numbers = self._filled(piece)
                size = numbers.shape[0]
                if not self._gradients.at_once(size, *self._table):
                    return None
                short, beside, from_table, rows, across, labels, least, most = self._views.get(
                    size
                ) or self._room_for(size)
                torch.index_select(self._beside, 0, numbers, out=beside)
                from_table.copy_(torch.index_select(self._rows, 0, numbers, out=short))
                gradient = output_gradient(self._loss, self._layer.outputs(rows), labels)
                if not self._bounded and not all_finite(
                    gradient
                ):  # clamped, such a row would count
                    return None
                total.addmv_(across, gradient.clamp(least, most), beta=int(index > 0))
                norms.append(functools.partial(self._norms, gradient, piece))
        return norms if all_finite(total) else None

    def _filled(self, numbers: Tensor) -> Tensor:
        """The numbers of rows, filled up to a multiple with that of the row which adds nothing."""
        more = -numbers.shape[0] % self._multiple
        if not more:
            return numbers
        return torch.from_numpy(np.concatenate((numbers.numpy(), np.full(more, self._count))))

    def _norms(self, gradient: Tensor, numbers: Tensor) -> Tensor:
        return gradient[: numbers.shape[0]].abs() * self._lengths.index_select(0, numbers)

    def _room_for(self, size: int) -> tuple[Tensor, ...]:
        """For a batch: rows as the table has them, what is beside, and views of rows in float64 and of that."""
        if self._room[0].shape[0] < size:
            self._views.clear()
            most, width = size + size // 8, self._rows.shape[1]
            self._room = (
                self._rows.new_empty((most, width)),
                self._beside.new_empty((most, 3)),
                self._layer.room(most),
            )
        short, beside, rows = (each[:size] for each in self._room)
        across = rows[:, : self._layer.trained].t()
        self._views[size] = found = (
            short,
            beside,
            rows[:, : short.shape[1]],
            rows,
            across,
            *beside.unbind(1),
        )
        return found


def table_of(
    module: nn.Module,
    loss: Loss,
    max_grad_norm: float,
    gradients: ClippedGradients,
    features: Tensor,
    labels: Tensor,
) -> OneOutputTable | None:
    """The table, ready, where a model is trained by OneOutputGradients and its rows are few enough to keep twice."""
    layer = one_output_layer(module)
    if layer is None or not isinstance(gradients, OneOutputGradients):
        return None
    # Lengths, and gradients times them, are finite where rows, labels and weights are. Labels may be whole numbers.
    short = (
        features.dtype is layer.weight.dtype is torch.float32 and labels.dtype is not torch.float64
    )
    fits = 0 < features.numel() <= _MOST and labels.numel() == features.shape[0]
    if not short or not fits or features.device.type != "cpu":
        return None
    return OneOutputTable(
        layer, loss, max_grad_norm, gradients, (features.detach(), labels.detach())
    )
