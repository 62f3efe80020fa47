"""Which way per-sample gradients are computed, and the reason, so that the log can say it."""

from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients import OPACUS_MODES, ClippedGradients, GhostGradients, MaterialisedGradients
from homo_dp.privacy.losses import Loss

MODES = ("auto", "fast", *OPACUS_MODES)


def choose_gradients(
    module: nn.Module, loss: Loss, max_grad_norm: float, mode: str, features: Tensor, labels: Tensor
) -> tuple[ClippedGradients, str, str]:
    """The gradients of a mode, the mode that was chosen for ``auto``, and why."""
    if mode not in MODES:
        raise PrivacyError(f"grad_sample_mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    reason = "asked for by name"
    if mode == "auto":
        mode, reason = "hooks", "no fast mode for this model"
    if mode == "ghost":
        return GhostGradients(module, loss, max_grad_norm), mode, reason
    return MaterialisedGradients(module, loss, max_grad_norm, mode), mode, reason
