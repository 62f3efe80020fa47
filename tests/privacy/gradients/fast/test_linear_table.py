"""A table that is made ready once gives the sums and norms that its rows give when they are handed over in batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.batch_invariance import places_of
from homo_dp.privacy.gradients.fast import linear_table
from homo_dp.privacy.gradients.fast.chain import filled
from homo_dp.privacy.gradients.fast.linear import OneOutputGradients, one_output_numbers
from homo_dp.privacy.gradients.fast.linear_table import OneOutputTable, table_of
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, squared_error
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.privacy.training.private_training import PrivateTraining


def made(
    rows: Tensor,
    labels: Tensor,
    loss: Loss = binary_logistic,
    bias: bool = True,
    clip_norm: float = 1.0,
) -> tuple[OneOutputTable, OneOutputGradients]:
    torch.manual_seed(0)
    layer = nn.Linear(rows[0].numel(), 1, bias=bias)
    gradients = OneOutputGradients(
        layer, loss, clip_norm, places_of(layer, one_output_numbers(loss), None)
    )
    table = table_of(layer, loss, clip_norm, gradients, rows, labels)
    assert table is not None
    return table, gradients


def handed_over(
    gradients: OneOutputGradients, rows: Tensor, labels: Tensor, bias: bool = True
) -> tuple[Tensor, Tensor]:
    filling = -len(rows) % 32
    sums = [
        torch.zeros(1, rows[0].numel(), dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    ]
    norms = gradients.clipped_sum(filled(rows, 32), filled(labels, 32), sums, False, filling)()
    return torch.cat([total.flatten() for total in sums])[: None if bias else -1], norms


def samples(count: int, columns: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = (
        torch.randn(count, columns, generator=generator) * torch.linspace(0.01, 5, count)[:, None]
    )
    return rows, (torch.arange(count) % 2).float()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", [binary_logistic, squared_error])
@pytest.mark.parametrize("columns", [1, 4, 7, 100])
def test_sums_and_norms_are_those_of_the_rows(loss: Loss, bias: bool, columns: int) -> None:
    rows, labels = samples(300, columns)
    table, gradients = made(rows, labels, loss, bias)
    for numbers in (
        torch.arange(0, 300, 3),
        torch.arange(64),
        torch.tensor([7]),
        torch.arange(300),
    ):
        expected, norms = handed_over(gradients, rows[numbers], labels[numbers], bias)
        total = torch.full_like(expected, math.nan)  # what was there before does not count
        found = table.clipped_sum([numbers], total)
        assert found is not None
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[0](), norms, rtol=1e-12, atol=1e-12)


def test_pieces_of_a_batch_add_up() -> None:
    rows, labels = samples(300)
    table, gradients = made(rows, labels)
    total = torch.zeros(8, dtype=torch.float64)
    found = table.clipped_sum(torch.split(torch.arange(300), 100), total)
    expected, norms = handed_over(gradients, rows, labels)
    assert found is not None
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([each() for each in found]), norms, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e18, 1e37])
@pytest.mark.parametrize("clip_norm", [1e-12, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_a_row_adds_at_most_the_clip_norm(size: float, clip_norm: float, bias: bool) -> None:
    rows = torch.tensor([[size, -0.77 * size]])
    table, _ = made(rows, torch.tensor([1e30]), squared_error, bias, clip_norm)
    total = torch.zeros(3 if bias else 2, dtype=torch.float64)
    assert table.clipped_sum([torch.tensor([0])], total) is not None
    assert 0 < float(total.norm()) <= clip_norm


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["row", "label"])
def test_a_batch_with_a_row_that_is_not_finite_is_left_to_the_gradients(
    value: float, where: str
) -> None:
    rows, labels = samples(40)
    if where == "row":
        rows[3, 2] = value
    else:
        labels[3] = value
    table, _ = made(rows, labels)
    total = torch.zeros(8, dtype=torch.float64)
    assert table.clipped_sum([torch.arange(40)], total) is None
    assert table.clipped_sum([torch.arange(4, 40)], total) is not None


def test_rows_of_float64_are_left_to_the_gradients() -> None:
    """Finite ones can be too long for a length in float64."""
    rows, labels = samples(40)
    layer = nn.Linear(7, 1).double()
    gradients = OneOutputGradients(layer, binary_logistic, 1.0, None)
    assert table_of(layer, binary_logistic, 1.0, gradients, rows.double(), labels) is None


def moved_by_the_first(rows: Tensor, labels: Tensor, loss: Loss, weight: float) -> float:
    """How far a row moves the sum, over the clip norm, under these weights."""
    sums = []
    for start in (0, 1):
        layer, count = nn.Linear(4, 1), len(rows) - start
        training = PrivateTraining(
            layer,
            torch.optim.SGD(layer.parameters(), lr=0.1),
            loss,
            rows[start:],
            labels[start:],
            sampler=PoissonSampler(count, 1.0),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            noise=SeededNoise(1),
        )
        nn.init.constant_(layer.weight, weight)  # as a step at a huge rate leaves it
        training._sum_clipped(torch.arange(count))
        sums.append(training._sum)
    return float((sums[0] - sums[1]).norm())


@pytest.mark.parametrize("loss", [binary_logistic, squared_error])
@pytest.mark.parametrize(
    ("label", "weight"), [(1e300, 1.0), (1.7e308, 1.0), (0.0, math.inf), (0.0, -math.inf)]
)
def test_a_row_that_is_not_finite_does_not_decide_what_others_add(
    loss: Loss, label: float, weight: float
) -> None:
    """It sends the batch to the gradients, which leave out rows of an infinite gradient: 193 C went with it."""
    rows = torch.full(
        (193, 4), 1e10
    )  # without the first no row of zeros fills up the batch, which infinity makes NaN
    rows[0, 0] = math.nan
    dtype = torch.float64 if label else torch.float32
    assert moved_by_the_first(rows, torch.full((193,), label, dtype=dtype), loss, weight) <= 1.0


def test_rows_that_change_afterwards_do_not_pass_the_bound() -> None:
    """Had the rows themselves been kept, clipped by a length of before, the sum would be 1e6 long."""
    rows, labels = torch.ones(1, 2), torch.zeros(1)
    table, _ = made(rows, labels)
    rows.mul_(1e6)
    total = torch.zeros(3, dtype=torch.float64)
    assert table.clipped_sum([torch.tensor([0])], total) is not None
    assert float(total.norm()) <= 1.0


def test_a_batch_that_rounds_by_place_is_left_to_the_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, labels = samples(64)
    table, gradients = made(rows, labels)
    monkeypatch.setattr(gradients, "at_once", lambda size, *_: size != 64)
    assert table.clipped_sum([torch.arange(64)], torch.zeros(8, dtype=torch.float64)) is None


def test_one_record_less_changes_no_bit_of_what_others_add() -> None:
    """Every row but the first stands elsewhere, in the table and in the batch; the norms are those of before."""
    rows, labels = samples(500, 30)
    totals = [torch.zeros(31, dtype=torch.float64) for _ in range(2)]
    norms = []
    for start, total in zip((0, 1), totals, strict=True):
        table, _ = made(rows[start:].clone(), labels[start:].clone())
        found = table.clipped_sum([torch.arange(500 - start)], total)
        assert found is not None
        norms.append(found[0]()[1 - start :])
    assert torch.equal(norms[0], norms[1])
    assert float((totals[0] - totals[1]).norm()) <= 1.0


@pytest.mark.parametrize("most", [0, 1 << 22])
@pytest.mark.parametrize("bad", [False, True])
def test_training_is_the_same_with_a_table_that_is_too_long_to_keep(
    most: int, bad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = samples(200)
    if bad:
        rows[10] = math.nan

    def trained(kept: int) -> PrivateTraining:
        monkeypatch.setattr(linear_table, "_MOST", kept)
        torch.manual_seed(0)
        layer = nn.Linear(7, 1)
        training = PrivateTraining(
            layer,
            torch.optim.SGD(layer.parameters(), lr=0.1),
            binary_logistic,
            rows,
            labels,
            sampler=PoissonSampler(200, 0.5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            noise=SeededNoise(3),
            physical_batch_size=40 if most else None,
        )
        assert (training._table is None) == (kept == 0)
        training.run(20)
        return training

    found, expected = trained(1 << 22), trained(0)
    for name, weight in found.weights().items():
        torch.testing.assert_close(weight, expected.weights()[name])
    torch.testing.assert_close(found.last_norms, expected.last_norms, equal_nan=True)
    assert found.rows_not_finite == expected.rows_not_finite
    assert bool(found.rows_not_finite) == bad
