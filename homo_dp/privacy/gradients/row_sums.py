"""Sums over the clipped rows of a batch whose rounding is bounded, so that one row moves them by no
more than it may.

A float32 sum of n vectors of norm C is off by up to n**2 C / 2**24, and one row more can turn all
of that around: with 150,000 crafted rows it moved the sum by 31 C (Casacuberta et al. 2022,
arXiv:2207.10635). So sums are float64. Products of a few hundred rows stay float32 inside, for
speed, in pieces so short that their rounding is within ``ROUNDING``, and rows are clipped that much
below C.
"""

import functools

import torch
from torch import Tensor

ROUNDING = 2.0**-7
"""How far neighbouring sums may be apart by rounding, in units of C: half of it for each of the
two sums.
"""
# What float32 norms of up to _FLOAT32_VALUES numbers, factors and their products may be off by.
_NORMS = 2.0**-11
BELOW = 1.0 - ROUNDING - _NORMS
"""What the rows of such products are clipped to, in units of C."""

# numbers a float32 norm may run over: its square is off by at most this / 2**24
_FLOAT32_VALUES = 4096
_UNIT = 2.0**-24
GHOST_ROWS = 256
"""Rows that one float32 sum may have: off by at most GHOST_ROWS**2 C / 2**24 = ROUNDING / 2."""
_LEAST_PIECE = 32  # rows; products of fewer are slower than float64
_DOUBLE_PIECE = 4096  # rows taken to float64 at a time
_AT_ONCE = 1 << 20  # numbers of a float32 product that are made before they are added to a sum


def row_squares(rows: Tensor) -> Tensor:
    """Sum of squares of each row (first dimension), right to 2**-12 in float32 and to rounding
    in float64.
    """
    flat = rows if rows.dim() == 2 else rows.flatten(1)
    if flat.shape[1] <= _FLOAT32_VALUES or flat.dtype is not torch.float32:
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return norms.square_()
    pieces = [
        torch.linalg.vector_norm(piece, dim=1).double()
        for piece in torch.split(flat, _FLOAT32_VALUES, 1)
    ]
    exact: Tensor = torch.linalg.vector_norm(torch.stack(pieces), dim=0)
    # Up to the next float32, which is what the caller compares with.
    return exact.square_().mul_(1.0 + 2 * _UNIT).to(rows.dtype)


@functools.lru_cache(maxsize=4096)
def rows_in_piece(rows: int) -> int:
    """How many rows a float32 product may run over where ``rows`` are summed in all; 0 where it
    takes float64.

    Pieces of m rows, added up in float32, are off by at most (m + n / m) n C / 2**24, whatever the
    rows are.

    >>> [rows_in_piece(rows) for rows in (100, 255, 260, 400, 600, 1024, 1025)]
    [100, 255, 250, 160, 103, 32, 0]
    """
    most = ROUNDING / 2 / _UNIT / max(rows, 1)
    for piece in range(min(rows, int(most)), _LEAST_PIECE - 1, -1):
        if piece + -(-rows // piece) <= most:
            return piece
    return 0 if rows >= _LEAST_PIECE else rows


def ghost_rows(rows: int) -> int:
    """How many rows float32 may add up at a time where ``rows`` are summed in all, and the pieces
    in float64.

    >>> [ghost_rows(rows) for rows in (32, 256, 1000, 100_000)]
    [1024, 256, 65, 1]
    """
    return max(1, int(ROUNDING / 2 / _UNIT / max(rows, 64)))


def write_product(
    total: Tensor, left: Tensor, right: Tensor, accumulate: bool, terms: int = 1
) -> None:
    """``total (+)= left^T @ right`` in float64, a sum over rows; ``terms`` of them make one record.

    Guarantees:
        - within ROUNDING / 2 of the exact sum, where each record's part of it has norm 1 at most
          and one term;
        - records of several terms, which may be large and cancel, are summed in float64, and so are
          the physical batches after the first, which has used up what rounding is allowed.
    """
    rows = left.shape[0]
    if rows == 0:
        if not accumulate:
            total.zero_()
        return
    short = terms == 1 and not accumulate and left.dtype is torch.float32
    piece = rows_in_piece(rows) if short else 0
    if piece == 0:
        _write_double(total, left, right, accumulate)
        return
    if total.numel() <= _AT_ONCE:
        value = _short_product(left, right, piece)
        write_rows(
            total, value if value.shape == total.shape else value.view(total.shape), accumulate
        )
        return
    # Some outputs at a time: memory for all of them would be new in every step, which costs a third
    # of the product.
    flat, step = total.view(left.shape[1], right.shape[1]), max(1, _AT_ONCE // right.shape[1])
    for start in range(0, left.shape[1], step):
        outputs = slice(start, start + step)
        write_rows(flat[outputs], _short_product(left[:, outputs], right, piece), accumulate)


def _short_product(left: Tensor, right: Tensor, piece: int) -> Tensor:
    """``left^T @ right`` in float32, by so many rows at a time."""
    value = torch.mm(left[:piece].t(), right[:piece])
    for start in range(piece, left.shape[0], piece):
        value.addmm_(left[start : start + piece].t(), right[start : start + piece])
    return value


def write_total(total: Tensor, rows: Tensor, accumulate: bool) -> None:
    """``total (+)=`` the sum over the first dimension, in float64."""
    if accumulate or total.dim() != rows.dim() - 1:
        write_rows(total, rows.sum(0, dtype=torch.float64), accumulate)
    else:
        torch.sum(rows, 0, dtype=torch.float64, out=total)


def write_rows(total: Tensor, value: Tensor, accumulate: bool) -> None:
    """``total (+)= value``."""
    if accumulate:
        total.add_(value)
    else:
        total.copy_(value)


def _write_double(total: Tensor, left: Tensor, right: Tensor, accumulate: bool) -> None:
    if not accumulate:
        total.zero_()
    flat = total.view(left.shape[1], right.shape[1])
    for start in range(0, len(left), _DOUBLE_PIECE):
        piece = slice(start, start + _DOUBLE_PIECE)
        flat.addmm_(left[piece].double().t(), right[piece].double())
