"""Second moments as a private sum: X^T X, the sum of x x^T over rows, has as many numbers as its
upper triangle.

A symmetric matrix is written as its diagonal and sqrt(2) times what is above it: the length of that
vector is the Frobenius norm of the matrix. So the contribution of a row of norm at most R is at
most R^2 long, and noise on the vector is noise on the matrix that favours no direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from homo_dp.privacy.gradients.clipping import check_clip_norm, clip_factors, row_norms

_PIECE = 16_384  # rows that are copied to float64 at a time


def triangle_size(width: int) -> int:
    """How many numbers the second moment of rows of a width has.

    >>> triangle_size(3)
    6
    """
    return width * (width + 1) // 2


def outer_products(rows: Tensor) -> Tensor:
    """Each row's part of X^T X, as a vector whose L2 norm is |x|^2.

    >>> outer_products(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).norm().item()
    25.0
    """
    upper, scale = _upper(rows.shape[1], rows)
    return rows[:, upper[0]] * rows[:, upper[1]] * scale


def moment_sum(rows: Tensor, row_norm: float) -> Tensor:
    """The sum of ``outer_products`` over rows that are clipped to a norm, in float64.

    Guarantees:
        - one row moves the vector by at most ``row_norm ** 2``; one that is not finite adds
          nothing.

    >>> moment_sum(torch.tensor([[3.0, 4.0]]), 1.0).norm() <= 1
    tensor(True)
    """
    check_clip_norm(row_norm, "row_norm")
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for piece in torch.split(rows, _PIECE):
        long = piece.double()
        factors = clip_factors(row_norms(long), row_norm).unsqueeze(1)
        clipped = torch.where(factors > 0, long * factors, 0.0)
        total.addmm_(clipped.t(), clipped)
    return as_vector(total)


def as_vector(matrix: Tensor) -> Tensor:
    """A symmetric matrix as a vector of the same length.

    >>> as_vector(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1.0000, 2.8284, 3.0000])
    """
    upper, scale = _upper(len(matrix), matrix)
    return matrix[upper[0], upper[1]] * scale


def second_moment(values: Tensor, width: int) -> Tensor:
    """The symmetric matrix of such a vector.

    >>> second_moment(outer_products(torch.tensor([[3.0, 4.0]], dtype=torch.float64))[0], 2).round()
    tensor([[ 9., 12.],
            [12., 16.]], dtype=torch.float64)
    """
    upper, scale = _upper(width, values)
    matrix = values.new_zeros(width, width)
    matrix[upper[0], upper[1]] = values / scale
    return matrix + torch.triu(matrix, 1).T


def _upper(width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the upper triangle, and the factor of each: 1 on the diagonal, sqrt(2) off
    it.
    """
    upper = torch.triu_indices(width, width)
    return upper, like.new_full((upper.shape[1],), math.sqrt(2.0)).masked_fill_(
        upper[0] == upper[1], 1.0
    )
