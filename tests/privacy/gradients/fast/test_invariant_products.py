"""Products made wide are those of torch, and give a row the same bits wherever it stands."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from homo_dp.privacy.gradients.fast import invariant_products
from homo_dp.privacy.gradients.fast.invariant_products import (
    LEAST,
    WideProducts,
    exact_linear,
    wide_linear,
    wide_product,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [1, 3, LEAST, LEAST + 1])
def test_values_and_gradients_are_those_of_torch(outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rows = torch.randn(9, 7, dtype=dtype, requires_grad=True)
    weight, bias = torch.randn(outputs, 7, dtype=dtype), torch.randn(outputs, dtype=dtype)
    torch.testing.assert_close(wide_linear(rows, weight, bias), F.linear(rows, weight, bias))
    torch.testing.assert_close(wide_product(rows, weight.T), rows @ weight.T)
    torch.testing.assert_close(
        exact_linear(rows, weight, None), F.linear(rows.double(), weight.double())
    )
    ours, theirs = (
        torch.autograd.grad(f(rows, weight, bias).square().sum(), rows)[0]
        for f in (wide_linear, F.linear)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_a_row_has_the_same_bits_at_every_place(outputs: int) -> None:
    torch.manual_seed(1)
    rows, weight = torch.randn(64, 30), torch.randn(outputs, 30)
    whole = wide_linear(rows, weight, None)
    for first in range(16):  # as if this many rows before it were not there
        assert torch.equal(
            wide_linear(rows[first : first + 32], weight, None), whole[first : first + 32]
        )


def test_linear_layers_of_a_model_are_made_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = invariant_products.wide_linear

    def noting(*given: torch.Tensor) -> torch.Tensor:
        seen.append(len(given[1]))
        return real(*given)

    monkeypatch.setattr(invariant_products, "wide_linear", noting)
    with WideProducts():
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))(torch.randn(5, 4))
    assert seen == [3, 2]
