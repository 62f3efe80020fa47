"""Rows in coordinates that an aggregator sent: no bit of one depends on the rows before it."""

import math

import pytest
import torch

from homo_dp.privacy.training.turned_rows import turned_rows


@pytest.mark.parametrize("width", [3, 9, 17, 31, 64, 101])
@pytest.mark.parametrize("count", [2, 33, 801, 5000])
def test_a_row_has_the_same_bits_wherever_it_stands(width: int, count: int) -> None:
    """Rows that cancel under the coordinates: what is left is how a product rounds."""
    generator = torch.Generator().manual_seed(width)
    half = torch.randn(width // 2, width, generator=generator) * 1e6
    transform = torch.cat([half, half, torch.full((width - 2 * len(half), width), 1e-6)])
    values = torch.randn(count, len(half), generator=generator)
    rows = torch.cat([values, -values, torch.ones(count, width - 2 * len(half))], dim=1)
    order = torch.randperm(width, generator=generator)
    rows, transform = rows[:, order], transform[order]
    whole = turned_rows(rows, transform)
    for gone in {0, 1, count // 2, count - 1}:
        kept = torch.arange(count) != gone
        assert torch.equal(turned_rows(rows[kept], transform), whole[kept])


def test_the_product_is_that_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, transform = (
        torch.randn(70, 5, generator=generator),
        torch.randn(5, 5, generator=generator),
    )
    assert torch.allclose(turned_rows(rows, transform), rows.double() @ transform.double())
    assert turned_rows(rows[:0], transform).shape == (0, 5)


def test_a_row_that_is_not_finite_there_becomes_zeros() -> None:
    rows = torch.ones(3, 2, dtype=torch.float64)
    rows[1] = 1e306
    turned = turned_rows(rows, torch.eye(2) * 1e6)
    assert turned.tolist() == [[1e6, 1e6], [0.0, 0.0], [1e6, 1e6]]
    assert turned_rows(rows, torch.tensor([math.inf, 1.0])).tolist() == [[0.0, 0.0]] * 3
