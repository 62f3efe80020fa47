"""Rounding of norms and sums cannot carry one record past the clip norm: the attacks that it
once did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.engine.loader import CurrentBlock
from homo_dp.privacy.engine.passes import ChainPasses, OneOutputPasses, Passes, fast_chain
from homo_dp.privacy.engine.release import ClippedSum
from homo_dp.privacy.gradients.losses import Loss, softmax_cross_entropy
from homo_dp.privacy.gradients.opacus_gradients import joint_norms
from homo_dp.privacy.gradients.row_sums import ROUNDING, row_squares, rows_in_piece, write_product
from tests.privacy.training_parts import exact_sum, training, unprobed


class Slope:
    """A loss whose gradient at the output is the label."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.reshape(-1) * labels.reshape(-1)

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return labels.reshape(outputs.shape).to(outputs.dtype)


def passes_of(kind: str, layer: nn.Linear) -> Passes:
    if kind == "one output":
        return OneOutputPasses(layer, CurrentBlock(), exact=True)
    return ChainPasses(fast_chain(layer), CurrentBlock(), exact=True)


def summed(
    passes: Passes, loss: Loss, features: Tensor, labels: Tensor, size: int, clip_norm: float
) -> Tensor:
    """The clipped sum in blocks of so many rows."""
    clipped = ClippedSum(passes.parameters, passes.columns)
    for start in range(0, len(features), size):
        rows = slice(start, start + size)
        number, _ = passes.forward(features[rows])
        passes.backward_of(number, loss, labels[rows])
        passes.take_clipped_sum(clip_norm, clipped, accumulate=start > 0)
    return clipped.total


def clipped(
    kind: str, features: Tensor, labels: Tensor, piece: int | None = None, clip_norm: float = 1.0
) -> Tensor:
    """The clipped sum of a layer with one output, in physical batches of ``piece`` rows."""
    layer = nn.Linear(features.shape[1], 1, bias=False)
    if kind == "hooks":
        options: dict[str, Any] = {"grad_sample_mode": kind, "physical_batch_size": piece}
        with unprobed():
            private = training(layer, Slope(), features, labels, clip_norm=clip_norm, **options)
        return exact_sum(private)
    size = piece or len(features)
    return summed(passes_of(kind, layer), Slope(), features, labels, size, clip_norm)


