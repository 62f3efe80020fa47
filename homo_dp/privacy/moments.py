"""Second moments as a private sum: X^T X has as many different numbers as its upper triangle."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def triangle_size(width: int) -> int:
    """How many numbers the second moment of rows of a width has.

    >>> triangle_size(3)
    6
    """
    return width * (width + 1) // 2


def outer_products(rows: Tensor) -> Tensor:
    """Each row's part of X^T X: the upper triangle of x x^T, off the diagonal times sqrt(2).

    The L2 norm of a part is then exactly |x|^2, as that of the whole matrix is: rows with |x| <= R give a sum of
    sensitivity R^2.

    >>> outer_products(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).norm().item()
    25.0
    """
    upper, scale = _upper(rows.shape[1])
    return rows[:, upper[0]] * rows[:, upper[1]] * scale.to(rows.dtype)


def second_moment(values: Tensor, width: int) -> Tensor:
    """The symmetric matrix of a sum of ``outer_products``.

    >>> second_moment(outer_products(torch.tensor([[3.0, 4.0]], dtype=torch.float64))[0], 2).round()
    tensor([[ 9., 12.],
            [12., 16.]], dtype=torch.float64)
    """
    upper, scale = _upper(width)
    matrix = torch.zeros(width, width, dtype=values.dtype)
    matrix[upper[0], upper[1]] = values / scale.to(values.dtype)
    return matrix + torch.triu(matrix, 1).T


def _upper(width: int) -> tuple[Tensor, Tensor]:
    upper = torch.triu_indices(width, width)
    off = upper[0] != upper[1]
    return upper, torch.where(off, torch.tensor(math.sqrt(2.0), dtype=torch.float64), 1.0)
