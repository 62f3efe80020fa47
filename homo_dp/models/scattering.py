"""A linear model on fixed image features: edges by wavelets, of which nothing is learnt and nothing is private.

How strong the edges of an image are in eight directions at two scales, averaged over squares: the first order of a
wavelet scattering (Bruna & Mallat 2013). A linear model on them has few weights for noise to spoil, and is better at a
small epsilon than a network (Tramer & Boneh 2021). Filters are constants of this file; each image is scaled by itself,
so that every row has the same, public norm. The second order was tried: on generated images its many features cost
more noise than they gave.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.models.builtin import zero_linear

ANGLES = 8
ROW_SQUARE = 2.0  # the square norm of an image's features: 1 for its means, 1 for its edges
_PLACES = 7  # about so many squares a side
_SIDE = 7  # pixels of a filter
_PIECE = 500  # images in hand at a time
_LEAST = 1e-6  # an image without edges has none, and is not divided by zero


class Scattering(nn.Module):
    """Images (n, channels, height, width) as rows of features; rows that are features already pass through.

    >>> Scattering((1, 28, 28))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 833])
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.features = feature_count(input_shape)

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() == 2 and images.shape[1] == self.features:
            return images
        with torch.no_grad():
            pieces = torch.split(images.reshape(-1, *self.input_shape).float(), _PIECE)
            parts = [self._features(piece) for piece in pieces if len(piece)]
        return torch.cat(parts) if parts else images.new_zeros(0, self.features)

    def _features(self, images: Tensor) -> Tensor:
        square, filters = square_of(self.input_shape), wavelets().to(images.device)
        fine = F.avg_pool2d(_edges(images, filters), square)
        coarse = F.avg_pool2d(_edges(F.avg_pool2d(images, 2), filters), square // 2)
        means, places = F.avg_pool2d(images, square), fine.shape[2:]
        edges = torch.cat([fine, coarse[:, :, : places[0], : places[1]]], dim=1)
        return torch.cat([_unit(means), _unit(edges.sqrt())], dim=1)


def square_of(input_shape: Sequence[int]) -> int:
    """Pixels a side of the squares that features are averaged over: even, and about seven squares a side.

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


def scattering(
    input_shape: Sequence[int], outputs: int, generator: torch.Generator | None, *, bias: bool = True
) -> nn.Sequential:
    """Fixed features and a linear layer of logits that starts at zero."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["features"] = Scattering(input_shape)
    layers["linear"] = zero_linear(feature_count(input_shape), outputs, bias, generator)
    return nn.Sequential(layers)


def front_end(module: nn.Module) -> Scattering | None:
    """The part of a model that is fixed and comes before what is trained."""
    first = next(iter(module.children()), None)
    return first if isinstance(first, Scattering) else None


def trained_part(module: nn.Module) -> nn.Module:
    """A model without its fixed front end, with the same weights under the same names."""
    if front_end(module) is None:
        return module
    return nn.Sequential(OrderedDict((name, part) for name, part in module.named_children() if name != "features"))


def wavelets() -> Tensor:
    """Real and imaginary parts of Morlet wavelets in all directions: oscillations of three eighths of a turn a pixel.

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
        real, imaginary = window * torch.cos(0.75 * math.pi * along), window * torch.sin(0.75 * math.pi * along)
        real = real - window * (real.sum() / window.sum())  # a flat image has no edges
        norm = math.sqrt(float((real**2 + imaginary**2).sum()))
        parts += [real / norm, imaginary / norm]
    return torch.stack(parts).unsqueeze(1).float()


def _edges(maps: Tensor, filters: Tensor) -> Tensor:
    """The size of the answer of every wavelet on every map."""
    count, channels, height, width = maps.shape
    answers = F.conv2d(maps.reshape(count * channels, 1, height, width), filters, padding=_SIDE // 2)
    answers = answers.reshape(count, channels * ANGLES, 2, height, width)
    return answers.square_().sum(2).sqrt_()


def _unit(features: Tensor) -> Tensor:
    """Each image's features, brought to norm 1."""
    rows = features.flatten(1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=_LEAST)
