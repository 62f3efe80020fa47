"""Per-sample losses that know their own gradient at the outputs, so that the fast path needs no
autograd.

Each is called as ``loss(outputs, labels)`` and returns one loss per row, shape ``(n,)``. Any other
callable of that form works too: its output gradient is then taken by autograd, at the outputs only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError

Loss = Callable[[Tensor, Tensor], Tensor]


class KnownLoss(Protocol):
    """A per-sample loss with a closed form for its gradient with respect to the outputs."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor: ...

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Gradient of each row's loss at its outputs, shaped like ``outputs``."""


class _BinaryLogistic:
    """Cross-entropy of one logit per row, shape (n,) or (n, 1), against labels in {0, 1}.

    >>> binary_logistic(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([0.6931])
    >>> binary_logistic.output_gradient(torch.tensor([[0.0]]), torch.tensor([1.0]))
    tensor([[-0.5000]])
    """

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = _one_column(outputs, "binary_logistic")
        return F.binary_cross_entropy_with_logits(
            outputs, labels.to(outputs.dtype).reshape(-1), reduction="none"
        )

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.dim() != 1:
            _one_column(outputs, "binary_logistic")
        # sub_ takes labels of any other type, in fewer calls than to convert them
        if labels.dtype is torch.bool:
            labels = labels.to(outputs.dtype)
        return outputs.sigmoid().sub_(
            labels if labels.shape == outputs.shape else labels.reshape(outputs.shape)
        )


class _SoftmaxCrossEntropy:
    """Cross-entropy of logits (n, classes) against class numbers (n,).

    >>> softmax_cross_entropy.output_gradient(torch.zeros(1, 2), torch.tensor([1]))
    tensor([[ 0.5000, -0.5000]])
    """

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none")

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        # Softmax by hand: torch's own is three times slower on rows as short as ten classes.
        gradient = (outputs - outputs.amax(1, keepdim=True)).exp_()
        gradient.div_(gradient.sum(1, keepdim=True))
        return gradient.scatter_add_(
            1, labels.unsqueeze(1), gradient.new_full((1, 1), -1.0).expand(len(labels), 1)
        )


class _SquaredError:
    """Squared distance of outputs (n,), (n, 1) or (n, k) to labels of the same size, summed over k.

    >>> squared_error(torch.tensor([3.0]), torch.tensor([1.0]))
    tensor([4.])
    """

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        squares = self._difference(outputs, labels).square()
        return squares if squares.dim() == 1 else squares.flatten(1).sum(1)

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._difference(outputs, labels).mul_(2.0)

    @staticmethod
    def _difference(outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.numel() != labels.numel():
            raise PrivacyError(
                f"outputs of shape {tuple(outputs.shape)} do not match labels of shape "
                f"{tuple(labels.shape)}; give one label per output"
            )
        return outputs - labels.reshape(outputs.shape)


binary_logistic = _BinaryLogistic()
softmax_cross_entropy = _SoftmaxCrossEntropy()
squared_error = _SquaredError()
KNOWN_LOSSES: tuple[KnownLoss, ...] = (binary_logistic, softmax_cross_entropy, squared_error)
"""Losses of which it is known that they treat each row alone."""


@dataclass(frozen=True)
class OffsetLoss:
    """A known loss of outputs to which an offset of each row is added; offsets are the last
    ``outputs`` columns of the labels.

    >>> loss = OffsetLoss(squared_error, 1)
    >>> loss(torch.tensor([[1.0]]), torch.tensor([[5.0, 2.0]]))
    tensor([4.])
    """

    loss: Loss
    outputs: int

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss(*self._moved(outputs, labels))

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return output_gradient(self.loss, *self._moved(outputs, labels))

    def _moved(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        truth, offsets = labels[:, : -self.outputs], labels[:, -self.outputs :]
        if self.loss is softmax_cross_entropy:
            truth = truth[:, 0].long()
        return outputs + offsets.reshape(outputs.shape), truth


def is_known(loss: Loss | None) -> bool:
    """Whether it is known that a loss treats each row alone, and what its gradient is."""
    return loss in KNOWN_LOSSES or (isinstance(loss, OffsetLoss) and loss.loss in KNOWN_LOSSES)


def per_sample(losses: Tensor, rows: int) -> Tensor:
    """Return the losses as one number per row, shape (rows,); refuse anything that is not one loss
    per row.

    Guarantees:
        - a loss of shape (n, 1) is reshaped: multiplied with (n,) factors it would broadcast to (n,
          n), and one record could move the clipped sum by hundreds of C.

    >>> per_sample(torch.ones(3, 1), 3).shape
    torch.Size([3])
    """
    if losses.shape == (rows,):
        return losses
    if losses.dim() > 1 and losses.shape[0] == rows and losses.numel() == rows:
        return losses.reshape(rows)
    raise PrivacyError(
        f"loss of shape {tuple(losses.shape)} for {rows} rows is not one loss per row; "
        "return shape (n,) with reduction='none', summed over all other dimensions"
    )


def output_gradient(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """Gradient of each row's loss at its outputs: in closed form if the loss knows it, else by
    autograd.

    Guarantees:
        - gradients of the parameters are never taken here, so no unclipped sum exists;
        - a loss that mixes rows would break the bound and cannot be seen here: it is probed when
          training is set up.
    """
    known = getattr(loss, "output_gradient", None)
    if known is not None:
        gradient: Tensor = known(outputs, labels)
        return gradient
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = per_sample(loss(leaf, labels), len(leaf))
        (result,) = torch.autograd.grad(losses.sum(), leaf)
    return result


def _one_column(outputs: Tensor, name: str) -> Tensor:
    if outputs.dim() == 1:
        return outputs
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        return outputs.squeeze(1)
    raise PrivacyError(
        f"{name} takes outputs of shape (n,) or (n, 1), not {tuple(outputs.shape)}; use one logit "
        "a row"
    )
