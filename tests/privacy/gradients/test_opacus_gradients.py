"""Gradients of rows by Opacus: its hooks are gone afterwards, and empty batches work."""

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.gradients.opacus_gradients import (
    ExpandedWeights,
    joint_norms,
    opacus_norms,
    row_gradients,
)
from tests.privacy.training_parts import flat, reference_sum

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
@pytest.mark.parametrize("fails", [False, True])
def test_no_hook_or_gradient_stays(mode: str, fails: bool) -> None:
    module = network()

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if fails:
            raise KeyError("a loss of somebody's own")
        return outputs.squeeze(1).square()

    try:
        opacus_norms(module, loss, mode, torch.randn(5, 3))
        assert not fails
    except KeyError:
        assert fails
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())
    for parameter in module.parameters():
        assert parameter.grad is None
        assert not hasattr(parameter, "grad_sample")
        assert not hasattr(parameter, "_norm_sample")


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
def test_gradients_of_rows_are_those_of_one_row_after_the_other(mode: str) -> None:
    features, labels, module = torch.randn(6, 3), torch.randn(6), network()
    found = row_gradients(module, squared_error, mode, features, labels)
    for row in range(6):
        one = reference_sum(module, squared_error, features[[row]], labels[[row]], 1e9)
        own = [rows[row] for rows in found if rows is not None]
        torch.testing.assert_close(flat(own), flat(one), rtol=1e-5, atol=1e-6)
    norms = opacus_norms(module, lambda outputs, _: squared_error(outputs, labels), mode, features)
    torch.testing.assert_close(norms, joint_norms(found, 6), rtol=1e-6, atol=1e-9)


def test_expanded_weights_take_an_empty_batch() -> None:
    module = network()
    wrapped = ExpandedWeights(module, loss_reduction="sum")
    assert wrapped(torch.zeros(0, 3)).shape == (0, 1)
    assert all(parameter.grad_sample.shape[0] == 0 for parameter in module.parameters())  # type: ignore[attr-defined]
