"""Embedding on the fast path: the gradient of a row touches as few vectors as the row has
indices.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.privacy.gradients.fast.layers import LEAST_SQUARE, FastLayer, scale_rows
from homo_dp.privacy.gradients.gram_norms import lookup_squares
from homo_dp.privacy.gradients.row_sums import row_squares


class FastEmbedding(FastLayer):
    """nn.Embedding of one index a row, or of a sequence of them; an index that repeats in a row
    adds up.
    """

    def __init__(self, module: nn.Embedding) -> None:
        super().__init__()
        self._module = module
        self.parameters.append(module.weight)

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        self._indices = inputs.flatten(1) if inputs.dim() > 1 else inputs.unsqueeze(1)
        return F.embedding(inputs, self._module.weight)

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        gradient = gradient.reshape(*self._indices.shape, -1)
        if self._module.padding_idx is not None:
            gradient = gradient * (self._indices != self._module.padding_idx).unsqueeze(2)
        self._gradient = gradient
        return None

    def squared_norms(self) -> Tensor:
        if self._indices.shape[1] == 1:
            return row_squares(self._gradient)
        return lookup_squares(self._indices, self._gradient)

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        if not accumulate:
            sums[0].zero_()
        rows = scale_rows(self._gradient, factors).flatten(0, 1)
        sums[0].index_add_(0, self._indices.flatten(), rows.to(sums[0].dtype))

    def kept(self) -> list[Tensor]:
        return [self._gradient]

    def forget(self) -> None:
        del self._indices, self._gradient


class FastEmbeddingBag(FastLayer):
    """nn.EmbeddingBag: sums or means over the indices of a row, which all get one gradient."""

    def __init__(self, module: nn.EmbeddingBag) -> None:
        super().__init__()
        self._module = module
        self.parameters.append(module.weight)

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        if inputs.dim() != 2:
            raise TypeError("an EmbeddingBag takes one row of indices a record")
        self._indices = inputs
        return F.embedding_bag(
            inputs,
            self._module.weight,
            mode=self._module.mode,
            padding_idx=self._module.padding_idx,
        )

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        self._gradient = gradient
        return None

    def squared_norms(self) -> Tensor:
        # The gradient of a word is how often it is in the row, over the words of the row in a mean,
        # times one vector.
        weights = self._weights()
        same = (self._indices.unsqueeze(1) == self._indices.unsqueeze(2)).to(weights.dtype)
        repeats = (torch.bmm(same, weights.unsqueeze(2)).squeeze_(2) * weights).sum(1)
        return row_squares(self._gradient).add_(LEAST_SQUARE) * repeats

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        if not accumulate:
            sums[0].zero_()
        rows = scale_rows(self._gradient, factors).to(sums[0].dtype)
        rows = rows.unsqueeze(1) * self._weights().to(sums[0].dtype).unsqueeze(2)
        sums[0].index_add_(0, self._indices.flatten(), rows.flatten(0, 1))

    def _weights(self) -> Tensor:
        """What each index of a row counts for: 1, or one over the number of them; padding
        nothing.
        """
        counts = torch.ones_like(self._indices, dtype=self._gradient.dtype)
        if self._module.padding_idx is not None:
            counts = (self._indices != self._module.padding_idx).to(self._gradient.dtype)
        return (
            counts / counts.sum(1, keepdim=True).clamp_(min=1.0)
            if self._module.mode == "mean"
            else counts
        )

    def kept(self) -> list[Tensor]:
        return [self._gradient]

    def forget(self) -> None:
        del self._indices, self._gradient


def is_fast_embedding(module: nn.Module) -> bool:
    """Whether a module is an embedding that the fast path takes: one that does not rewrite or
    rescale its weights.
    """
    return (
        (
            type(module) is nn.Embedding
            or (type(module) is nn.EmbeddingBag and module.mode in ("sum", "mean"))
        )
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and not module.sparse
        and torch.is_floating_point(module.weight)
    )
