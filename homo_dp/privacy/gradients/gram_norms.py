"""Norms of a record's gradient when it is a sum over positions, by Gram matrices: large terms may
cancel in it.

``|sum_t g_t a_t^T|^2 = sum_{s,t} (a_s . a_t)(g_s . g_t)`` (Li et al. 2022, arXiv:2110.05679,
section 4). Where a record's terms cancel, rounding may leave zero of the sum of products while the
gradient is hundreds of C. So a bound on that rounding is added: it is invisible next to terms that
do not cancel, and clips those that do.
"""

import math

import torch
from torch import Tensor

# lengths below have squares that float32 holds with few bits or none: they count as this
LEAST_LENGTH = 1e-18


def outer_squares(inputs: Tensor, gradient: Tensor) -> Tensor:
    """``|sum_t g_t a_t^T|^2`` of each row, for inputs (n, positions, d) and gradients at the
    outputs (n, positions, k).

    Guarantees:
        - never below the square of what a sum over rows in the same precision adds.

    >>> outer_squares(torch.tensor([[[2.0], [1.0]]]), torch.tensor([[[3.0], [4.0]]])).sqrt().round(decimals=3)
    tensor([10.])
    """
    positions = inputs.shape[1]
    if positions**2 <= inputs.shape[2] * gradient.shape[2]:
        squares = ((inputs @ inputs.mT) * (gradient @ gradient.mT)).sum((1, 2)).clamp_(min=0.0)
    else:
        squares = (gradient.mT @ inputs).flatten(1).square().sum(1)
    return squares + rounding_of_squares(
        lengths_of(inputs) * lengths_of(gradient), inputs.shape[2], gradient.shape[2]
    )


def total_squares(gradient: Tensor) -> Tensor:
    """``|sum_t g_t|^2`` of each row, which is what a bias gets; the same guarantee."""
    return gradient.sum(1).square().sum(1) + rounding_of_squares(
        lengths_of(gradient), gradient.shape[2]
    )


def lookup_squares(indices: Tensor, gradient: Tensor) -> Tensor:
    """``sum over words of |sum_{t: that word} g_t|^2`` of each row, for indices (n, positions);
    the same guarantee.
    """
    same = indices.unsqueeze(1) == indices.unsqueeze(2)
    squares = ((gradient @ gradient.mT) * same).sum((1, 2)).clamp_(min=0.0)
    return squares + rounding_of_squares(lengths_of(gradient), gradient.shape[2])


def rounding_of_squares(lengths: Tensor, *sizes: int) -> Tensor:
    """How far the square of a sum of terms of these lengths (n, positions) may be off; products
    run over ``sizes``.
    """
    # A dot product of d values is off by about sqrt(d) units of rounding of its terms' lengths, a
    # sum of terms by few.
    units = 8.0 + sum(math.sqrt(size) for size in sizes)
    return lengths.sum(1).square() * (units * torch.finfo(lengths.dtype).eps)


def lengths_of(vectors: Tensor) -> Tensor:
    """Length of each vector (last dimension of three), at least LEAST_LENGTH: float32 cannot
    square less.
    """
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=2)
    return lengths.add_(LEAST_LENGTH)
