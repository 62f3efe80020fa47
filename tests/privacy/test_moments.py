"""Second moments: no row moves the sum by more than the square of its norm, and the vector is
the matrix.
"""

import math

import torch
from torch import Tensor

from homo_dp.privacy.moments import (
    as_vector,
    moment_sum,
    outer_products,
    second_moment,
    triangle_size,
)

ROWS, WIDTH = 40, 5


def table() -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)) * 3


def test_a_row_moves_the_second_moment_by_at_most_the_square_of_its_norm() -> None:
    features = table()
    whole = moment_sum(features, 2.0)
    moved = [
        float((whole - moment_sum(torch.cat([features[:i], features[i + 1 :]]), 2.0)).norm())
        for i in range(ROWS)
    ]
    assert 3.99 < max(moved) <= 4.0
    assert torch.equal(
        moment_sum(torch.tensor([[math.inf, 0.0]]), 1.0), torch.zeros(3, dtype=torch.float64)
    )


def test_a_moment_keeps_its_length_as_a_vector() -> None:
    features = table().double()
    matrix = features.t() @ features
    assert len(as_vector(matrix)) == triangle_size(WIDTH)
    assert torch.allclose(second_moment(as_vector(matrix), WIDTH), matrix)
    assert math.isclose(float(as_vector(matrix).norm()), float(matrix.norm()), rel_tol=1e-12)


def test_the_parts_of_rows_add_up_to_the_sum() -> None:
    features = table().double()
    assert torch.allclose(outer_products(features).sum(0), moment_sum(features, 1e6))
