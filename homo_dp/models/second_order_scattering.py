"""A linear model on a second-order scattering of images, of which only the smooth part is kept.

Data walk: image -> sizes of edges in eight directions at two scales, and sizes of edges in the fine
edges themselves (Bruna & Mallat 2013; Tramer & Boneh 2021), 81 maps of about 7 x 7 places -> roots
-> each kind centred and brought to one norm -> Fourier series over directions and cosine series
over places -> the 800 numbers of lowest frequency.

A private linear model pays noise for every feature. Maps of neighbouring directions and places are
alike, so that most of the 3,969 numbers of a 28 x 28 image repeat others: the series gather what
differs in few of them, whatever the images are. Nothing here is fitted to images. Which frequencies
come first was settled on random shapes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from homo_dp.models.fixed_features import FixedFeatures, unit
from homo_dp.models.scattering import ANGLES, edge_sizes, wavelets

MOST_FEATURES = 800
_USUAL_SIDE = 32  # pixels: larger images are made smaller first
_PLACE = 4  # pixels a side of a place
# maps of a colour: means, fine edges, coarse edges, edges of fine edges
_KINDS = (1, ANGLES, ANGLES, ANGLES**2)
_WEIGHTS = (0.7, 1.0, 1.0, 1.0)  # their norms, before all are brought to one
_FAINT = 1e-4  # edges that are taken for none; pixels are in [-1, 1]
_LEAST = 0.05  # norm of maps of one kind: below it they are rounding, and are not brought to 1
_SHORTEST = 1.0  # of all series, of which a common image has 1.8
# numbers that each image's part of a product is a multiple of, else its place decides how it is
# rounded
_LANES = 16


class SecondOrderScattering(FixedFeatures):
    """Smooth part of a second-order scattering.

    >>> SecondOrderScattering((1, 28, 28))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 800])
    """

    row_square = 8.0  # well above the 1 of the bias

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__(input_shape)
        self.features = feature_count(input_shape)

    def rows_of(self, images: Tensor) -> Tensor:
        filters = wavelets().to(images.device)
        images = F.avg_pool2d(images, _shrinking(self.input_shape))
        fine = _edges(images, filters)
        coarse, second = (
            _edges(F.avg_pool2d(images, 2), filters),
            _edges(F.avg_pool2d(fine, 2), filters),
        )
        kinds = [F.avg_pool2d(images, _PLACE), F.avg_pool2d(fine, _PLACE), *_halved(coarse, second)]
        maps = torch.cat(
            [_scaled(kind, self.input_shape[0], at) for at, kind in enumerate(kinds)], dim=2
        )
        directions, places, kept = (part.to(images.device) for part in _series(self.input_shape))
        filled = F.pad(
            maps, (0, places.shape[0] - maps.shape[3], 0, directions.shape[0] - maps.shape[2])
        )
        series = torch.matmul(directions, torch.matmul(filled, places.t()))
        return unit(series.flatten(1)[:, kept], _SHORTEST) * math.sqrt(self.row_square)


def feature_count(input_shape: Sequence[int]) -> int:
    """How many features an image of this shape has.

    >>> feature_count((1, 28, 28)), feature_count((1, 8, 8))
    (800, 324)
    """
    return min(MOST_FEATURES, input_shape[0] * sum(_KINDS) * math.prod(_grid(input_shape)))


def _shrinking(input_shape: Sequence[int]) -> int:
    """How many pixels become one, a side."""
    return max(1, min(round(max(input_shape[1:]) / _USUAL_SIDE), min(input_shape[1:]) // _PLACE))


def _grid(input_shape: Sequence[int]) -> tuple[int, int]:
    """Places in a column and in a row."""
    height, width = (side // _shrinking(input_shape) // _PLACE for side in input_shape[1:])
    return height, width


def _edges(maps: Tensor, filters: Tensor) -> Tensor:
    """Sizes of edges; a map goes on beyond its border as it ends, so that no border is an edge."""
    half = filters.shape[2] // 2
    return edge_sizes(F.pad(maps, (half,) * 4, mode="replicate"), filters)


def _halved(*maps: Tensor) -> list[Tensor]:
    """Maps of half the size by places."""
    return [F.avg_pool2d(each, _PLACE // 2) for each in maps]


def _scaled(kind: Tensor, colours: int, at: int) -> Tensor:
    """Maps of one kind as (images, colours, maps, places), each image's centred and brought to
    the norm of the kind.
    """
    rows = (kind if at == 0 else (kind + _FAINT).sqrt()).flatten(1)
    rows = unit(rows - rows.mean(1, keepdim=True), _LEAST) * _WEIGHTS[at]
    return rows.reshape(len(rows), colours, _KINDS[at], -1)


@functools.lru_cache(maxsize=8)
def _series(input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """The series over maps and over places (a row each number), and which numbers are kept, smooth
    ones first.

    Both are filled up with zeros to whole ``_LANES``. An image of 14 x 14 pixels has 9 places:
    without that, products rounded it by its place among the others, and one image less moved a sum
    of gradients by 295 clip norms.
    """
    height, width = _grid(input_shape)
    fourier, own = _fourier(ANGLES)
    # Edges of edges are taken by their first direction and by how far the second is turned from it.
    turned = torch.zeros(ANGLES**2, ANGLES**2, dtype=torch.float64)
    for first in range(ANGLES):
        for turn in range(ANGLES):
            turned[first * ANGLES + turn, first * ANGLES + (first + turn) % ANGLES] = 1.0
    one = torch.ones(1, 1, dtype=torch.float64)
    kinds = (one, fourier, fourier, torch.kron(fourier, fourier) @ turned)
    directions: Tensor = torch.block_diag(*kinds)  # type: ignore[no-untyped-call]
    smooth = (1 + own**2) ** -2.0
    maps = torch.cat(
        [
            torch.tensor([0.7], dtype=torch.float64),
            smooth,
            smooth,
            0.65 * torch.kron(smooth, smooth),
        ]
    )
    places = torch.kron(_cosines(height), _cosines(width))
    down, across = (
        torch.arange(height, dtype=torch.float64),
        torch.arange(width, dtype=torch.float64),
    )
    spread = (1 + down[:, None] ** 2 + across[None, :] ** 2).flatten() ** -1.25
    importance = (maps[:, None] * spread[None, :]).flatten().repeat(input_shape[0])
    order = torch.argsort(importance.round(decimals=9), descending=True, stable=True)
    kept = order[: feature_count(input_shape)].sort().values
    directions, places = _in_lanes(directions.float()), _in_lanes(places.float())
    map_at, place_at = kept // spread.numel(), kept % spread.numel()
    colour, map_at = map_at // maps.numel(), map_at % maps.numel()
    return directions, places, (colour * directions.shape[0] + map_at) * places.shape[0] + place_at


def _in_lanes(square: Tensor) -> Tensor:
    lacking = -square.shape[0] % _LANES
    return F.pad(square, (0, lacking, 0, lacking))


def _fourier(size: int) -> tuple[Tensor, Tensor]:
    """Real Fourier series of a circle, a row each, and their frequencies."""
    at = torch.arange(size, dtype=torch.float64)
    rows, own = [torch.ones_like(at)], [0]
    for frequency in range(1, size // 2 + 1):
        turn = 2 * math.pi * frequency * at / size
        rows, own = [*rows, torch.cos(turn)], [*own, frequency]
        if 2 * frequency < size:
            rows, own = [*rows, torch.sin(turn)], [*own, frequency]
    return F.normalize(torch.stack(rows), dim=1), torch.tensor(own, dtype=torch.float64)


def _cosines(size: int) -> Tensor:
    """Cosine series (DCT-II) of a line, a row each."""
    at, frequency = (
        torch.arange(size, dtype=torch.float64) + 0.5,
        torch.arange(size, dtype=torch.float64),
    )
    return F.normalize(torch.cos(math.pi * frequency[:, None] * at[None, :] / size), dim=1)
