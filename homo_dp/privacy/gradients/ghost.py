"""Ghost clipping by Opacus' hooks, with norms of our own for each layer that bound what is summed.

Norms come from a layer's inputs and output gradients, the sum from autograd. Where large terms of a
record cancel, the two round differently, and autograd may leave hundreds of C of what the norm took
for zero. So every norm here is raised by a bound on that rounding, and it is taken of the very
backward pass that sums: the gradients of a second pass are not the scaled ones of the first where
rounding (or a backward pass of somebody's own) is not linear.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.layers.dp_multihead_attention import SequenceBias
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import clip_factors
from homo_dp.privacy.gradients.gram_norms import (
    lengths_of,
    outer_squares,
    rounding_of_squares,
    total_squares,
)

Norms = dict[Any, Tensor]
# share of C that factors leave free, so that the second pass, which rounds anew, is within C at
# once
MARGIN = 2e-5
_TRIES = 3


def clip_in_second_pass(
    wrapped: Any, losses: Tensor, parameters: list[nn.Parameter], clip_norm: float, *, mean: bool
) -> Tensor:
    """Leave the sum of the clipped gradients of the rows' losses in ``p.grad``; return the norms
    before clipping.

    ``mean`` says that the wrapped module's hooks take losses for averaged ones. If a norm is not
    finite, that is all that is returned: gradients are left empty, and the row has to leave the
    batch.

    Guarantees:
        - the norm of each row's part of the sum, measured in the backward pass that sums, is at
          most ``clip_norm``.
    """
    rows = len(losses)
    kept = _Activations(wrapped._module, parameters)
    _clear(parameters)
    torch.autograd.backward([losses.mean() if mean else losses.sum()], retain_graph=True)
    norms = _joint(parameters, rows)
    if not bool(norms.isfinite().all()):
        _clear(parameters)
        return norms
    factors = clip_factors(norms, clip_norm * (1 - MARGIN))
    for left in range(_TRIES - 1, -1, -1):
        kept.put_back()
        _clear(parameters)
        torch.autograd.backward([(factors.to(losses.dtype) * losses).sum()], retain_graph=True)
        summed = _joint(parameters, rows) / (rows if mean and rows else 1)
        over = ~(summed <= clip_norm)
        if not bool(over.any()):
            _clear(parameters, gradients=False)
            return norms
        # Once more with what this pass measured; a row that rounding lets go beyond the bound even
        # so is left out.
        smaller = (
            factors * (clip_norm * (1 - MARGIN) / summed) if left > 1 else torch.zeros_like(factors)
        )
        factors = torch.where(over, smaller, factors).nan_to_num_(0.0, 0.0, 0.0)
    raise PrivacyError(
        "grad_sample_mode=ghost: gradients of a row do not follow its loss, so they cannot be "
        "clipped by scaling it; use grad_sample_mode=hooks"
    )


def check_ghost_layers(module: nn.Module) -> None:
    """Raise PrivacyError if a trainable layer has no bound on what rounding may hide from its norm.

    >>> check_ghost_layers(nn.Sequential(nn.Linear(2, 2), nn.PReLU()))
    Traceback (most recent call last):
    homo_dp.privacy.errors.PrivacyError: 1: PReLU has no bound on rounding in grad_sample_mode=ghost (Linear, \
Embedding, Conv1d, Conv2d, Conv3d, LayerNorm, GroupNorm, RMSNorm, SequenceBias have); use grad_sample_mode=hooks
    """
    for name, layer in module.named_modules():
        if not any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
            continue
        what = type(layer).__name__
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            what += f" padding_mode={layer.padding_mode}"
        elif type(layer) in GHOST_NORMS:
            continue
        known = ", ".join(kind.__name__ for kind in GHOST_NORMS)
        raise PrivacyError(
            f"{name or 'model'}: {what} has no bound on rounding in grad_sample_mode=ghost "
            f"({known} have); use grad_sample_mode=hooks"
        )


class _Activations:
    """What the layers' hooks kept in the forward pass, so that a second backward pass finds it
    again.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        self._layers: list[tuple[Any, list[Any]]] = [
            (layer, list(kept)) for layer in module.modules() if (kept := _kept(layer)) is not None
        ]
        self._calls = [(parameter, parameter._forward_counter) for parameter in parameters]  # type: ignore[attr-defined]

    def put_back(self) -> None:
        for layer, activations in self._layers:
            layer.activations = list(activations)
        for parameter, calls in self._calls:
            parameter._forward_counter = calls  # type: ignore[attr-defined]


