"""Clipped sums by the fast path, for PrivateTraining: forward, output gradient, backward, one product a layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.called_layers import called_layers_of
from homo_dp.privacy.gradients.fast.chain import FastChain, all_finite, chain_of, filled
from homo_dp.privacy.gradients.losses import KNOWN_LOSSES, Loss, output_gradient


class FastGradients:
    """ClippedGradients of a chain; the module is read and never touched, so there are no hooks to break.

    Guarantees:
        - as FastChain; a row whose gradient is not finite leaves the batch, and is counted;
        - the outputs of a linear model are float64 where the loss is one of ours: see ``linear.py``.
    """

    batch_rows = 0

    def __init__(self, chain: FastChain, loss: Loss, max_grad_norm: float) -> None:
        self._chain, self._loss, self._max_grad_norm = chain, loss, max_grad_norm
        self.rows_not_finite = 0
        if loss in KNOWN_LOSSES and (linear := chain.only_linear) is not None:
            linear.exact = True

    def clipped_sum(
        self,
        features: Tensor,
        labels: Tensor,
        sums: list[Tensor],
        accumulate: bool,
        filling: int = 0,
    ) -> Callable[[], Tensor]:
        size = features.shape[0]
        counted = size - filling
        with torch.no_grad():
            squares = kept = self._pass(features, labels)[:counted]
            if not all_finite(squares):
                # A factor of zero does not silence NaN, so the row has to leave the batch.
                finite = squares.isfinite()
                self.rows_not_finite += int((~finite).sum())
                if not bool(finite.any()):  # not every module takes a batch of no rows
                    self._chain.forget()
                    for total in () if accumulate else sums:
                        total.zero_()
                    return squares.sqrt
                good = filled(finite.nonzero().squeeze(1), size)
                kept = self._pass(features[good], labels[good])[: int(finite.sum())]
            self._chain.write_clipped_sum(kept, self._max_grad_norm, sums, accumulate)
            self._chain.forget()
        return squares.sqrt

    def _pass(self, features: Tensor, labels: Tensor) -> Tensor:
        outputs = self._chain.forward(features)
        gradient = output_gradient(self._loss, outputs, labels)
        if gradient.shape != outputs.shape:
            raise PrivacyError(
                f"output_gradient of shape {tuple(gradient.shape)} for outputs of shape {tuple(outputs.shape)}; "
                "return one gradient per output"
            )
        return self._chain.backward(
            gradient.to(features.dtype) if features.is_floating_point() else gradient
        )

    def close(self) -> None:
        """Nothing to do: no hook was put on the module."""


def fast_numbers(loss: Loss) -> Callable[[nn.Module, Tensor, Tensor], list[Tensor]]:
    """What the sums of a batch are made of, rows first: for ``batch_invariance.py``."""

    def numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
        chain = chain_of(module)[0] or called_layers_of(module)[0]
        if chain is None:
            raise ValueError("the copy of a model is another model")
        chain.multiple = 1
        with torch.no_grad():
            squares = FastGradients(chain, loss, 1.0)._pass(features, labels)
            return [squares, *(values.clone() for values in chain.kept())]

    return numbers
