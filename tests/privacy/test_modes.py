"""Modes of per-sample gradients: a model whose gradients a mode cannot see is refused before training."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.losses import softmax_cross_entropy
from homo_dp.privacy.modes import choose_gradients

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class TwoLayers(nn.Module):
    """Two dense layers, with ``between`` deciding how the first is used."""

    def __init__(self, between: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(4, 4), nn.Linear(4, 2), between

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.between(self.first, inputs))
        return outputs


def called(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return torch.tanh(layer(inputs))


def called_twice(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return called(layer, called(layer, inputs))


def noisy(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return called(layer, inputs) + torch.randn(len(inputs), 4)


def weight_alone(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return torch.tanh(functional.linear(inputs, layer.weight))


def weight_too(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return weight_alone(layer, called(layer, inputs))


def some_rows(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return torch.cat([called(layer, inputs[:1]), inputs[1:]])


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("between", [weight_alone, weight_too, some_rows])
def test_what_a_mode_does_not_see_is_refused(mode: str, between: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    with pytest.raises(PrivacyError, match=r"does not see every gradient|expected 3 per-sample gradients"):
        choose_gradients(TwoLayers(between), softmax_cross_entropy, 1.0, mode, ROWS)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("between", [called, called_twice, noisy])
def test_what_a_mode_sees_is_taken(mode: str, between: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    module = TwoLayers(between)
    chosen = choose_gradients(module, softmax_cross_entropy, 1.0, mode, ROWS)
    assert chosen[1] == mode
    chosen[0].close()
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())


def test_ghost_refuses_in_one_line_where_rows_are_folded() -> None:
    with pytest.raises(PrivacyError, match=r"grad_sample_mode=ghost: .*; use grad_sample_mode=hooks"):
        choose_gradients(TwoLayers(some_rows), softmax_cross_entropy, 1.0, "ghost", ROWS)
