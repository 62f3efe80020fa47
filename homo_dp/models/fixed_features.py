"""Front ends that turn images into rows of features: nothing of them is learnt, so nothing of them
is private.

A model on fixed features is a front end and a linear layer. Only the layer is trained and kept as
weights; the front end is rebuilt from the name of the model and the shape of its images.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from homo_dp.models.builtin import zero_linear

_PIECE = 64  # images in hand at a time


class FixedFeatures(nn.Module):
    """Images (n, channels, height, width) as rows of features; rows that are features already pass
    through.

    Guarantees:
        - the features of an image follow from the image alone: pieces are filled up to one size, so
          that its bits do not depend on how many other images there are (docs/adr/0015). Where a
          made-up image has other bits at another place of a piece, as kernels of some processors
          may give it, each image is taken by itself.
    """

    features: int
    row_square: ClassVar[float]  # the square norm of a row

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self._size: int | None = None

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() == 2 and images.shape[1] == self.features:
            return images
        found = torch.empty(len(images), self.features, device=images.device)
        with torch.no_grad():
            at_once = self._at_once()
            for start in range(0, len(images), at_once):
                piece = images[start : start + at_once].reshape(-1, *self.input_shape).float()
                found[start : start + at_once] = self.rows_of(_filled(piece, at_once))[: len(piece)]
        return found

    def _at_once(self) -> int:
        """How many images a piece has: as many as leave each the same bits at every place."""
        if self._size is None:
            made_up = (
                torch.rand(1, *self.input_shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
            )
            rows = self.rows_of(made_up.repeat(_PIECE, 1, 1, 1))
            self._size = _PIECE if torch.equal(rows, rows[:1].expand_as(rows)) else 1
        return self._size

    def rows_of(self, images: Tensor) -> Tensor:
        """The features of one piece of images."""
        raise NotImplementedError


def _filled(piece: Tensor, size: int) -> Tensor:
    lacking = size - len(piece)
    return (
        torch.cat([piece, piece[:1].expand(lacking, *piece.shape[1:])])
        if lacking
        else piece.contiguous()
    )


def on_features(
    front: FixedFeatures, outputs: int, generator: torch.Generator | None, *, bias: bool = True
) -> nn.Sequential:
    """A front end and a linear layer of logits that starts at zero."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["features"] = front
    layers["linear"] = zero_linear(front.features, outputs, bias, generator)
    return nn.Sequential(layers)


def front_end(module: nn.Module) -> FixedFeatures | None:
    """The part of a model that is fixed and comes before what is trained."""
    first = next(iter(module.children()), None)
    return first if isinstance(first, FixedFeatures) else None


def trained_part(module: nn.Module) -> nn.Module:
    """A model without its fixed front end, with the same weights under the same names."""
    if front_end(module) is None:
        return module
    return nn.Sequential(
        OrderedDict((name, part) for name, part in module.named_children() if name != "features")
    )


def unit(rows: Tensor, least: float) -> Tensor:
    """Each row brought to norm 1; one shorter than ``least`` stays short, so that nothing is
    made of rounding.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=least)