def _kept(layer: Any) -> Any:
    return getattr(layer, "activations", None)


def _clear(parameters: list[nn.Parameter], *, gradients: bool = True) -> None:
    for parameter in parameters:
        if gradients:
            parameter.grad = None
        if hasattr(parameter, "_norm_sample"):
            del parameter._norm_sample


def _joint(parameters: list[nn.Parameter], rows: int) -> Tensor:
    known: list[Tensor] = [
        parameter._norm_sample for parameter in parameters if hasattr(parameter, "_norm_sample")
    ]
    if len(known) < sum(parameter.grad is not None for parameter in parameters):
        raise PrivacyError(
            "grad_sample_mode=ghost misses the norm of a parameter; use grad_sample_mode=hooks"
        )
    if not known:
        return parameters[0].new_zeros(rows, dtype=torch.float64)
    norms: Tensor = torch.linalg.vector_norm(
        torch.stack([norm.reshape(rows).double() for norm in known]), dim=0
    )
    return norms


def _linear(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> Norms:
    found: Norms = {}
    if backprops.dim() == 2:  # one position: one outer product, nothing can cancel
        lengths = torch.linalg.vector_norm(backprops, dim=1, dtype=torch.float64)
        if layer.weight.requires_grad:
            inputs = torch.linalg.vector_norm(activations[0], dim=1, dtype=torch.float64)
            found[layer.weight] = lengths * inputs
        if layer.bias is not None and layer.bias.requires_grad:
            found[layer.bias] = lengths
        return found
    inputs, gradient = activations[0].to(backprops.dtype).flatten(1, -2), backprops.flatten(1, -2)
    if layer.weight.requires_grad:
        found[layer.weight] = outer_squares(inputs, gradient).sqrt()
    if layer.bias is not None and layer.bias.requires_grad:
        found[layer.bias] = total_squares(gradient).sqrt()
    return found


def _embedding(layer: nn.Embedding, activations: list[Tensor], backprops: Tensor) -> Norms:
    backprops = backprops.contiguous()  # rows may come in the second dimension
    norms: Norms = _OPACUS_NORMS[nn.Embedding](
        layer, [each.contiguous() for each in activations], backprops
    )
    if len(backprops) == 0:
        return norms
    rounding = rounding_of_squares(
        lengths_of(backprops.reshape(len(backprops), -1, backprops.shape[-1])), 1
    )
    return {parameter: (norm.square() + rounding).sqrt() for parameter, norm in norms.items()}


def _convolution(layer: Any, activations: list[Tensor], backprops: Tensor) -> Norms:
    """Opacus' per-sample gradients, and what rounding may hide: by the lengths of patches and
    output gradients.
    """
    held: dict[nn.Parameter, Tensor] = _OPACUS_GRADIENTS[type(layer)](layer, activations, backprops)
    rows = len(backprops)
    if rows == 0:
        return {parameter: backprops.new_zeros(0) for parameter in held}
    gradient = backprops.double().reshape(
        rows, layer.groups, layer.out_channels // layer.groups, -1
    )
    units = _units(backprops, gradient.shape[3])
    hidden: dict[Any, Tensor] = {}
    if layer.weight.requires_grad:
        inputs = activations[0].double().reshape(rows, layer.groups, -1, *activations[0].shape[2:])
        ones = inputs.new_ones(layer.groups, 1, *layer.kernel_size)
        slide: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[len(layer.kernel_size) - 1]
        geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
        patches = (
            slide(inputs.square().sum(2), ones, None, *geometry).clamp_(min=0.0).sqrt_().flatten(2)
        )
        terms = torch.linalg.vector_norm(gradient, dim=2) * patches
        hidden[layer.weight] = torch.linalg.vector_norm(terms.sum(2), dim=1) * units
    if layer.bias is not None and layer.bias.requires_grad:
        hidden[layer.bias] = (
            torch.linalg.vector_norm(gradient.abs().sum(3).flatten(1), dim=1) * units
        )
    return {parameter: _lengths(rows_of) + hidden[parameter] for parameter, rows_of in held.items()}


def _layer_norm(layer: nn.LayerNorm, activations: list[Tensor], backprops: Tensor) -> Norms:
    inputs, shape = activations[0].contiguous(), layer.normalized_shape
    _, mean, inverse = torch.ops.aten.native_layer_norm(inputs, shape, None, None, layer.eps)
    return _affine(layer, inputs, mean, inverse, backprops, math.prod(shape))


def _rms_norm(layer: nn.RMSNorm, activations: list[Tensor], backprops: Tensor) -> Norms:
    inputs, dims = activations[0], tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(inputs.dtype).eps if layer.eps is None else layer.eps
    inverse = inputs.double().square().mean(dims, keepdim=True).add_(eps).rsqrt_()
    return _affine(
        layer,
        inputs,
        torch.zeros_like(inverse),
        inverse,
        backprops,
        math.prod(layer.normalized_shape),
    )


def _affine(
    layer: Any, inputs: Tensor, mean: Tensor, inverse: Tensor, backprops: Tensor, size: int
) -> Norms:
    """Norms of scale and shift, each used once at every position; ``mean`` and ``inverse`` are
    those of the layer.
    """
    rows, gradient = len(inputs), backprops.double()
    units = _units(backprops, inputs[0].numel() // size if rows else 1, size)
    mean, inverse = mean.double(), inverse.double()
    found: Norms = {}
    for parameter, terms, most in (
        # The kernels subtract x / deviation and mean / deviation, or sums of those: large where
        # they are.
        (
            layer.weight,
            gradient * (inputs.double() - mean) * inverse,
            (inputs.double().abs() + mean.abs()) * inverse,
        ),
        (getattr(layer, "bias", None), gradient, 1.0),
    ):
        if parameter is not None and parameter.requires_grad:
            total = terms.reshape(rows, -1, size).sum(1)
            hidden = (gradient.abs() * most).reshape(rows, -1, size).sum(1)
            found[parameter] = _lengths(total) + _lengths(hidden) * units
    return found


def _group_norm(layer: nn.GroupNorm, activations: list[Tensor], backprops: Tensor) -> Norms:
    inputs, groups = activations[0].contiguous(), layer.num_groups
    rows, channels = inputs.shape[:2]
    positions = inputs[0, 0].numel() if rows else 1
    sizes = (rows, channels, positions, groups)
    _, mean, inverse = torch.ops.aten.native_group_norm(inputs, None, None, *sizes, layer.eps)
    each = channels // groups
    # Channels last, so that one position is one use of all scales and shifts.
    moved = inputs.reshape(rows, channels, positions).transpose(1, 2)
    gradient = backprops.reshape(rows, channels, positions).transpose(1, 2)
    mean, inverse = (values.repeat_interleave(each, 1).unsqueeze(1) for values in (mean, inverse))
    return _affine(layer, moved, mean, inverse, gradient, channels)


def _sequence_bias(layer: SequenceBias, activations: list[Tensor], backprops: Tensor) -> Norms:
    """The bias is one more position at the end of each row's sequence: one term, nothing can
    cancel.
    """
    return {layer.bias: _lengths(backprops[:, -1])}


def _units(values: Tensor, terms: int, size: int = 1) -> float:
    """Bound on the relative rounding of a sum of so many terms, twice: in the norm and in what
    autograd sums.
    """
    return 2.0 * torch.finfo(values.dtype).eps * (8.0 + terms + math.sqrt(size))


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64)
    return lengths


_OPACUS_NORMS: dict[Any, Any] = dict(GradSampleModuleFastGradientClipping.NORM_SAMPLERS)
_OPACUS_GRADIENTS: dict[Any, Any] = dict(GradSampleModuleFastGradientClipping.GRAD_SAMPLERS)
GHOST_NORMS: dict[Any, Any] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.RMSNorm: _rms_norm,
    SequenceBias: _sequence_bias,
}
"""Norm samplers for Opacus' ghost clipping, to be set as ``NORM_SAMPLERS`` of a wrapped module."""
