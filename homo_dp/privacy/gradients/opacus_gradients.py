"""Per-sample gradients by Opacus' hooks: wrapping a module, and the gradients and norms of a few
rows, by which a mode is tried out before it trains.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights
from opacus.layers.dp_multihead_attention import DPMultiheadAttention, SequenceBias
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import row_norms
from homo_dp.privacy.gradients.fast.invariant_products import WideProducts
from homo_dp.privacy.gradients.ghost import GHOST_NORMS, check_ghost_layers, clip_in_second_pass
from homo_dp.privacy.gradients.losses import Loss, per_sample
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.gradients.validation import out_of_place

# torch says so for every first layer, since features need no gradient; Opacus' hooks expect exactly
# that.
warnings.filterwarnings(
    "ignore", message="Full backward hook is firing when gradients are computed"
)

# rows of gradients taken to float64 at a time: all at once would double the memory they take
_PIECE = 64


class ExpandedWeights(GradSampleModuleExpandedWeights):  # type: ignore[misc]
    """Opacus' expanded-weights module, which also takes the empty batches that Poisson sampling
    draws.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.numel():
            return super().forward(x, *args, **kwargs)
        for parameter in self._module.parameters():
            parameter.grad_sample = (
                parameter.new_zeros((0, *parameter.shape)) if parameter.requires_grad else None
            )
        return self._module(x, *args, **kwargs)


def wrapped_by_opacus(
    module: nn.Module, mode: str, *, batch_first: bool = True, max_grad_norm: float = 1.0
) -> Any:
    """A module with the hooks of one of Opacus' modes, for losses that are summed."""
    options: dict[str, Any] = {"batch_first": batch_first, "loss_reduction": "sum"}
    out_of_place(module)
    if mode == "ew":
        return ExpandedWeights(module, **options)
    if mode == "ghost":
        check_ghost_layers(module)
        wrapped = GradSampleModuleFastGradientClipping(
            module, max_grad_norm=max_grad_norm, **options
        )
        wrapped.NORM_SAMPLERS = GHOST_NORMS
        return wrapped
    return GradSampleModule(module, force_functorch=mode == "functorch", **options)


def row_gradients(
    module: nn.Module,
    loss: Loss,
    mode: str,
    features: Tensor,
    labels: Tensor,
    *,
    batch_first: bool = True,
) -> list[Tensor | None]:
    """The gradient of each row, for each trainable parameter; None where no loss depends on it."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    wrapped = wrapped_by_opacus(module, mode, batch_first=batch_first)
    try:
        losses = _losses(wrapped, loss, features, labels, batch_first=batch_first)
        torch.autograd.backward([losses.sum()])
        return [_grad_sample(parameter, len(features)) for parameter in parameters]
    finally:
        _unwrap(wrapped, parameters)


def opacus_norms(
    module: nn.Module, loss: Loss, mode: str, features: Tensor, *, batch_first: bool = True
) -> Tensor:
    """The norm of each row's gradient as a mode measures it; a loss is given rows for labels."""
    if mode != "ghost":
        found = row_gradients(module, loss, mode, features, features, batch_first=batch_first)
        return joint_norms(found, len(features))
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    wrapped = wrapped_by_opacus(module, mode, batch_first=batch_first)
    try:
        losses = _losses(wrapped, loss, features, features, batch_first=batch_first)
        return clip_in_second_pass(wrapped, losses, parameters, BELOW, mean=False)
    finally:
        _unwrap(wrapped, parameters)


def opacus_numbers(loss: Loss, mode: str) -> Callable[[nn.Module, Tensor, Tensor], list[Tensor]]:
    """The gradients of the rows of a batch, for ``batch_invariance.py``.

    Ghost mode makes no gradients of rows: it is compared by those that the same passes would give.
    """

    def numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
        by = "hooks" if mode == "ghost" else mode
        found = row_gradients(module, loss, by, features, labels)
        return [rows.detach().clone() for rows in found if rows is not None]

    return numbers


def _losses(
    wrapped: Any, loss: Loss, features: Tensor, labels: Tensor, *, batch_first: bool
) -> Tensor:
    with torch.enable_grad(), WideProducts():
        outputs = wrapped(features if batch_first else features.transpose(0, 1))
    with torch.enable_grad():
        return per_sample(loss(outputs, labels), len(features))


def _unwrap(wrapped: Any, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
        for name in ("grad_sample", "_norm_sample"):
            if hasattr(parameter, name):
                delattr(parameter, name)
    wrapped.to_standard_module()


class _RowsFirst:
    """Calls a layer that was written for rows in the second dimension with rows in the first."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self._layer(inputs.transpose(0, 1)).transpose(0, 1)
        return outputs


def rows_first(module: nn.Module) -> None:
    """Let Opacus' attention with ``batch_first`` and ``add_bias_kv`` give its two biases rows
    first, as the others.

    It calls them with positions first whatever ``batch_first`` says, so that hooks would take
    positions for rows. Values and names of weights stay the same.
    """
    for layer in module.modules():
        if isinstance(layer, DPMultiheadAttention) and layer.batch_first and layer.add_bias_kv:
            for name in ("seq_bias_k", "seq_bias_v"):
                bias = layer._modules[name]
                if isinstance(bias, SequenceBias) and not bias.batch_first:
                    bias.batch_first = True
                    layer.__dict__[name] = _RowsFirst(bias)


def joint_norms(rows: list[Tensor | None], count: int) -> Tensor:
    """Float64 norm of each row over all parameters together; parameters without a gradient count
    as zeros.
    """
    norms = [row_norms(row) for row in rows if row is not None] if count else []
    return (
        torch.linalg.vector_norm(torch.stack(norms), dim=0)
        if norms
        else torch.zeros(count, dtype=torch.float64)
    )


def scaled_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """Float64 sum of the rows times their factors; a row with factor 0 is left out, whatever it
    holds.
    """
    if not bool((factors > 0).all()):
        rows, factors = rows[factors > 0], factors[factors > 0]
    total = torch.zeros(rows.shape[1:], dtype=torch.float64, device=rows.device)
    weights, flat = factors.double().unsqueeze(0), rows.reshape(len(rows), total.numel())
    for start in range(0, len(rows), _PIECE):
        total.view(1, -1).addmm_(
            weights[:, start : start + _PIECE], flat[start : start + _PIECE].double()
        )
    return total


def _grad_sample(parameter: nn.Parameter, count: int) -> Tensor | None:
    rows = getattr(parameter, "grad_sample", None)
    if rows is None:
        return None
    if not isinstance(rows, Tensor) or len(rows) != count:
        raise PrivacyError(
            f"expected {count} per-sample gradients of one batch; give layers one row a record, "
            "once a pass"
        )
    return rows
