"""Clipped sums of per-sample gradients, by Opacus: one class a family of grad-sample modes.

Every class answers one question, ``clipped_sum``: the sum over a physical batch of each row's gradient, clipped to
``max_grad_norm`` over all trainable parameters together. Noise, division and the optimiser are not known here.
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
from homo_dp.privacy.gradients.clipped_gradients import out_of_place
from homo_dp.privacy.gradients.clipping import clip_factors, row_norms
from homo_dp.privacy.gradients.fast.chain import ROWS, filled
from homo_dp.privacy.gradients.fast.invariant_products import WideProducts
from homo_dp.privacy.gradients.ghost import GHOST_NORMS, check_ghost_layers, clip_in_second_pass
from homo_dp.privacy.gradients.losses import Loss, per_sample
from homo_dp.privacy.gradients.row_sums import BELOW, ghost_rows

# torch says so for every first layer, since features need no gradient; Opacus' hooks expect exactly that.
warnings.filterwarnings(
    "ignore", message="Full backward hook is firing when gradients are computed"
)

_PIECE = 64  # rows of gradients taken to float64 at a time: all at once would double the memory they take


class ExpandedWeights(GradSampleModuleExpandedWeights):  # type: ignore[misc]
    """Opacus' expanded-weights module, which also takes the empty batches that Poisson sampling draws."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.numel():
            return super().forward(x, *args, **kwargs)
        for parameter in self._module.parameters():
            parameter.grad_sample = (
                parameter.new_zeros((0, *parameter.shape)) if parameter.requires_grad else None
            )
        return self._module(x, *args, **kwargs)


class MaterialisedGradients:
    """Per-sample gradients held in memory: Opacus' hooks, functorch and expanded-weights modes."""

    batch_rows = 0

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        max_grad_norm: float,
        mode: str,
        *,
        batch_first: bool = True,
    ) -> None:
        self._loss, self._max_grad_norm, self._batch_first = loss, max_grad_norm, batch_first
        self.rows_not_finite = 0
        out_of_place(module)
        if mode == "ew":
            self._wrapped: Any = ExpandedWeights(
                module, batch_first=batch_first, loss_reduction="sum"
            )
        else:
            self._wrapped = GradSampleModule(
                module,
                batch_first=batch_first,
                loss_reduction="sum",
                force_functorch=mode == "functorch",
            )
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]

    def clipped_sum(
        self,
        features: Tensor,
        labels: Tensor,
        sums: list[Tensor],
        accumulate: bool,
        filling: int = 0,
    ) -> Callable[[], Tensor]:
        counted = len(features) - filling
        found = self.gradients(features, labels)
        rows = [None if each is None else each[:counted] for each in found]
        norms = joint_norms(rows, counted)
        self.rows_not_finite += len(norms) - int(norms.isfinite().sum())
        factors = clip_factors(norms, self._max_grad_norm * BELOW)  # as all modes of a training
        for total, gradient in zip(sums, rows, strict=True):
            _store(
                total, scaled_sum(gradient, factors) if gradient is not None else None, accumulate
            )
        self._clear()
        return norms.clone

    def gradients(self, features: Tensor, labels: Tensor) -> list[Tensor | None]:
        """The gradient of each row, for each trainable parameter."""
        self._clear()
        with torch.enable_grad():
            inputs = features if self._batch_first else features.transpose(0, 1)
            with WideProducts():
                outputs = self._wrapped(inputs)
            losses = per_sample(self._loss(outputs, labels), len(features))
            torch.autograd.backward([losses.sum()])
        return [_grad_sample(parameter, len(features)) for parameter in self._parameters]

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad_sample = None  # type: ignore[attr-defined]
            parameter.grad = None

    def close(self) -> None:
        self._clear()
        self._wrapped.to_standard_module()


