"""Clipped sums by the fast path, for PrivateTraining: forward, output gradient, backward, one product a layer."""

from collections.abc import Callable

import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.tape import FastTape, all_finite
from homo_dp.privacy.gradients.losses import Loss, output_gradient


class FastGradients:
    """ClippedGradients of a tape; the module is read and never touched, so there are no hooks to break.

    Guarantees:
        - as FastTape; a row whose gradient is not finite leaves the batch, and is counted.
    """

    batch_rows = 0

    def __init__(self, tape: FastTape, loss: Loss, max_grad_norm: float) -> None:
        self._tape, self._loss, self._max_grad_norm = tape, loss, max_grad_norm
        self.rows_not_finite = 0

    def clipped_sum(
        self, features: Tensor, labels: Tensor, sums: list[Tensor], accumulate: bool
    ) -> Callable[[], Tensor]:
        with torch.no_grad():
            squares = kept = self._pass(features, labels)
            if not all_finite(squares):
                # A factor of zero does not silence NaN, so the row has to leave the batch.
                finite = squares.isfinite()
                self.rows_not_finite += int((~finite).sum())
                if not bool(finite.any()):  # not every module takes a batch of no rows
                    self._tape.forget()
                    for total in () if accumulate else sums:
                        total.zero_()
                    return squares.sqrt
                kept = self._pass(features[finite], labels[finite])
            self._tape.write_clipped_sum(kept, self._max_grad_norm, sums, accumulate)
            self._tape.forget()
        return squares.sqrt

    def _pass(self, features: Tensor, labels: Tensor) -> Tensor:
        outputs = self._tape.forward(features)
        gradient = output_gradient(self._loss, outputs, labels)
        if gradient.shape != outputs.shape:
            raise PrivacyError(
                f"output_gradient of shape {tuple(gradient.shape)} for outputs of shape {tuple(outputs.shape)}; "
                "return one gradient per output"
            )
        return self._tape.backward(gradient)

    def close(self) -> None:
        """Nothing to take off."""
