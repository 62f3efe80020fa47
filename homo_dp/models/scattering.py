"""A linear model on fixed image features: edges by wavelets, of which nothing is learnt and nothing
is private.

How strong the edges of an image are in eight directions at two scales, averaged over squares: the
first order of a wavelet scattering (Bruna & Mallat 2013). A linear model on them has few weights
for noise to spoil, and is better at a small epsilon than a network (Tramer & Boneh 2021). Filters
are constants of this file; each image is scaled by itself, so that every row has the same, public
norm. The rules choose ``second_order_scattering.py``, which adds the second.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from homo_dp.models.fixed_features import FixedFeatures, unit

ANGLES = 8
_PLACES = 7  # about so many squares a side
_SIDE = 7  # pixels of a filter
_LEAST = 1e-6  # an image without edges has none, and is not divided by zero


class Scattering(FixedFeatures):
    """Edges, averaged over squares.

    >>> Scattering((1, 28, 28))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 833])
    """

    row_square = 2.0  # 1 for its means, 1 for its edges

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__(input_shape)
        self.features = feature_count(input_shape)

    def rows_of(self, images: Tensor) -> Tensor:
        square, filters = square_of(self.input_shape), wavelets().to(images.device)
        fine = F.avg_pool2d(_edges(images, filters), square)
        coarse = F.avg_pool2d(_edges(F.avg_pool2d(images, 2), filters), square // 2)
        means, places = F.avg_pool2d(images, square), fine.shape[2:]
        edges = torch.cat([fine, coarse[:, :, : places[0], : places[1]]], dim=1)
        return torch.cat(
            [unit(means.flatten(1), _LEAST), unit(edges.sqrt().flatten(1), _LEAST)], dim=1
        )


def square_of(input_shape: Sequence[int]) -> int:
    """Pixels a side of the squares that features are averaged over: even, and about seven squares a
    side.

    >>> [square_of((1, side, side)) for side in (8, 28, 32, 64)]
    [2, 4, 4, 10]
    """
    return max(2, 2 * round(max(input_shape[1:]) / _PLACES / 2))


def feature_count(input_shape: Sequence[int]) -> int:
    """How many features an image of this shape has.

    >>> feature_count((1, 28, 28))
    833
    """
    channels, height, width = input_shape
    square = square_of(input_shape)
    return channels * (1 + 2 * ANGLES) * (height // square) * (width // square)


@functools.cache
def wavelets() -> Tensor:
    """Real and imaginary parts of Morlet wavelets in all directions: oscillations of three eighths
    of a turn a pixel.

    >>> wavelets().shape
    torch.Size([16, 1, 7, 7])
    """
    axis = torch.arange(_SIDE, dtype=torch.float64) - _SIDE // 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    parts = []
    for number in range(ANGLES):
        angle = math.pi * number / ANGLES
        along = x * math.cos(angle) + y * math.sin(angle)
        across = y * math.cos(angle) - x * math.sin(angle)
        window = torch.exp(-(along**2 + 0.25 * across**2) / (2 * 1.1**2))
        real, imaginary = (
            window * torch.cos(0.75 * math.pi * along),
            window * torch.sin(0.75 * math.pi * along),
        )
        real = real - window * (real.sum() / window.sum())  # a flat image has no edges
        norm = math.sqrt(float((real**2 + imaginary**2).sum()))
        parts += [real / norm, imaginary / norm]
    return torch.stack(parts).unsqueeze(1).float()


def _edges(maps: Tensor, filters: Tensor) -> Tensor:
    """The size of the answer of every wavelet on every map; beyond its border a map is zero."""
    return edge_sizes(F.pad(maps, (_SIDE // 2,) * 4), filters)


def edge_sizes(padded: Tensor, filters: Tensor) -> Tensor:
    """The size of the answer of every wavelet on every map, at the places where a filter fits."""
    count, channels, height, width = padded.shape
    answers = F.conv2d(padded.reshape(count * channels, 1, height, width), filters)
    answers = answers.reshape(count, channels * ANGLES, 2, *answers.shape[2:])
    return answers.square_().sum(2).sqrt_()
