"""Rows in other coordinates, each with the same bits wherever it stands among the others.

Coordinates come from an aggregator, which can make them such that nothing but rounding is left of a row. How a product
of matrices rounds a row depends on its place, and so on the rows before it, while clip norms may be as small as
rounding: one record less then moved a second moment by 115 C. So products are made in pieces in which places do not
matter, as far as that can be tried (``batch_invariance.py``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.privacy.gradients.batch_invariance import places_of
from homo_dp.privacy.gradients.fast.chain import filled
from homo_dp.privacy.gradients.fast.invariant_products import wide_product

_PIECE = 1 << 20  # numbers in hand at a time: many more are fetched from memory anew in every round
_LANES = 4  # float64 numbers that rows start at a multiple of
_MULTIPLE = 32  # rows that pieces are filled up to a multiple of: sigmoids take as many at once, and the rest otherwise


def turned_rows(rows: Tensor, transform: Tensor) -> Tensor:
    """Rows @ transform in float64, or around centres; a row that is not finite there becomes zeros.

    Centres are a vector, with the length of the column of ones behind: rows (x, 1) become (x - centres, length).

    >>> turned_rows(torch.tensor([[3.0, 1.0]]), torch.tensor([2.0, 0.5]))
    tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """
    if transform.dim() == 1:
        long, axes = rows.double(), transform.double()
        turned = torch.cat(
            [long[:, :-1] - long[:, -1:] * axes[:-1], long[:, -1:] * axes[-1]], dim=1
        )
    else:
        turned = _products(rows, transform)
    # A factor of zero does not silence what is not finite, so the row has to go too.
    finite = turned.isfinite().all(dim=1, keepdim=True)
    return turned if bool(finite.all()) else torch.where(finite, turned, 0.0)


def _products(rows: Tensor, transform: Tensor) -> Tensor:
    width = rows.shape[1]
    turned = rows.new_empty((len(rows), transform.shape[1]), dtype=torch.float64)
    if not len(rows):
        return turned
    places = places_of(nn.Linear(width, 1, bias=False), _numbers, ("turned rows",))
    size = places.at_once(piece_size(len(rows), width), rows, torch.zeros(1))
    right = padded(transform.double().t()).t()
    for start in range(0, len(rows), size):
        part = slice(start, min(start + size, len(rows)))
        # A copy, since where a piece starts in memory may matter as much as where a row does.
        turned[part] = wide_product(in_double(padded(rows[part]), size), right)[: part.stop - start]
    return turned


def piece_size(rows: int, width: int) -> int:
    """How many rows to take at a time, so that all pieces are about as long."""
    size = -(-rows // -(-rows * width // _PIECE))
    return size + -size % _MULTIPLE


def in_double(rows: Tensor, size: int) -> Tensor:
    """A copy of rows in float64, filled up to a size."""
    return filled(rows, size).to(torch.float64, copy=True)


def padded(columns: Tensor) -> Tensor:
    """With zeros behind, up to a number of columns that fills registers."""
    return F.pad(columns, (0, -columns.shape[1] % _LANES))


def _numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
    """What such products are of made-up rows: for ``batch_invariance.py``."""
    width = features.shape[1]
    transform = torch.randn(
        width, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return [wide_product(padded(features).double(), padded(transform.t()).t())]
