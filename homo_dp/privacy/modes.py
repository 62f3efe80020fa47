"""Which way per-sample gradients are computed, and the reason, so that the log can say it."""

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.fast_gradients import FastGradients
from homo_dp.privacy.fast_linear import OneOutputGradients, one_output_layer
from homo_dp.privacy.fast_tape import FastTape, tape_of
from homo_dp.privacy.gradients import OPACUS_MODES, ClippedGradients, GhostGradients, MaterialisedGradients
from homo_dp.privacy.losses import Loss
from homo_dp.privacy.validation import probe_features, size_of_outputs

MODES = ("auto", "fast", *OPACUS_MODES)


def choose_gradients(
    module: nn.Module, loss: Loss, max_grad_norm: float, mode: str, features: Tensor
) -> tuple[ClippedGradients, str, str]:
    """The gradients of a mode, the mode that was chosen for ``auto``, and why."""
    if mode not in MODES:
        raise PrivacyError(f"grad_sample_mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    reason = "asked for by name"
    if mode in ("auto", "fast"):
        tape, why = tape_of(module)
        if tape is not None:
            return _fast(module, tape, loss, max_grad_norm), "fast", why if mode == "auto" else reason
        if mode == "fast":
            raise PrivacyError(f"grad_sample_mode=fast: {why}; use grad_sample_mode=auto")
        mode, reason = "hooks", why
    if mode == "ghost":
        probe_ghost(module, features)
        return GhostGradients(module, loss, max_grad_norm), mode, reason
    return MaterialisedGradients(module, loss, max_grad_norm, mode), mode, reason


def _fast(module: nn.Module, tape: FastTape, loss: Loss, max_grad_norm: float) -> ClippedGradients:
    general = FastGradients(tape, loss, max_grad_norm)
    layer = one_output_layer(module)
    return general if layer is None else OneOutputGradients(layer, loss, max_grad_norm, general)


def probe_ghost(module: nn.Module, features: Tensor) -> None:
    """Raise PrivacyError unless ghost norms are the true norms on a few rows.

    Ghost clipping sums by a second backward pass over the whole module but takes norms from layers only, so a weight
    that is also used outside of its layer would be summed without being measured.
    """
    rows = probe_features(features, min(3, len(features)))
    dropouts = [layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    for layer in dropouts:
        layer.eval()
    ghost = GhostGradients(module, size_of_outputs, 1.0)
    try:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        measured = ghost.clipped_sum(rows, rows, [torch.zeros_like(parameter) for parameter in parameters], False)()
    except NotImplementedError as error:
        raise PrivacyError(f"grad_sample_mode=ghost: {error}; use grad_sample_mode=hooks") from error
    finally:
        ghost.close()
        true = torch.stack([_true_norm(module, row.unsqueeze(0)) for row in rows])
        for layer in dropouts:
            layer.train()
    if not torch.allclose(measured, true.to(measured), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise PrivacyError(
            "grad_sample_mode=ghost does not see every gradient of this model (a weight used outside of its layer, or "
            "random layers); use grad_sample_mode=hooks"
        )


def _true_norm(module: nn.Module, row: Tensor) -> Tensor:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        loss = size_of_outputs(module(row), row).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return (
        torch.stack([gradient.double().square().sum() for gradient in gradients if gradient is not None]).sum().sqrt()
    )
