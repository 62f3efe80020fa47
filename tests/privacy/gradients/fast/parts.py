"""What tests of the fast path share: the comparison with one row after the other."""

import copy

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.losses import Loss
from tests.privacy.training_parts import flat, middle_norm, reference_sum, step_sum, training


def frozen(module: nn.Module, name: str) -> nn.Module:
    module.get_parameter(name).requires_grad_(False)
    return module


def same_as_reference(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> None:
    """In float64, so that any difference of method would show; half of the rows are clipped."""
    module = module.double()
    clip_norm = middle_norm(module, loss, features, labels)
    for physical_batch_size in (None, 5):
        trained = copy.deepcopy(module)
        expected = reference_sum(trained, loss, features, labels, clip_norm)
        private = training(
            trained,
            loss,
            features,
            labels,
            clip_norm=clip_norm,
            physical_batch_size=physical_batch_size,
        )
        assert (private.grad_sample_mode, private.mode_reason) == (
            "fast",
            "every trainable layer is supported",
        )
        torch.testing.assert_close(
            flat(step_sum(private)), flat(expected), rtol=1e-5, atol=2e-6 * clip_norm * 12
        )
        assert 0.3 < private.last_fraction_clipped < 0.7
