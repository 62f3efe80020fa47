"""One Linear layer with one output: sums of clipped gradients are those of one row after the other.

Rows that are not finite leave no trace on the others, and sizes of batches that round by place go in pieces.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.batch_invariance import Numbers, Places, places_of
from homo_dp.privacy.gradients.fast.linear import OneOutputGradients, one_output_numbers
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, squared_error
from tests.privacy.gradients.fast.parts import same_as_reference

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


def summed(
    gradients: OneOutputGradients, rows: Tensor, labels: Tensor, filling: int = 0
) -> tuple[Tensor, Tensor]:
    """The clipped sum, weight and bias in one, and the norms."""
    sums = [torch.zeros(1, rows.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    norms = gradients.clipped_sum(rows, labels, sums, False, filling)()
    return torch.cat([total.flatten() for total in sums]), norms


def table(rows: int, columns: int = 7) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(columns, 1), torch.randn(rows, columns), (torch.arange(rows) % 2).float()


def made(layer: nn.Linear, numbers: Numbers | None = None) -> OneOutputGradients:
    places = places_of(layer, numbers or one_output_numbers(binary_logistic), None)
    return OneOutputGradients(layer, binary_logistic, 1.0, places)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_a_row_that_is_not_finite_changes_no_bit_of_the_others(value: float, size: float) -> None:
    """However long they are: had another path with other bounds taken over, long rows would have come or gone."""
    layer, rows, labels = table(64)
    rows *= size
    gradients = made(layer)
    expected, norms = summed(
        gradients, torch.cat([rows[1:], rows[1:2]]), torch.cat([labels[1:], labels[1:2]]), 1
    )
    rows[0, 3] = value
    found, others = summed(gradients, rows, labels)
    assert torch.equal(norms, others[1:])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert gradients.rows_not_finite == 1


def test_the_batch_after_one_that_was_not_finite_is_a_batch_like_others() -> None:
    layer, rows, labels = table(32)
    gradients = made(layer)
    before = summed(gradients, rows, labels)
    summed(gradients, rows * math.nan, labels)
    assert all(map(torch.equal, summed(gradients, rows, labels), before))
    assert gradients.rows_not_finite == 32


def test_what_fills_up_a_batch_counts_for_nothing() -> None:
    layer, rows, labels = table(64)
    rows[0] = math.nan
    more, others = (
        torch.cat([rows[:33], rows[:1].expand(31, -1)]),
        torch.cat([labels[:33], labels[:1].expand(31)]),
    )
    gradients = made(layer)
    found, norms = summed(gradients, more, others, 31)
    assert len(norms) == 33
    assert gradients.rows_not_finite == 1
    expected = summed(made(layer), torch.cat([rows[1:33]]), labels[1:33])[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("piece", [1, 32])
def test_a_size_that_rounds_by_place_is_taken_in_pieces(piece: int) -> None:
    layer, rows, labels = table(96)
    honest = one_output_numbers(binary_logistic)

    def by_place(module: nn.Module, features: Tensor, given: Tensor) -> list[Tensor]:
        moved = (
            torch.arange(len(features)) % 3 if len(features) > piece else torch.zeros(len(features))
        )
        return [
            values + moved.reshape(-1, *[1] * (values.dim() - 1))
            for values in honest(module, features, given)
        ]

    assert Places(layer, by_place).at_once(96, rows, labels) == piece
    found, norms = summed(made(layer, by_place), rows, labels)
    expected, others = summed(made(layer), rows, labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norms, others, rtol=1e-12, atol=1e-12)
    assert len(norms) == 96


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "loss",
    [binary_logistic, squared_error, lambda outputs, labels: (outputs - labels[:, None]).abs()],
)
def test_one_output_with_any_loss(bias: bool, loss: Loss) -> None:
    torch.manual_seed(1)
    labels = (torch.arange(12) % 2).double()
    features = torch.randn(12, 7).double() * torch.linspace(0.1, 3, 12).double()[:, None]
    same_as_reference(nn.Linear(7, 1, bias=bias), loss, features, labels)
    same_as_reference(
        nn.Sequential(nn.Flatten(), nn.Linear(7, 1, bias=bias)),
        loss,
        features.reshape(12, 7, 1),
        labels,
    )
