"""The rows of a linear model in coordinates that an aggregator chose, for gradients and moments.

A gradient of a linear model is r x: how far its outputs are off, times its row (with a 1 for the
bias). In other coordinates (rows times a public matrix) rows are more alike, so that the same noise
is less of the gradient. There a party trains a Linear layer of its own on transformed rows, with
weights of zero and the outputs of the model that was sent as offsets.

Coordinates come from an aggregator, which can make them such that nothing but rounding is left of a
row. How a product of matrices rounds a row depends on its position, and so on the rows before it,
while clip norms may be as small as rounding: one record less then moved a second moment by 115 C.
So products are float64, in blocks in which positions do not matter, as far as that can be tried
(``batch_invariance.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import places_of
from homo_dp.privacy.gradients.clipping import clip_factors, row_norms
from homo_dp.privacy.gradients.fast.chain import filled
from homo_dp.privacy.gradients.fast.invariant_products import wide_product
from homo_dp.privacy.gradients.fast.linear import LayerInDouble
from homo_dp.privacy.gradients.losses import Loss, OffsetLoss

_AT_ONCE = 1 << 20  # numbers in hand at a time: many more are fetched from memory anew every round
_LANES = 4  # float64 numbers that rows start at a multiple of
# rows that blocks are filled up to a multiple of: sigmoids take as many at once, and the rest
# otherwise
_MULTIPLE = 32


def linear_layer(module: nn.Module) -> nn.Linear | None:
    """The Linear layer, if the module is no more than one (behind a flattening) and all of it is
    trained.

    >>> linear_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    Linear(in_features=4, out_features=3, bias=True)
    """
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    layer: nn.Linear = layers[0]
    return layer if all(parameter.requires_grad for parameter in layer.parameters()) else None


def rows_of(module: nn.Linear, features: Tensor) -> Tensor:
    """Rows as the layer multiplies them, with a 1 for its bias; one that is not finite becomes
    zeros.
    """
    rows = features.detach().flatten(1)
    if module.bias is not None:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    finite = rows.isfinite().all(dim=1, keepdim=True)
    return rows if bool(finite.all()) else torch.where(finite, rows, 0.0)


def transformed_rows(rows: Tensor, transform: Tensor) -> Tensor:
    """Rows @ transform in float64, or around centres; a row that is not finite there becomes zeros.

    Centres are a vector, with the size of the column of ones behind: rows (x, 1) become (x -
    centres, size).

    >>> transformed_rows(torch.tensor([[3.0, 1.0]]), torch.tensor([2.0, 0.5]))
    tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """
    if transform.dim() == 1:
        own, axes = rows.double(), transform.double()
        found = torch.cat([own[:, :-1] - own[:, -1:] * axes[:-1], own[:, -1:] * axes[-1]], dim=1)
    else:
        found = _products(rows, transform.double())
    # A factor of zero does not silence what is not finite, so the row has to go too.
    finite = found.isfinite().all(dim=1, keepdim=True)
    return found if bool(finite.all()) else torch.where(finite, found, 0.0)


class LinearTraining:
    """A Linear layer on transformed rows, whose gradients the aggregator steps by.

    Guarantees:
        - what a row contributes depends on that row and on public numbers alone;
        - a row is clipped to ``row_norm`` before it is transformed, where one is given.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        features: Tensor,
        labels: Tensor,
        *,
        row_norm: float | None = None,
    ) -> None:
        """Prepare the rows.

        Args:
            model: The linear model that the aggregator sends weights of.
            loss: Its loss.
            features: The rows.
            labels: Their labels.
            row_norm: What rows are clipped to.
        """
        layer = linear_layer(model)
        if layer is None:
            raise PrivacyError(
                "train.solver: needs a linear model with all of its weights trained; use "
                "solver: sgd"
            )
        self._layer = layer
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        rows = rows_of(layer, features).cpu()
        if row_norm is not None:
            rows = rows * clip_factors(row_norms(rows), row_norm).to(rows.dtype).unsqueeze(1)
        self._rows = rows
        self._transform: Tensor | None = None
        outputs = layer.out_features
        self.module = nn.Linear(rows.shape[1], outputs, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.module.weight)
        # with room behind each row, so that batches need not be copied
        table = LayerInDouble(self.module).room(len(rows))
        self.features = table[:, : rows.shape[1]]
        """Rows in the coordinates of now."""
        self.features.copy_(rows)
        labels = labels.detach().cpu().double().reshape(len(labels), -1)
        self._offsets = labels.new_zeros((len(labels), outputs))
        self.labels = torch.cat([labels, self._offsets], dim=1)
        """Labels, and behind them the outputs of the model that was sent."""
        self.loss = OffsetLoss(loss, outputs)

    def set_round(self, weights: Mapping[str, Tensor], transform: Tensor | None) -> None:
        """Take gradients at these weights, in these coordinates; None: in those of the columns."""
        table = self._table({name: weight.double() for name, weight in weights.items()})
        outputs = self.module.out_features
        self.labels[:, -outputs:] = outputs_of(self._rows, table)
        if transform is None or (self._transform is not None and transform.equal(self._transform)):
            return
        self.features.copy_(transformed_rows(self._rows, transform))
        self._transform = transform

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """A vector of sums under the names of the model's weights."""
        table = values.reshape(self.module.out_features, -1)
        parameters = list(self._layer.parameters())
        widths = [parameter.numel() // len(table) for parameter in parameters]
        return {
            self._names[id(parameter)]: piece.reshape(parameter.shape)
            for parameter, piece in zip(parameters, torch.split(table, widths, dim=1), strict=True)
        }

    def _table(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Weights and bias, one row an output."""
        parts = [
            weights[self._names[id(parameter)]].reshape(self._layer.out_features, -1)
            for parameter in self._layer.parameters()
        ]
        return torch.cat(parts, dim=1)


def outputs_of(rows: Tensor, weights: Tensor) -> Tensor:
    """The outputs of rows in float64, under weights of one row an output."""
    return _products(rows, weights.double().t())


def _products(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows @ matrix in float64, each row with the same bits at every position."""
    width, columns = matrix.shape
    found = rows.new_empty((len(rows), columns), dtype=torch.float64)
    if not len(rows):
        return found
    layer = nn.Linear(width, columns, bias=False)
    places = places_of(layer, _numbers, ("products of rows",))
    size = places.at_once(_block_size(len(rows), width), rows, torch.zeros(1))
    right = _padded(matrix.t()).t()
    for start in range(0, len(rows), size):
        part = slice(start, min(start + size, len(rows)))
        # A copy, since where a block starts in memory may matter as much as where a row does.
        block = filled(_padded(rows[part]), size).to(torch.float64, copy=True)
        found[part] = _product(block, right)[: part.stop - start]
    return found


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    if matrix.shape[1] == 1:
        return torch.mv(rows, matrix[:, 0]).unsqueeze(1)
    return wide_product(rows, matrix)


def _block_size(rows: int, width: int) -> int:
    """How many rows to take at a time, so that all blocks are about as long."""
    size = -(-rows // -(-rows * width // _AT_ONCE))
    return size + -size % _MULTIPLE


def _padded(columns: Tensor) -> Tensor:
    """With zeros behind, up to a number of columns that fills registers."""
    return F.pad(columns, (0, -columns.shape[1] % _LANES))


def _numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
    """What such products are of made-up rows: for ``batch_invariance.py``."""
    matrix = module.get_parameter("weight").detach().double()
    return [_product(_padded(features).double(), _padded(matrix).t())]
