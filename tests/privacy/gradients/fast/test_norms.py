"""Normalisation layers on the fast path: outputs and per-sample gradients are those of autograd."""

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.fast.norms import FastGroupNorm, FastLayerNorm
from tests.privacy.gradients.fast.parts import frozen

Fast = FastGroupNorm | FastLayerNorm


def layers() -> list[tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(2)
    made: list[tuple[nn.Module, tuple[int, ...]]] = [
        (nn.GroupNorm(2, 6), (5, 6, 3, 4)),
        (nn.GroupNorm(3, 6), (5, 6)),
        (frozen(nn.GroupNorm(2, 6), "bias"), (5, 6, 4)),
        (nn.LayerNorm(6), (5, 6)),
        (nn.LayerNorm(6), (5, 4, 6)),  # positions share the weights
        (frozen(nn.LayerNorm([4, 6]), "weight"), (5, 4, 6)),
    ]
    for module, _ in made:
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    return [(module.double(), shape) for module, shape in made]


def fast(module: nn.Module) -> Fast:
    return FastGroupNorm(module) if isinstance(module, nn.GroupNorm) else FastLayerNorm(module)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(6))
def test_norms_sums_and_input_gradients_are_those_of_autograd(number: int) -> None:
    module, shape = layers()[number]
    inputs, gradient = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True),
        torch.randn(shape).double(),
    )
    layer = fast(module)
    torch.testing.assert_close(layer.forward(inputs.detach(), True), module(inputs))
    found = layer.backward(gradient, True)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    outputs = module(inputs)
    rows = [
        torch.autograd.grad((outputs[i] * gradient[i]).sum(), trained, retain_graph=True)
        for i in range(len(inputs))
    ]
    squares = torch.stack(
        [torch.stack([each.square().sum() for each in row]).sum() for row in rows]
    )
    torch.testing.assert_close(layer.squared_norms(), squares)
    torch.testing.assert_close(found, torch.autograd.grad((outputs * gradient).sum(), inputs)[0])
    factors = torch.rand(len(inputs), dtype=torch.float64)
    sums = [torch.zeros_like(parameter) for parameter in trained]
    layer.write_sums(factors, [total.view(-1) for total in sums], False)
    for at, total in enumerate(sums):
        torch.testing.assert_close(
            total, sum(factor * row[at] for factor, row in zip(factors, rows, strict=True))
        )


def test_nothing_of_a_batch_stays() -> None:
    layer = fast(nn.LayerNorm(3))
    layer.forward(torch.randn(2, 3), True)
    layer.backward(torch.randn(2, 3), False)
    layer.forget()
    assert layer.kept() == []
    with pytest.raises(RuntimeError, match="before forward"):
        layer.backward(torch.randn(2, 3), False)
