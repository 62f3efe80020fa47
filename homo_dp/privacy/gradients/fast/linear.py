"""Clipped sums of one Linear layer with one output, which is logistic and linear regression.

The gradient of a row is one number, the gradient at the output, times the row and its 1 for the
bias. Its norm is that number times ``sqrt(|a|^2 + 1)``, so a row is clipped by clamping one number,
and a batch costs two products.

Outputs are float64. How a float32 product rounds depends on where in memory a row lies, so on the
rows before it; under weights of a million, which an aggregator may send, that moves an output by a
quarter. On a table crafted for it the gradients of all rows then changed when the first one left,
and the sum of a softmax regression by 54 C. In float64 an output of d terms is off by d 2**-53
times its largest term: 1e-8 for 30 columns, far below what sums leave free. And batches are filled
up, so that even this error is the same at every place in the batch (``batch_invariance.py``),
however long the rows are.

Since rows are there in float64 anyway, with the 1 behind them, norms and sums are float64 as well:
one call each.
"""

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.gram_norms import LEAST_LENGTH

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
        """So many rows of zeros, each with its 1 for the bias; without one so little that no
        length is zero.
        """
        made = self._weights.new_zeros((rows, self.columns))
        made[:, self.parts[0]] = 1.0 if self.bias else LEAST_LENGTH
        return made

    def is_room_of(self, table: Tensor, features: Tensor) -> bool:
        """Whether these rows are the first columns of a table that ``room`` made, or one like it."""
        width = self.parts[0]
        if table.dtype is not torch.float64 or table.shape != (len(features), self.columns):
            return False
        own = table[:, :width]
        same = (own.data_ptr(), own.shape, own.stride()) == (
            features.data_ptr(),
            features.shape,
            features.stride(),
        )
        return same and bool(table[:, width:].equal(self.room(len(features))[:, width:]))

    def outputs(self, rows: Tensor) -> Tensor:
        """The outputs of rows as ``room`` has them, of the weights that the module has now."""
        own = self._module._parameters  # a look-up by name in the module itself takes a microsecond
        self._weight.copy_(own["weight"].detach())  # type: ignore[union-attr]
        if self.bias:
            self._shift.copy_(own["bias"].detach())  # type: ignore[union-attr]
        outputs = torch.mv(rows, self._weights)
        if self._frozen is not None:
            outputs += self._frozen
        return outputs


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
