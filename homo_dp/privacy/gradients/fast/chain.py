"""The fast path over a whole model: which models it takes, one forward and one backward pass, and
the clipped sum.

The backward pass is the ordinary one. What differs is what happens to the gradients at the layers'
outputs: their rows are scaled by the clip factors before they are multiplied with the inputs, so
that no per-sample gradient exists.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.convolution import FastConvolution, is_fast_convolution
from homo_dp.privacy.gradients.fast.embedding import (
    FastEmbedding,
    FastEmbeddingBag,
    is_fast_embedding,
)
from homo_dp.privacy.gradients.fast.layers import (
    FastActivation,
    FastFlatten,
    FastLayer,
    FastLinear,
    FastMaxPool,
    FixedFunction,
)
from homo_dp.privacy.gradients.fast.norms import FastGroupNorm, FastLayerNorm
from homo_dp.privacy.gradients.fast.recurrent import FastLSTM, is_fast_lstm
from homo_dp.privacy.gradients.row_sums import BELOW

FAST = "every trainable layer is supported"
ROWS = 8
"""What batches are filled up to a multiple of: products over the last few of an odd number of
rows round otherwise.
"""
# floats that two vector registers hold: torch takes what is left of a tensor by other instructions
_LANES = 32


class FastChain:
    """A chain of layers, run by hand.

    Guarantees:
        - ``write_clipped_sum`` adds each row's gradient over all trainable parameters together,
          clipped to the bound;
        - equal to clipping one row at a time to BELOW times the bound, to float tolerance: what is
          left of the bound covers the rounding of norms and sums, so that one row more or less
          moves the sum by at most the bound.
    """

    def __init__(self, layers: list[FastLayer]) -> None:
        self._layers = layers
        self._first = next(index for index, layer in enumerate(layers) if layer.parameters)
        self._trained = [layer for layer in layers if layer.parameters]
        self.multiple = rows_multiple(self.parameters)
        self._given = 0  # rows of the last batch

    @property
    def has_foreign_code(self) -> bool:
        """Whether some module may use weights of other layers or fold rows, unseen by us: then
        it has to be probed.
        """
        return any(isinstance(layer, FixedFunction) and layer.foreign for layer in self._layers)

    @property
    def parameters(self) -> list[Tensor]:
        """Trainable parameters in the order of the sums."""
        return [parameter for layer in self._trained for parameter in layer.parameters]

    @property
    def only_linear(self) -> FastLinear | None:
        """The Linear layer of a chain that has no other layer, flattening aside."""
        last, before = self._layers[-1], self._layers[:-1]
        return (
            last
            if isinstance(last, FastLinear) and all(isinstance(one, FastFlatten) for one in before)
            else None
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of a batch; filled up to a multiple of ``multiple`` rows, no row is rounded by
        its position (see ``batch_invariance.py``).
        """
        self._given = inputs.shape[0]
        rows = len(inputs)
        for index, layer in enumerate(self._layers):
            # each part of a record would be clipped by itself
            if layer.parameters and len(inputs) != rows:
                raise PrivacyError(
                    "a layer is not given one row a record; use grad_sample_mode=hooks"
                )
            inputs = layer.forward(inputs, index > self._first)
        return inputs

    def backward(self, gradient: Tensor) -> Tensor:
        """Pass the gradient at the outputs back to every layer; return the squared norm of each
        row's gradient.
        """
        flowing: Tensor | None = gradient
        for index in range(len(self._layers) - 1, self._first - 1, -1):
            if flowing is None:
                raise PrivacyError(
                    "a layer gave no gradient at its inputs; use grad_sample_mode=hooks"
                )
            flowing = self._layers[index].backward(flowing, index > self._first)
        squares = self._trained[0].squared_norms()
        for layer in self._trained[1:]:
            squares = squares + layer.squared_norms()
        return squares

    def write_clipped_sum(
        self, squares: Tensor, clip_norm: float, sums: list[Tensor], accumulate: bool
    ) -> None:
        """Write (or add) the clipped sum of the last pass; all norms must be finite, rows behind
        them fill up the batch and add nothing.
        """
        factors = squares.rsqrt().mul_(clip_norm * BELOW).clamp_(max=1.0)
        if factors.shape[0] < self._given:
            factors = F.pad(factors, (0, self._given - factors.shape[0]))
        self.write_layers(factors, sums, accumulate)

    def write_layers(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        """Write (or add) the sum over rows of factor times gradient."""
        start = 0
        for layer in self._trained:
            stop = start + len(layer.parameters)
            layer.write_sums(factors, sums[start:stop], accumulate)
            start = stop

    def kept(self) -> list[Tensor]:
        """What the sums of the last pass are made of, rows first."""
        return [rows for layer in self._trained for rows in layer.kept()]

    def forget(self) -> None:
        """Drop what the layers kept of the last pass."""
        for layer in self._layers:
            layer.forget()


def rows_multiple(parameters: Iterable[Tensor]) -> int:
    """What the batches of a model are filled up to a multiple of: the outputs of each layer then
    fill registers.

    >>> [rows_multiple([torch.zeros(outputs, 4)]) for outputs in (1, 2, 10, 32)]
    [32, 16, 16, 8]
    """
    widths = [parameter.shape[0] for parameter in parameters if parameter.dim() > 1]
    return max([ROWS, *(_LANES // math.gcd(_LANES, width) for width in widths)])


def filled(rows: Tensor, multiple: int) -> Tensor:
    """The rows and, behind them, copies of the first one up to a multiple; a copy brings nothing
    new to fail on.

    >>> filled(torch.tensor([[1.0], [2.0], [3.0]]), 4).flatten().tolist()
    [1.0, 2.0, 3.0, 1.0]
    """
    more = -rows.shape[0] % multiple
    if not more:
        return rows
    if rows.dim() == 1 and rows.device.type == "cpu":  # row numbers: NumPy takes half as long
        numbers = rows.detach().numpy()
        return torch.from_numpy(np.concatenate((numbers, numbers[:1].repeat(more))))
    return torch.cat([rows, rows[:1].expand(more, *rows.shape[1:])])


def all_finite(squares: Tensor) -> bool:
    """Whether every squared norm is finite; one reduction instead of a mask."""
    return math.isfinite(squares.sum().item())


def chain_of(module: nn.Module) -> tuple[FastChain | None, str]:
    """The chain of a module and why it was taken, or None and why not.

    >>> chain_of(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))[1]
    'every trainable layer is supported'
    >>> chain_of(nn.Sequential(nn.Linear(4, 3), nn.PReLU()))[1]
    '1: PReLU has no fast gradient'
    """
    layers: list[FastLayer] = []
    for name, leaf in _leaves(module, ""):
        layer = fast_layer(leaf)
        if layer is None:
            return None, f"{name or 'model'}: {type(leaf).__name__} has no fast gradient"
        if isinstance(layer, FastLSTM):
            return (
                None,
                (
                    f"{name or 'model'}: {type(leaf).__name__} gives outputs and states; call it "
                    "in a forward"
                ),
            )
        if has_hooks(leaf):
            return None, f"{name or 'model'}: {type(leaf).__name__} has hooks of its own"
        if "forward" in vars(leaf):
            return None, f"{name or 'model'}: {type(leaf).__name__} has a forward of its own"
        layers.append(layer)
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        return None, "a parameter is shared between layers"
    if [id(parameter) for parameter in parameters] != [
        id(p) for p in module.parameters() if p.requires_grad
    ]:
        return None, "a trainable parameter is outside of the layers"
    if not parameters:
        return None, "no trainable parameter"
    return FastChain(layers), FAST


def _leaves(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    chain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    if chain and "forward" not in vars(module) and not has_hooks(module):
        # Not named_children(), which names a layer once even where the chain goes through it twice.
        children = [(key, child) for key, child in module._modules.items() if child is not None]
        return [
            leaf for key, child in children for leaf in _leaves(child, f"{name}.{key}".lstrip("."))
        ]
    return [(name, module)]


def fast_layer(module: nn.Module) -> FastLayer | None:
    """The fast layer of a module, if it has one."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        if type(module) in (nn.ReLU, nn.Tanh, nn.Sigmoid):
            return FastActivation(module)
        if type(module) is nn.Identity or (
            type(module) is nn.Flatten and module.start_dim == 1 and module.end_dim == -1
        ):
            return FastFlatten(module)
        if type(module) is nn.MaxPool2d and not module.return_indices:
            return FastMaxPool(module)
        return FixedFunction(module)
    if type(module) is nn.Linear:
        return FastLinear(module)
    if isinstance(module, nn.Conv2d) and is_fast_convolution(module):
        return FastConvolution(module)
    if type(module) is nn.GroupNorm:
        return FastGroupNorm(module)
    if type(module) is nn.LayerNorm:
        return FastLayerNorm(module)
    if isinstance(module, nn.Embedding) and is_fast_embedding(module):
        return FastEmbedding(module)
    if isinstance(module, nn.EmbeddingBag) and is_fast_embedding(module):
        return FastEmbeddingBag(module)
    if isinstance(module, nn.LSTM) and is_fast_lstm(module):
        return FastLSTM(module)
    return None


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks are registered on the module or on its own parameters."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    ) or any(parameter._backward_hooks for parameter in module.parameters(recurse=False))