def table_at_a_power_of_two() -> tuple[Tensor, Tensor]:
    """151,489 rows whose float32 sum one row more carries past 2**17, from where on half a unit is
    rounded to even.

    Beyond it 3/128 count as 4/128 and -1/128 as nothing, so that each 3 - 1 - 1 - 1 adds 1/32, and
    before it nothing. Added up row by row in float32, as the fast path once did, the first row
    moved the sum by 152.4 C.
    """
    # rows of 127/128 up to 131,072.93, and of the pattern behind them
    first, rest = 132_105, 19_384
    pattern = torch.tensor([3.0, -1.0, -1.0, -1.0]).repeat(rest // 4) / 128
    return torch.ones(first + rest, 1), torch.cat([torch.full((first,), 127 / 128), pattern])


def spread_table() -> tuple[Tensor, Tensor]:
    """As many rows of all sizes: a float32 sum is off by more than C."""
    labels = 0.5 + 0.4 * torch.rand(151_489, generator=torch.Generator().manual_seed(4))
    labels[0] = 0.9
    return torch.ones(len(labels), 1), labels


@pytest.mark.parametrize("table", [table_at_a_power_of_two, spread_table])
@pytest.mark.parametrize("kind", ["fast", "one output", "hooks"])
@pytest.mark.parametrize("piece", [None, 20_000, 256])
def test_one_row_more_of_151_489_moves_the_sum_by_at_most_c(
    kind: str, piece: int | None, table: Callable[[], tuple[Tensor, Tensor]]
) -> None:
    """Rate 1 (Casacuberta et al. 2022, arXiv:2207.10635)."""
    features, labels = table()
    assert len(features) == 151_489
    if kind == "hooks" and piece == 256:
        features, labels = features[-30_000:], labels[-30_000:]
    sums = clipped(kind, features, labels, piece), clipped(kind, features[1:], labels[1:], piece)
    if table is spread_table:  # no row is clipped
        for found, exact in zip(
            sums, (labels.double().sum(), labels[1:].double().sum()), strict=True
        ):
            assert abs(float(found) - float(exact)) <= ROUNDING / 2
    assert float((sums[0] - sums[1]).norm()) <= 1.0


def test_the_table_breaks_a_sum_in_float32() -> None:
    labels = table_at_a_power_of_two()[1]
    in_order = [np.cumsum(labels[start:].numpy(), dtype=np.float32)[-1] for start in (0, 1)]
    assert float(in_order[0]) - float(in_order[1]) > 100


@pytest.mark.parametrize("rows", [1, 255, 256, 400, 512, 800, 1024, 1025, 5000])
def test_rounding_of_products_is_within_its_bound(rows: int) -> None:
    """Rows of norm 1 that all point one way, the worst case of the bound, against float64."""
    torch.manual_seed(rows)
    left, right = torch.rand(rows, 1) + 0.5, torch.rand(rows, 20) + 0.5
    right /= (left.double() * right.double()).norm(dim=1, keepdim=True).float()
    total = torch.zeros(1, 20, dtype=torch.float64)
    write_product(total, left, right, accumulate=False)
    exact = left.double().t() @ right.double()
    assert float((total - exact).norm()) <= ROUNDING / 2
    write_product(total, left, right, accumulate=True)
    assert float((total - 2 * exact).norm()) <= ROUNDING / 2
    piece = rows_in_piece(rows)
    assert piece == 0 or (piece + math.ceil(rows / piece)) * rows / 2**24 <= ROUNDING / 2


@pytest.mark.parametrize("size", [100, 4096, 4097, 100_000, 5_000_000])
def test_norms_of_long_rows(size: int) -> None:
    """Float32 accumulation let 1.00007 C through at 100,000 values a row and 1.0035 C at
    5,000,000.
    """
    rows = torch.rand(2, size, generator=torch.Generator().manual_seed(1)) + 0.1
    true = rows.double().square().sum(1)
    assert bool((row_squares(rows).double() >= true * (1 - 2.0**-12)).all())
    if size > 4096:
        assert bool((row_squares(rows).double() >= true).all())
    torch.testing.assert_close(joint_norms([rows], 2), true.sqrt(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("kind", ["fast", "one output", "hooks"])
@pytest.mark.parametrize("size", [1, 100_000, 1_000_000])
def test_one_long_row_adds_at_most_c(kind: str, size: int) -> None:
    features = torch.rand(1, size, generator=torch.Generator().manual_seed(2)) + 0.1
    assert float(clipped(kind, features, torch.tensor([1e6])).norm()) <= 1.0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e18, 1e30, 1e36, 1e37])
def test_one_output_at_the_ends_of_float32(size: float, bias: bool) -> None:
    """A clipped factor that is denormal has few bits: rounded up, it once let 1.54 C through."""
    for clip_norm in (1e-12, 1e-7, 1.0):
        passes = passes_of("one output", nn.Linear(1, 1, bias=bias))
        for value in (1.0, 0.77, 0.51):
            rows, labels = torch.tensor([[size * value]]), torch.tensor([1e30])
            assert float(summed(passes, Slope(), rows, labels, 1, clip_norm).norm()) <= clip_norm


def tied_rows(layer: nn.Linear, count: int) -> Tensor:
    """Rows on which the first two classes tie, each at the place, even or odd, from which
    float32 moves it one way.
    """
    generator = torch.Generator().manual_seed(1)
    weight = layer.weight.detach().double()
    apart, both = weight[0] - weight[1], weight[0] + weight[1]
    both = both - (both @ apart) / (apart @ apart) * apart
    rows = (
        torch.rand(8 * count, layer.in_features, generator=generator).double() * 0.2
        + 0.8 * both / both.abs().max()
    )
    rows = rows * (0.6 / rows.norm(dim=1, keepdim=True))  # short, so that no row is clipped
    rows = (rows - (rows @ apart)[:, None] / (apart @ apart) * apart).float()

    def gaps(first: int) -> Tensor:
        table = torch.zeros(2 * len(rows) + 2, layer.in_features)
        table[first : first + 2 * len(rows) : 2] = rows
        outputs: Tensor = layer(table).detach()[first : first + 2 * len(rows) : 2]
        return outputs[:, 0] - outputs[:, 1]

    order = (gaps(1) - gaps(0)).argsort(descending=True)
    return torch.stack([rows[order.flip(0)[: count // 2]], rows[order[: count // 2]]], 1).flatten(
        0, 1
    )


@pytest.mark.parametrize(("columns", "classes"), [(30, 10), (30, 2), (10, 3)])
def test_where_a_row_lies_in_memory_moves_no_gradient(columns: int, classes: int) -> None:
    """Weights of a million and 1,000 such rows: the first one moved the float32 sum by 50, 34
    and 13 C here.
    """
    layer = nn.Linear(columns, classes)
    with torch.no_grad():
        layer.weight.copy_(
            torch.randn(classes, columns, generator=torch.Generator().manual_seed(0)) * 3e5
        )
        layer.bias.zero_()
    rows = tied_rows(layer, 1000)
    totals = []
    for start in (0, 1):
        table = rows[start:].clone()
        passes = passes_of("fast", layer)
        labels = torch.zeros(len(table)).long()
        totals.append(summed(passes, softmax_cross_entropy, table, labels, len(table), 1.0))
    assert float((totals[0] - totals[1]).norm()) <= 1.0
