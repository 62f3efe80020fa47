"""The gradient of a linear model as a private sum, in the columns' own coordinates or in others that are public.

The gradient of a record is r x: what its outputs are off by, times its row (with a 1 for the bias). Its norm is
|r| |x|, so it is bounded without a gradient of its own: by clipping rows, since |r| <= 1 for the logistic loss and
|r| <= sqrt(2) for softmax, and in any case by clipping |r| |x| itself. Other coordinates (rows times a matrix that was
released before) make rows alike, so that the same noise is less of the gradient.

All products are float64. How a product of matrices rounds a row depends on where the row stands among the others, and
weights or coordinates can be made such that float32 outputs are rounding alone: one row less then moved the sum by up
to 85 C. In float64 the same takes a clip norm as small as rounding, 1e-9 and less, which an aggregator may ask for: 1.8
C. So rows are taken in pieces in which they have the same bits at every place (``batch_invariance.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import Numbers, places_of
from homo_dp.privacy.gradients.clipping import clip_factors, row_norms
from homo_dp.privacy.gradients.fast.chain import filled
from homo_dp.privacy.gradients.fast.invariant_products import wide_product
from homo_dp.privacy.gradients.losses import (
    Loss,
    binary_logistic,
    output_gradient,
    softmax_cross_entropy,
)
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.training.turned_rows import in_double, padded, piece_size, turned_rows


def most_residual(loss: Loss) -> float:
    """The largest norm of a loss's gradient at the outputs; infinite where nothing bounds it.

    Logistic: |sigmoid - y| <= 1. Softmax: |p - e_y|^2 = sum p^2 - 2 p_y + 1 <= 2, with equality where all of p is on
    another class.

    >>> most_residual(binary_logistic), round(most_residual(softmax_cross_entropy), 4)
    (1.0, 1.4142)
    """
    if loss is binary_logistic:
        return 1.0
    return math.sqrt(2.0) if loss is softmax_cross_entropy else math.inf


def linear_layer(module: nn.Module) -> nn.Linear | None:
    """The Linear layer, if the module is no more than one (behind a flattening) and all of it is trained.

    >>> linear_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    Linear(in_features=4, out_features=3, bias=True)
    """
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    layer: nn.Linear = layers[0]
    return layer if all(parameter.requires_grad for parameter in layer.parameters()) else None


def rows_of(module: nn.Linear, features: Tensor) -> Tensor:
    """Rows as the layer multiplies them, with a 1 for its bias; one that is not finite becomes zeros."""
    rows = features.detach().flatten(1)
    if module.bias is not None:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    finite = rows.isfinite().all(dim=1, keepdim=True)
    return rows if bool(finite.all()) else torch.where(finite, rows, 0.0)


class LinearGradient:
    """The noisy sum of the bounded gradients of a linear model; the weights do not move.

    Guarantees:
        - a record is in by the sampler of ``private_sum``, and moves the sum by at most its ``clip_norm``, whatever the
          weights, the row, the label and the coordinates are;
        - what a record adds depends on that record and on public numbers alone;
        - noise, grid and event are those of ``private_sum``.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        features: Tensor,
        labels: Tensor,
        *,
        private_sum: PrivateSum,
        declared: int,
        noise: NoiseSource,
        row_norm: float | None = None,
    ) -> None:
        layer = linear_layer(module)
        if layer is None:
            raise PrivacyError(
                "train.solver: needs a linear model with all of its weights trained; use solver: sgd"
            )
        if private_sum.dimension != sum(parameter.numel() for parameter in layer.parameters()):
            raise PrivacyError(
                f"dimension={private_sum.dimension}: is not that of the model's weights"
            )
        self.private_sum, self.noise = private_sum, noise
        self._layer, self._loss, self._labels = layer, loss, labels.detach()
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._sampler = private_sum.sampler(len(features), declared)
        rows = rows_of(layer, features)
        if row_norm is not None:
            rows = rows * clip_factors(row_norms(rows), row_norm).to(rows.dtype).unsqueeze(1)
        self._width = rows.shape[1]
        self._rows = padded(rows)  # in the columns' own coordinates
        self._places = places_of(layer, _numbers_of(loss), ("linear gradient", loss))
        self._turned: Tensor | None = None  # in those of the transform
        self._transform: Tensor | None = None
        self._lengths = row_norms(rows)
        self.released: Tensor | None = (
            None  # of the last step: values, or steps of the grid where noise is shared
        )
        self.last_norms = torch.zeros(0)  # LOCAL: never send them, they have no event

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put weights (of the aggregator) into the layer in place."""
        with torch.no_grad():
            for parameter in self._layer.parameters():
                parameter.copy_(weights[self._names[id(parameter)]])

    @property
    def applied_sigma(self) -> float:
        """Standard deviation of the noise that this party adds."""
        return self.private_sum.party_sigma

    def turn(self, transform: Tensor) -> None:
        """Take gradients in other coordinates from now on, those of ``turned_rows``."""
        if self._transform is not None and transform.equal(self._transform):
            return
        self._turned = turned_rows(self._rows[:, : self._width], transform)
        self._lengths, self._transform = row_norms(self._turned), transform

    def run(self, steps: int, after_step: Callable[[], None]) -> None:
        """Make the releases of ``steps`` steps, of which the last is kept."""
        for _ in range(steps):
            self.released = self.private_sum.release(self._sum(), self.noise)
            after_step()

    def event(self, steps: int) -> DpEvent:
        """The event of ``steps`` releases."""
        return self.private_sum.event(steps)

    def parts(self, values: Tensor) -> dict[str, Tensor]:
        """A vector of sums under the names of the weights."""
        table = values.reshape(self._layer.out_features, -1)
        pieces = torch.split(table, [part.shape[1] for part in self._columns()], dim=1)
        return {
            self._names[id(parameter)]: piece.reshape(parameter.shape)
            for parameter, piece in zip(self._layer.parameters(), pieces, strict=True)
        }

    def _sum(self) -> Tensor:
        """The clipped gradients of a sample, added up in float64."""
        total = torch.zeros(self._layer.out_features, self._width, dtype=torch.float64)
        norms: list[Tensor] = []
        weights, most = torch.cat(self._columns(), dim=1), self.private_sum.clip_norm * BELOW
        for span, rows, labels in self._pieces(self._sampler.draw(self.noise)):
            own = self._lengths[span]
            residuals = output_gradient(self._loss, _outputs(rows, weights), labels)[: len(own)]
            turned = rows[: len(own), : self._width] if self._turned is None else self._turned[span]
            lengths = own * row_norms(residuals)
            factors = clip_factors(lengths, most).unsqueeze(1)
            total.addmm_(torch.where(factors > 0, residuals * factors, 0.0).t(), turned)
            norms.append(lengths)
        self.last_norms = torch.cat(norms) if norms else torch.zeros(0)
        return total.reshape(-1)

    def _pieces(self, drawn: Tensor) -> Iterator[tuple[slice | Tensor, Tensor, Tensor]]:
        """Which rows, these in float64, and their labels; filled up to a size at which places do not matter."""
        if not len(drawn):
            return
        size, features = (
            piece_size(len(drawn), self._rows.shape[1]),
            self._rows[:, : self._layer.in_features],
        )
        size = self._places.at_once(size, features, self._labels)
        everybody = len(drawn) == len(self._rows)
        for piece in torch.split(drawn, size):
            span = slice(int(piece[0]), int(piece[-1]) + 1) if everybody else piece
            yield span, in_double(self._rows[span], size), filled(self._labels[span], size)

    def _columns(self) -> list[Tensor]:
        """Weight and bias, each with one row an output."""
        return [
            part.detach().reshape(self._layer.out_features, -1) for part in self._layer.parameters()
        ]


def _outputs(rows: Tensor, weights: Tensor) -> Tensor:
    """What padded rows give under weights of one row an output."""
    table = padded(weights.double())
    return (
        torch.mv(rows, table[0]).unsqueeze(1) if len(table) == 1 else wide_product(rows, table.t())
    )


def _numbers_of(loss: Loss) -> Numbers:
    """What sums are made of beside the rows themselves: for ``batch_invariance.py``."""

    def numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
        layer = linear_layer(module)
        if layer is None:
            raise ValueError("the copy of a model is another model")
        weights = torch.cat(
            [part.detach().reshape(layer.out_features, -1) for part in layer.parameters()], dim=1
        )
        residuals = output_gradient(
            loss, _outputs(padded(rows_of(layer, features)).double(), weights), labels
        )
        return [residuals, row_norms(residuals)]

    return numbers
