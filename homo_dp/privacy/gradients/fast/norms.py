"""GroupNorm and LayerNorm on the fast path: their per-sample gradients are as small as one row,
so they are held.
"""

import math

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.fast.layers import FastLayer
from homo_dp.privacy.gradients.row_sums import row_squares, write_product


class _HeldRows(FastLayer):
    """Layers whose per-sample gradients are made in ``backward``, one (n, size) tensor a
    trainable parameter.
    """

    def __init__(self, parameters: list[Tensor | None]) -> None:
        super().__init__()
        self._inputs: Tensor | None = None
        self.parameters = [
            parameter
            for parameter in parameters
            if parameter is not None and parameter.requires_grad
        ]

    def _hold(
        self, weight: Tensor | None, scaled: Tensor, bias: Tensor | None, plain: Tensor
    ) -> None:
        self._rows = [scaled] if weight is not None and weight.requires_grad else []
        if bias is not None and bias.requires_grad:
            self._rows.append(plain)

    def squared_norms(self) -> Tensor:
        squares = row_squares(self._rows[0])
        for rows in self._rows[1:]:
            squares = squares + row_squares(rows)
        return squares

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        for total, rows in zip(sums, self._rows, strict=True):
            write_product(total, factors.unsqueeze(1), rows.flatten(1), accumulate)

    def kept(self) -> list[Tensor]:
        return self._rows

    def forget(self) -> None:
        self._inputs = None
        self._rows = []


class FastGroupNorm(_HeldRows):
    """nn.GroupNorm with trainable scale, shift or both."""

    def __init__(self, module: nn.GroupNorm) -> None:
        super().__init__([module.weight, module.bias])
        self._module = module

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        module = self._module
        self._inputs = inputs.contiguous()
        self._sizes = (
            len(inputs),
            inputs.shape[1],
            inputs[0, 0].numel() if len(inputs) else 1,
            module.num_groups,
        )
        outputs: Tensor
        outputs, self._mean, self._inverse = torch.ops.aten.native_group_norm(
            self._inputs, module.weight, module.bias, *self._sizes, module.eps
        )
        return outputs

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        inputs, gradient = _kept(self._inputs), gradient.contiguous()
        rows, channels, _, groups = self._sizes
        shifts = gradient.reshape(rows, channels, -1).sum(2)
        products = (gradient * inputs).reshape(rows, channels, -1).sum(2)
        mean = self._mean.repeat_interleave(channels // groups, 1)
        inverse = self._inverse.repeat_interleave(channels // groups, 1)
        self._hold(
            self._module.weight, (products - mean * shifts) * inverse, self._module.bias, shifts
        )
        if not inputs_needed:
            return None
        result: Tensor = torch.ops.aten.native_group_norm_backward(
            gradient,
            inputs,
            self._mean,
            self._inverse,
            self._module.weight,
            *self._sizes,
            [True, False, False],
        )[0]
        return result


class FastLayerNorm(_HeldRows):
    """nn.LayerNorm with trainable scale, shift or both."""

    def __init__(self, module: nn.LayerNorm) -> None:
        super().__init__([module.weight, module.bias])
        self._module = module

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        module = self._module
        self._inputs = inputs.contiguous()
        outputs: Tensor
        outputs, self._mean, self._inverse = torch.ops.aten.native_layer_norm(
            self._inputs, module.normalized_shape, module.weight, module.bias, module.eps
        )
        return outputs

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        module, inputs = self._module, _kept(self._inputs)
        size = math.prod(module.normalized_shape)
        scaled = gradient * (inputs - self._mean) * self._inverse
        # Positions between the row and the normalised dimensions (a sequence) share the parameters:
        # add them up.
        per_row = [values.reshape(len(inputs), -1, size).sum(1) for values in (scaled, gradient)]
        self._hold(module.weight, per_row[0], module.bias, per_row[1])
        if not inputs_needed:
            return None
        statistics = (
            module.normalized_shape,
            self._mean,
            self._inverse,
            module.weight,
            module.bias,
        )
        result: Tensor = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), inputs, *statistics, [True, False, False]
        )[0]
        return result


def _kept(inputs: Tensor | None) -> Tensor:
    if inputs is None:
        raise RuntimeError("backward was called before forward")
    return inputs
