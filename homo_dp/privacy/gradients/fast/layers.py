"""Layers of the fast path: forward and backward by hand, the norm of each row's gradient without
that gradient.

A layer keeps of one pass what its gradient needs: its inputs and the gradient at its outputs. For a
Linear layer whose input is a row vector ``a`` and whose output gradient is ``g``, the gradient of a
row is the outer product ``g a^T``, so its norm is ``|g| |a|`` and the clipped sum over rows is one
product of matrices, ``(factors * G)^T A``.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.fast.invariant_products import (
    exact_linear,
    wide_linear,
    wide_product,
)
from homo_dp.privacy.gradients.gram_norms import LEAST_LENGTH, outer_squares, total_squares
from homo_dp.privacy.gradients.row_sums import row_squares, write_product, write_total

LEAST_SQUARE = LEAST_LENGTH**2


class FastLayer(ABC):
    """One layer of a chain; every method runs without autograd unless it says otherwise."""

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []
        """Trainable parameters, in the order in which ``write_sums`` is given their sums."""

    @abstractmethod
    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        """Outputs for a batch; ``keep`` says that a backward pass will follow."""

    def given(self, outputs: Tensor) -> Any:
        """What the module itself would give for these outputs: the same, unless it gives
        several.
        """
        return outputs

    @abstractmethod
    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        """Gradient at the inputs, where needed, from the gradient at the outputs."""

    def squared_norms(self) -> Tensor:
        """Squared norm of each row's gradient over this layer's trainable parameters; called
        after ``backward``.
        """
        raise NotImplementedError

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        """Write (or add) the sum over rows of factor times gradient, one float64 tensor a
        trainable parameter.
        """
        raise NotImplementedError

    def kept(self) -> list[Tensor]:
        """What sums are made of, rows first: numbers of the last pass, which must not depend on
        a row's place.
        """
        return []

    def forget(self) -> None:
        """Drop what was kept of the last pass."""
        return


class FastLinear(FastLayer):
    """nn.Linear on row vectors (n, d), or on sequences (n, ..., d), whose gradients are sums of
    outer products.
    """

    # whether outputs are float64, where they go straight into a loss: see ``linear.py``
    exact = False

    def __init__(self, module: nn.Linear) -> None:
        super().__init__()
        self._module = module
        self._weight = module.weight.requires_grad
        self._bias = module.bias is not None and module.bias.requires_grad
        if self._weight:
            self.parameters.append(module.weight)
        if self._bias:
            self.parameters.append(module.bias)

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        self._inputs = inputs
        linear = exact_linear if self.exact else wide_linear
        return linear(inputs, self._module.weight, self._module.bias)

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        self._gradient = gradient
        return wide_product(gradient, self._module.weight) if inputs_needed else None

    def squared_norms(self) -> Tensor:
        if self._inputs.dim() > 2:
            return self._squared_norms_of_sequences()
        squares = row_squares(self._gradient)
        if not self._weight:
            return squares
        inputs = row_squares(self._inputs)
        # A square that underflows to zero in float32 would hide the other factor, however large.
        return squares.add_(LEAST_SQUARE) * inputs.add_(1.0 if self._bias else LEAST_SQUARE)

    def _squared_norms_of_sequences(self) -> Tensor:
        inputs, gradient = self._inputs.flatten(1, -2), self._gradient.flatten(1, -2)
        squares = total_squares(gradient) if self._bias else gradient.new_zeros(len(gradient))
        return squares + outer_squares(inputs, gradient) if self._weight else squares

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        gradient, inputs = (
            scale_rows(self._gradient, factors).flatten(0, -2),
            self._inputs.flatten(0, -2),
        )
        if self._weight:
            write_product(sums[0], gradient, inputs, accumulate, terms=self._inputs.dim() - 1)
        if self._bias:
            write_total(sums[-1], gradient, accumulate)

    def kept(self) -> list[Tensor]:
        return [self._inputs, self._gradient]

    def forget(self) -> None:
        del self._inputs, self._gradient


class FastActivation(FastLayer):
    """Activations whose derivative follows from their output: ReLU, Tanh and Sigmoid."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._kind = type(module)

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        if self._kind is nn.ReLU:
            self._outputs = inputs.relu()
        else:
            self._outputs = inputs.tanh() if self._kind is nn.Tanh else inputs.sigmoid()
        return self._outputs

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        result: Tensor
        if self._kind is nn.ReLU:
            result = torch.ops.aten.threshold_backward(gradient, self._outputs, 0)
        elif self._kind is nn.Tanh:
            result = torch.ops.aten.tanh_backward(gradient, self._outputs)
        else:
            result = torch.ops.aten.sigmoid_backward(gradient, self._outputs)
        return result

    def forget(self) -> None:
        del self._outputs


class FastFlatten(FastLayer):
    """nn.Flatten of everything but the rows, and nn.Identity."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._flatten = isinstance(module, nn.Flatten)

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        self._shape = inputs.shape
        return inputs.flatten(1) if self._flatten else inputs

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        return gradient.reshape(self._shape)


class FastMaxPool(FastLayer):
    """nn.MaxPool2d, channels last inside: torch uses vector instructions in that order alone,
    and is 8 times faster.
    """

    def __init__(self, module: nn.MaxPool2d) -> None:
        super().__init__()
        sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
        self._geometry = (
            *([size, size] if isinstance(size, int) else list(size) for size in sizes),
            module.ceil_mode,
        )

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        self._inputs = _channels_last(inputs)
        outputs: Tensor
        outputs, self._places = torch.ops.aten.max_pool2d_with_indices(
            self._inputs, *self._geometry
        )
        return outputs.contiguous()

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            _channels_last(gradient), self._inputs, *self._geometry, self._places
        )
        return result.contiguous()

    def forget(self) -> None:
        del self._inputs, self._places


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


class FixedFunction(FastLayer):
    """Any module without trainable parameters, by autograd over that module alone: pooling,
    dropout, other activations.

    It must treat rows alone; that is probed for the whole module when training is set up.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._in_place = any(getattr(layer, "inplace", False) for layer in module.modules())
        layers = list(module.modules())
        known = all(type(layer).__module__.startswith("torch.nn.") for layer in layers)
        self.foreign = not known or any(
            isinstance(layer, nn.Flatten | nn.Unflatten) for layer in layers
        )
        """Whether what it does to rows cannot be told from its type."""

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        if not keep:
            result: Tensor = self._module(inputs.clone() if self._in_place else inputs)
            return result
        with torch.enable_grad():
            self._leaf = inputs.detach().requires_grad_()
            # A copy for a module that works in place: the layer before keeps the original, and
            # autograd forbids writing to a leaf.
            self._outputs: Tensor = self._module(
                self._leaf.clone() if self._in_place else self._leaf
            )
        detached: Tensor = self._outputs.detach()
        return detached

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        if not self._outputs.requires_grad:
            return torch.zeros_like(self._leaf)
        result: Tensor | None
        (result,) = torch.autograd.grad(self._outputs, self._leaf, gradient, allow_unused=True)
        return torch.zeros_like(self._leaf) if result is None else result

    def forget(self) -> None:
        if hasattr(self, "_leaf"):
            del self._leaf, self._outputs


def scale_rows(rows: Tensor, factors: Tensor) -> Tensor:
    """Each row times its factor."""
    return rows * (
        factors.unsqueeze(1) if rows.dim() == 2 else factors.reshape(-1, *[1] * (rows.dim() - 1))
    )