class GhostGradients:
    """Opacus' ghost clipping: norms in a first backward pass, the weighted sum in a second one.

    The second pass adds rows up in float32, so it takes few at a time: see ``row_sums.py``.

    Guarantees:
        - as ``clip_in_second_pass``; layers whose rounding has no bound are refused.
    """

    batch_rows = 0

    def __init__(
        self, module: nn.Module, loss: Loss, max_grad_norm: float, *, batch_first: bool = True
    ) -> None:
        check_ghost_layers(module)
        self._loss, self._max_grad_norm, self._batch_first = loss, max_grad_norm, batch_first
        self.rows_not_finite = 0
        out_of_place(module)
        self._wrapped: Any = GradSampleModuleFastGradientClipping(
            module, batch_first=batch_first, loss_reduction="sum", max_grad_norm=max_grad_norm
        )
        self._wrapped.NORM_SAMPLERS = GHOST_NORMS
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]

    def clipped_sum(
        self,
        features: Tensor,
        labels: Tensor,
        sums: list[Tensor],
        accumulate: bool,
        filling: int = 0,
    ) -> Callable[[], Tensor]:
        if not accumulate:
            for total in sums:
                total.zero_()
        counted = len(features) - filling
        rows = ghost_rows(max(self.batch_rows, counted))
        if counted <= rows:
            return self._add(features, labels, sums, counted).clone
        pieces = zip(
            torch.split(features[:counted], rows), torch.split(labels[:counted], rows), strict=True
        )
        norms = torch.cat(
            [self._add(piece, answers, sums, len(piece)) for piece, answers in pieces]
        )
        return norms.clone

    def _add(self, features: Tensor, labels: Tensor, sums: list[Tensor], counted: int) -> Tensor:
        gradients: list[Tensor | None] | None
        norms, gradients = self._weighted(features, labels, counted)
        if not bool(norms.isfinite().all()):
            # A zero factor does not silence NaN in a backward pass, so the row has to leave the batch.
            finite = norms.isfinite()
            self.rows_not_finite += int((~finite).sum())
            good = finite.nonzero().squeeze(1)
            gradients = (
                self._weighted(features[good], labels[good], len(good))[1] if len(good) else None
            )
        for total, gradient in zip(sums, gradients or (), strict=gradients is not None):
            if gradient is not None:
                total.add_(gradient)
        return norms

    def _weighted(
        self, features: Tensor, labels: Tensor, counted: int
    ) -> tuple[Tensor, list[Tensor | None]]:
        features, labels = filled(features, ROWS), filled(labels, ROWS)
        with torch.enable_grad():
            inputs = features if self._batch_first else features.transpose(0, 1)
            with WideProducts():
                outputs = self._wrapped(inputs)
            losses = per_sample(self._loss(outputs, labels), len(features))
            if counted < len(losses):  # rows that fill up the batch get a gradient of zero
                losses = losses * (torch.arange(len(losses), device=losses.device) < counted)
            norms = clip_in_second_pass(
                self._wrapped, losses, self._parameters, self._max_grad_norm * BELOW, mean=False
            )[:counted]
        gradients = [parameter.grad for parameter in self._parameters]
        self._clear()
        return norms, gradients

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
            if hasattr(parameter, "_norm_sample"):
                del parameter._norm_sample

    def close(self) -> None:
        self._clear()
        self._wrapped.to_standard_module()


def opacus_numbers(loss: Loss, mode: str) -> Callable[[nn.Module, Tensor, Tensor], list[Tensor]]:
    """The gradients of the rows of a batch, for ``batch_invariance.py``.

    Ghost mode makes no gradients of rows: it is compared by those that the same passes would give.
    """

    def numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
        made = MaterialisedGradients(module, loss, 1.0, "hooks" if mode == "ghost" else mode)
        try:
            return [
                rows.detach().clone()
                for rows in made.gradients(features, labels)
                if rows is not None
            ]
        finally:
            made.close()

    return numbers


class _RowsFirst:
    """Calls a layer that was written for rows in the second dimension with rows in the first."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self._layer(inputs.transpose(0, 1)).transpose(0, 1)
        return outputs


def rows_first(module: nn.Module) -> None:
    """Let Opacus' attention with ``batch_first`` and ``add_bias_kv`` give its two biases rows first, as the others.

    It calls them with positions first whatever ``batch_first`` says, so that hooks would take positions for rows.
    Values and names of weights stay the same.
    """
    for layer in module.modules():
        if isinstance(layer, DPMultiheadAttention) and layer.batch_first and layer.add_bias_kv:
            for name in ("seq_bias_k", "seq_bias_v"):
                bias = layer._modules[name]
                if isinstance(bias, SequenceBias) and not bias.batch_first:
                    bias.batch_first = True
                    layer.__dict__[name] = _RowsFirst(bias)


def joint_norms(rows: list[Tensor | None], count: int) -> Tensor:
    """Float64 norm of each row over all parameters together; parameters without a gradient count as zeros."""
    norms = [row_norms(row) for row in rows if row is not None] if count else []
    return (
        torch.linalg.vector_norm(torch.stack(norms), dim=0)
        if norms
        else torch.zeros(count, dtype=torch.float64)
    )


def scaled_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """Float64 sum of the rows times their factors; a row with factor 0 is left out, whatever it holds."""
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
            f"expected {count} per-sample gradients of one batch; give layers one row a record, once a pass"
        )
    return rows


def _store(total: Tensor, value: Tensor | None, accumulate: bool) -> None:
    if not accumulate:
        total.zero_()
    if value is not None:
        total.add_(value)
