"""The sum of x x^T over rows, as one vector of bounded contributions.

A symmetric matrix is written as its diagonal and sqrt(2) times what is above it: the length of that vector is the
Frobenius norm, so the contribution of a row of norm at most R is at most R^2 long, and noise on it is noise on the
matrix that favours no direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from homo_dp.privacy.gradients.clipping import check_clip_norm, clip_factors, row_norms

_PIECE = 16_384  # rows in hand at a time


def moment_dimension(width: int) -> int:
    """How many numbers the second moment of rows of this width has.

    >>> moment_dimension(3)
    6
    """
    return width * (width + 1) // 2


def moment_sum(rows: Tensor, row_norm: float) -> Tensor:
    """The second moment of rows that are clipped to a norm, in float64.

    Guarantees:
        - one row moves the vector by at most ``row_norm ** 2``; one that is not finite adds nothing.

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
    return pack_moment(total)


def pack_moment(matrix: Tensor) -> Tensor:
    """A symmetric matrix as a vector of the same length.

    >>> pack_moment(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1.0000, 2.8284, 3.0000])
    """
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns] * _factors(rows == columns, matrix)


def unpack_moment(vector: Tensor, width: int) -> Tensor:
    """The symmetric matrix of a vector that ``pack_moment`` made.

    >>> unpack_moment(pack_moment(torch.eye(2)), 2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    rows, columns = torch.triu_indices(width, width)
    matrix = vector.new_zeros(width, width)
    matrix[rows, columns] = vector / _factors(rows == columns, vector)
    return matrix + matrix.triu(1).t()


def _factors(diagonal: Tensor, like: Tensor) -> Tensor:
    return like.new_full(diagonal.shape, math.sqrt(2.0)).masked_fill_(diagonal, 1.0)
