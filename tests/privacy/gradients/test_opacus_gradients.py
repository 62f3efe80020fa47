"""Gradients by Opacus: its hooks are gone afterwards, empty batches work, and pieces of a batch add up."""

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.gradients.opacus_gradients import (
    ExpandedWeights,
    GhostGradients,
    MaterialisedGradients,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_no_hook_or_gradient_stays_when_it_is_closed(mode: str) -> None:
    module = network()
    if mode == "ghost":
        made: GhostGradients | MaterialisedGradients = GhostGradients(module, squared_error, 1.0)
    else:
        made = MaterialisedGradients(module, squared_error, 1.0, mode)
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in module.parameters()]
    made.clipped_sum(torch.randn(5, 3), torch.zeros(5), sums, False)
    made.close()
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())
    assert all(getattr(parameter, "grad_sample", None) is None for parameter in module.parameters())


@pytest.mark.parametrize("mode", ["hooks", "ew"])
def test_pieces_of_a_batch_add_up(mode: str) -> None:
    features, module = torch.randn(6, 3), network()
    made = MaterialisedGradients(module, squared_error, 0.5, mode)
    whole, parts = (
        [torch.zeros_like(p, dtype=torch.float64) for p in module.parameters()] for _ in range(2)
    )
    made.clipped_sum(features, torch.zeros(6), whole, False)
    for at, piece in enumerate(torch.split(features, 2)):
        made.clipped_sum(piece, torch.zeros(2), parts, at > 0)
    made.close()
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_expanded_weights_take_an_empty_batch() -> None:
    module = network()
    wrapped = ExpandedWeights(module, loss_reduction="sum")
    assert wrapped(torch.zeros(0, 3)).shape == (0, 1)
    assert all(parameter.grad_sample.shape[0] == 0 for parameter in module.parameters())  # type: ignore[attr-defined]
