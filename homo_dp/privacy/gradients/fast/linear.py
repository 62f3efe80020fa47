"""Clipped sums of one Linear layer with one output, which is logistic and linear regression.

The gradient of a row is one number, the gradient at the output, times the row and its 1 for the bias. Its norm is that
number times ``sqrt(|a|^2 + 1)``, so a row is clipped by clamping one number, and a batch costs two products.

Outputs are float64. How a float32 product rounds depends on where in memory a row lies, so on the rows before it; under
weights of a million, which an aggregator may send, that moves an output by a quarter. On a table crafted for it the
gradients of all rows then changed when the first one left, and the sum of a softmax regression by 54 C. In float64 an
output of d terms is off by d 2**-53 times its largest term: 1e-8 for 30 columns, far below what sums leave free. And
batches are filled up, so that even this error is the same at every place in the batch (``batch_invariance.py``),
however long the rows are.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.batch_invariance import SameEverywhere
from homo_dp.privacy.gradients.fast.invariant_products import exact_linear
from homo_dp.privacy.gradients.fast.layers import LEAST_SQUARE
from homo_dp.privacy.gradients.losses import Loss, output_gradient
from homo_dp.privacy.gradients.row_sums import BELOW, row_lengths, write_product, write_total


class OneOutputGradients:
    """ClippedGradients of a Linear layer with one output, weight trainable, under one of our losses.

    Guarantees:
        - as FastGradients, which take over for a batch that holds a value that is not finite.
    """

    batch_rows = 0

    def __init__(self, module: nn.Linear, loss: Loss, max_grad_norm: float, general: SameEverywhere) -> None:
        self._module, self._loss = module, loss
        self._bound, self._inputs = max_grad_norm * BELOW, module.in_features
        self._bias = module.bias is not None and module.bias.requires_grad
        self._least_square = torch.tensor(1.0 if self._bias else LEAST_SQUARE, device=module.weight.device)
        self._general = general

    @property
    def rows_not_finite(self) -> int:
        """Rows left out so far because their gradient was not finite."""
        return self._general.rows_not_finite

    def clipped_sum(
        self, features: Tensor, labels: Tensor, sums: list[Tensor], accumulate: bool, filling: int = 0
    ) -> Callable[[], Tensor]:
        own = self._module._parameters  # a look-up by name in the module itself takes a microsecond
        with torch.no_grad():
            inputs = features if features.dim() == 2 else features.flatten(1)
            one = inputs.shape[1] == self._inputs  # not a sequence, with one output at each position
            if not one or not self._general.at_once(features, labels):
                return self._general.clipped_sum(features, labels, sums, accumulate, filling)
            outputs = exact_linear(inputs, own["weight"], own["bias"])  # type: ignore[arg-type]
            gradient = output_gradient(self._loss, outputs, labels).to(inputs.dtype)
            # Infinite for rows that are too long for float32, so that no clipped number below is denormal.
            flat = row_lengths(inputs, self._least_square)
            lengths = flat.unsqueeze(1)
            signed_norms = gradient * lengths
            clipped = signed_norms.clamp(-self._bound, self._bound).div_(lengths)
            # Not finite if any output gradient or any input is not: 0 * infinity is NaN.
            if not math.isfinite(torch.dot(clipped.view(-1), flat).item()):
                return self._general.clipped_sum(features, labels, sums, accumulate, filling)
            counted = inputs.shape[0] - filling
            clipped[counted:] = 0.0
            write_product(sums[0], clipped, inputs, accumulate)
            if self._bias:
                write_total(sums[1], clipped, accumulate)
        return signed_norms[:counted].squeeze_(1).abs

    def close(self) -> None:
        """Nothing to take off."""


def one_output_layer(module: nn.Module) -> nn.Linear | None:
    """The Linear layer, if the module is no more than one with one output and a trainable weight.

    >>> one_output_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)))
    Linear(in_features=4, out_features=1, bias=True)
    """
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    while layers and type(layers[0]) is nn.Flatten and layers[0].start_dim == 1 and layers[0].end_dim == -1:
        layers.pop(0)
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    layer: nn.Linear = layers[0]
    return layer if layer.out_features == 1 and layer.weight.requires_grad else None
