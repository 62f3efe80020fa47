"""Clipped sums of one Linear layer with one output, which is logistic and linear regression.

The gradient of a row is one number, the gradient at the output, times the row and its 1 for the bias. Its norm is that
number times ``sqrt(|a|^2 + 1)``, so a row is clipped by clamping one number, and a batch costs two products.

Outputs are float64. How a float32 product rounds depends on where in memory a row lies, so on the rows before it; under
weights of a million, which an aggregator may send, that moves an output by a quarter. On a table crafted for it the
gradients of all rows then changed when the first one left, and the sum of a softmax regression by 54 C. In float64 an
output of d terms is off by d 2**-53 times its largest term: 1e-8 for 30 columns, far below what sums leave free. And
batches are filled up, so that even this error is the same at every place in the batch (``batch_invariance.py``),
however long the rows are.

Since rows are there in float64 anyway, with the 1 behind them, norms and sums are float64 as well: one call each.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.batch_invariance import Numbers, Places, SameEverywhere
from homo_dp.privacy.gradients.gram_norms import LEAST_LENGTH
from homo_dp.privacy.gradients.losses import Loss, output_gradient
from homo_dp.privacy.gradients.row_sums import BELOW, write_rows

_LANES = 4  # float64 numbers that rows start at a multiple of


class LayerInDouble:
    """A Linear layer with one output as a float64 vector: weight, bias, and zeros behind them."""

    def __init__(self, module: nn.Linear) -> None:
        self._module = module
        self.bias = module.bias is not None and module.bias.requires_grad
        self._frozen = None if self.bias else module.bias
        self.trained = module.in_features + int(self.bias)
        # Columns of the table, one for the bias, and as many as let rows fill registers.
        self.parts = [module.in_features, 1, -(module.in_features + 1) % _LANES]
        self.columns = sum(self.parts)
        self._weights = module.weight.new_zeros(self.columns, dtype=torch.float64)
        weight, self._shift, _ = torch.split(self._weights, self.parts)
        self._weight = weight.view(1, -1)

    def room(self, rows: int) -> Tensor:
        """So many rows of zeros, each with its 1 for the bias; without one so little that no length is zero."""
        made = self._weights.new_zeros((rows, self.columns))
        made[:, self.parts[0]] = 1.0 if self.bias else LEAST_LENGTH
        return made

    def outputs(self, rows: Tensor) -> Tensor:
        """The outputs of rows as ``room`` has them, of the weights that the module has now."""
        own = self._module._parameters  # a look-up by name in the module itself takes a microsecond
        self._weight.copy_(own["weight"])  # type: ignore[arg-type]
        if self.bias:
            self._shift.copy_(own["bias"])  # type: ignore[arg-type]
        outputs = torch.mv(rows, self._weights)
        if self._frozen is not None:
            outputs += self._frozen
        return outputs


class OneOutputGradients:
    """ClippedGradients of a Linear layer with one output, weight trainable, under one of our losses.

    ``places`` says which batches may be taken at once; others are taken in pieces. None: the caller has seen to that.

    Guarantees:
        - a row moves the float64 sum by at most BELOW times the bound, but for float64 rounding;
        - a row whose gradient is not finite adds nothing, is counted, and changes no bit of what the others add.
    """

    batch_rows = 0

    def __init__(
        self, module: nn.Linear, loss: Loss, max_grad_norm: float, places: Places | None
    ) -> None:
        self._loss, self._bound = loss, max_grad_norm * BELOW
        self._layer = LayerInDouble(module)
        self._room = self._layer.room(0)
        self._views: dict[int, tuple[Tensor, Tensor]] = {}  # of the room, for each size of batch
        self._total = self._room.new_zeros(self._layer.columns)
        self._weight_total, self._shift_total, _ = torch.split(self._total, self._layer.parts)
        self._not_finite = 0
        self._pieces: SameEverywhere | None = None
        if places is not None:
            self._pieces = SameEverywhere(
                OneOutputGradients(module, loss, max_grad_norm, None), places
            )

    @property
    def rows_not_finite(self) -> int:
        """Rows left out so far because their gradient was not finite."""
        return self._not_finite + (0 if self._pieces is None else self._pieces.rows_not_finite)

    def clipped_sum(
        self,
        features: Tensor,
        labels: Tensor,
        sums: list[Tensor],
        accumulate: bool,
        filling: int = 0,
    ) -> Callable[[], Tensor]:
        if self._pieces is not None and not self._pieces.at_once(features, labels):
            return self._pieces.clipped_sum(features, labels, sums, accumulate, filling)
        counted = features.shape[0] - filling
        with torch.no_grad():
            rows, norms, lengths = self.norms_of(features, labels)
            clipped = norms.clamp(-self._bound, self._bound).div_(lengths)
            if not math.isfinite(norms.sum().item()):
                # A factor of zero does not silence NaN, so the row has to go too.
                finite = norms.isfinite()
                self._not_finite += counted - int(finite[:counted].sum())
                clipped = torch.where(finite, clipped, 0.0)
                rows = rows.masked_fill(
                    ~finite.unsqueeze(1), 0.0
                )  # a copy: later batches find their 1 for the bias
            if filling:
                clipped.narrow(0, counted, filling).zero_()
            torch.mv(rows.t(), clipped, out=self._total)
            write_rows(sums[0], self._weight_total, accumulate)
            if self._layer.bias:
                write_rows(sums[1], self._shift_total, accumulate)
        return lambda: norms[:counted].abs()

    def at_once(self, size: int, features: Tensor, labels: Tensor) -> bool:
        """Whether so many rows of a table may be taken at once."""
        return self._pieces is not None and self._pieces.size_at_once(size, features, labels)

    def norms_of(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows in float64 as the layer multiplies them, norms of their gradients with a sign, lengths of the rows."""
        rows, from_table = self._views.get(features.shape[0]) or self._room_for(features.shape[0])
        from_table.copy_(features if features.dim() == 2 else features.flatten(1))
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return (
            rows,
            output_gradient(self._loss, self._layer.outputs(rows), labels).mul_(lengths),
            lengths,
        )

    def _room_for(self, count: int) -> tuple[Tensor, Tensor]:
        """So many float64 rows, and of them the columns of the table."""
        if self._room.shape[0] < count:
            self._room = self._layer.room(count + count // 8)
            self._views.clear()
        self._views[count] = found = self._room[:count], self._room[:count, : self._layer.parts[0]]
        return found

    def close(self) -> None:
        """Nothing to take off."""


def one_output_numbers(loss: Loss) -> Numbers:
    """What the sums of a batch are made of, rows first: for ``batch_invariance.py``."""

    def numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
        layer = one_output_layer(module)
        if layer is None:
            raise ValueError("the copy of a model is another model")
        with torch.no_grad():
            return list(OneOutputGradients(layer, loss, 1.0, None).norms_of(features, labels))

    return numbers


def one_output_layer(module: nn.Module) -> nn.Linear | None:
    """The Linear layer, if the module is no more than one with one output and a trainable weight.

    >>> one_output_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)))
    Linear(in_features=4, out_features=1, bias=True)
    """
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    while (
        layers
        and type(layers[0]) is nn.Flatten
        and layers[0].start_dim == 1
        and layers[0].end_dim == -1
    ):
        layers.pop(0)
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    layer: nn.Linear = layers[0]
    return layer if layer.out_features == 1 and layer.weight.requires_grad else None
