"""Clipped sums by the fast path: filling rows count for nothing, rows that are not finite leave and are counted."""

import math

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.fast.gradients import FastGradients
from homo_dp.privacy.gradients.losses import Loss, squared_error


def made(loss: Loss = squared_error) -> tuple[FastGradients, nn.Module]:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    chain = chain_of(module)[0]
    assert chain is not None
    return FastGradients(chain, loss, 0.1), module


def summed(
    gradients: FastGradients, module: nn.Module, features: Tensor, filling: int = 0
) -> Tensor:
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in module.parameters()]
    gradients.clipped_sum(features, torch.ones(len(features)), sums, False, filling)
    return torch.cat([total.flatten() for total in sums])


def test_one_row_moves_the_sum_by_at_most_the_clip_norm_and_fillers_by_nothing() -> None:
    gradients, module = made()
    features = torch.randn(8, 3) * 50
    whole = summed(gradients, module, features)
    assert 0.09 < float((whole - summed(gradients, module, features[1:])).norm()) <= 0.1
    filled = torch.cat([features, features[:1], features[:1]])
    torch.testing.assert_close(summed(gradients, module, filled, filling=2), whole)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_adds_nothing_and_is_counted(bad: float) -> None:
    gradients, module = made()
    features = torch.randn(8, 3)
    spoilt = torch.cat([features, torch.full((1, 3), bad)])
    torch.testing.assert_close(
        summed(gradients, module, spoilt), summed(gradients, module, features)
    )
    assert gradients.rows_not_finite == 1
    assert not summed(gradients, module, spoilt[-1:]).any()  # a batch of nothing else


def test_a_gradient_of_another_shape_is_refused() -> None:
    class Odd:
        def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return outputs.squeeze(1)

        def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return outputs.new_ones(len(outputs), 2)

    gradients, module = made(Odd())
    with pytest.raises(PrivacyError, match="one gradient per output"):
        summed(gradients, module, torch.randn(4, 3))
