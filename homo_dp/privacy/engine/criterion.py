"""Criteria for Opacus' own modes, and what surrounds a forward pass of theirs.

A batch is filled up before the module sees it and its outputs are cut to the rows that count, so
that a row has the same bits at every position. A criterion that ``make_private`` returned takes the
uncut outputs again: rows that fill up have a loss of zero.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
    DPTensorFastGradientClipping,
)
from torch import Tensor, nn

from homo_dp.privacy.engine.loader import CurrentBlock
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import filled
from homo_dp.privacy.gradients.fast.invariant_products import WideProducts
from homo_dp.privacy.gradients.ghost import clip_in_second_pass
from homo_dp.privacy.gradients.losses import Loss, is_known, per_sample
from homo_dp.privacy.gradients.row_independence import FIRST_STEPS, compare_losses
from homo_dp.privacy.gradients.row_sums import BELOW


def rows_loss(criterion: Any) -> Loss:
    """A criterion as one that gives one loss a row; one of torch's kind is asked for no reduction.

    >>> rows_loss(nn.MSELoss())(torch.ones(2, 1), torch.zeros(2, 1)).shape
    torch.Size([2, 1])
    """
    if is_known(criterion) or not hasattr(criterion, "reduction"):
        loss: Loss = criterion
        return loss
    return _Unreduced(criterion)


class _Unreduced:
    """Calls a criterion with ``reduction`` switched off, and leaves it as it was."""

    def __init__(self, criterion: Any) -> None:
        self._criterion = criterion

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        before = self._criterion.reduction
        self._criterion.reduction = "none"
        try:
            losses: Tensor = self._criterion(outputs, labels)
        finally:
            self._criterion.reduction = before
        return losses


class WithReduction:
    """A loss of one number a row as Opacus' ghost clipping takes it, with the attribute that it
    sets.
    """

    def __init__(self, loss: Loss, reduction: str) -> None:
        self._loss, self.reduction = loss, reduction

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._loss(outputs, labels)


class FilledForward:
    """Hooks on the module that a loop calls: batches are filled up going in and cut coming out.

    Guarantees:
        - products of Linear layers are as wide as ``invariant_products.py`` asks for.
    """

    def __init__(self, called: nn.Module, current: CurrentBlock) -> None:
        self.current = current
        self._whole = self._cut = torch.zeros(0)
        self.rows: int | None = None  # of the block that went in last, without those that fill up
        self.size = 0  # with them
        self._wide: list[WideProducts] = []
        called.register_forward_pre_hook(self._before, prepend=True)
        called.register_forward_hook(self._after, always_call=True)

    def whole(self, outputs: Tensor) -> Tensor:
        """Outputs as the loop passes them, with those of rows that fill up."""
        return self._whole if outputs is self._cut else outputs

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        wide = WideProducts()
        wide.__enter__()  # type: ignore[no-untyped-call]
        self._wide.append(wide)
        self.rows, block = None, self.current.block
        if not module.training or block is None or not inputs or inputs[0] is not block.features:
            return None
        self.rows, self.size = len(block.features), len(block.filled_features)
        return (block.filled_features, *inputs[1:])

    def counted(self, outputs: Tensor) -> int:
        """How many of these outputs are of rows that count: a model may give several, uncut."""
        return len(outputs) if self.rows is None else min(len(outputs), self.rows)

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Any:
        if self._wide:
            self._wide.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        block = self.current.block
        if block is None or not inputs or inputs[0] is not block.filled_features:
            return None
        if not isinstance(outputs, Tensor):
            return None
        self._whole, self._cut = outputs, outputs[: len(block.features)]
        return self._cut


class RowCriterion:
    """The criterion of the hooks, functorch and expanded-weights modes: the mean (or sum) of one
    loss a row.

    The backward pass is that of the sum whatever the value is: Opacus multiplies gradients of a
    mean by the rows of the batch, and those that fill it up would count.
    """

    def __init__(self, forward: FilledForward, loss: Loss, loss_reduction: str) -> None:
        self._forward, self._loss, self._mean = forward, loss, loss_reduction == "mean"

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        forward = self._forward
        whole, rows = forward.whole(outputs), forward.counted(outputs)
        labels = forward.current.labels_of(labels, len(whole))
        losses = per_sample(self._loss(whole, labels), len(whole))[:rows]
        reduced: Tensor = _BackwardOfSum.apply(losses, self._mean, forward.current)  # type: ignore[no-untyped-call]
        return reduced


class _BackwardOfSum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, losses: Tensor, mean: bool, current: CurrentBlock) -> Tensor:
        context.rows, context.current = len(losses), current
        return losses.mean() if mean and len(losses) else losses.sum()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        context.current.took_criterion = True
        return gradients[0].expand(context.rows), None, None


class GhostLoss(DPLossFastGradientClipping):  # type: ignore[misc]
    """Opacus' criterion for ghost clipping, for losses that are one number per row.

    Guarantees:
        - per-sample losses of shape (n, 1) are reshaped to (n,), other shapes refused: stock Opacus
          multiplies them with (n,) factors, which broadcasts to (n, n) and lets one record move the
          clipped sum by hundreds of C.
    """

    def __init__(self, *args: Any, forward: FilledForward | None = None) -> None:
        """As Opacus; ``forward`` fills up batches, where the loader is ours."""
        super().__init__(*args)
        self._forward, self._compared = forward, 0

    def __call__(self, *args: Any, shape: Any = None, **kwargs: Any) -> "GhostTensor":
        if self.module.max_grad_norm != self.optimizer.max_grad_norm:
            raise PrivacyError(
                f"max_grad_norm={self.module.max_grad_norm} of the module is not "
                f"{self.optimizer.max_grad_norm} of the optimizer; set both, or noise would not "
                "fit the clipping"
            )
        if kwargs:
            args = (*args, *(kwargs.pop(name) for name in ("input", "target") if name in kwargs))
        if kwargs:
            raise PrivacyError(f"{next(iter(kwargs))} is no argument of a criterion of ghost mode")
        if shape is None and len(args) == 2:
            if self._forward is not None:
                return self._of_block(self._forward, *args)
            self._compare(*args)
        plain = super().__call__(*args, shape=shape)
        return GhostTensor.checked(plain, int(shape[0]) if shape is not None else len(args[0]))

    def _of_block(self, forward: FilledForward, outputs: Tensor, labels: Tensor) -> "GhostTensor":
        """The losses of a block; those of rows that fill it up are zero."""
        whole, rows = forward.whole(outputs), forward.counted(outputs)
        labels = forward.current.labels_of(labels, len(whole))
        return self._counted(whole, labels, rows, lambda kept: self._again(kept, labels))

    def _counted(
        self,
        outputs: Tensor,
        labels: Tensor,
        rows: int,
        again: Callable[[Tensor], "GhostTensor"] | None,
    ) -> "GhostTensor":
        plain, forward = super().__call__(outputs, labels), self._forward
        losses = per_sample(plain.loss_per_sample, len(outputs))
        if forward is not None and forward.rows is not None and len(losses) < forward.size:
            losses = F.pad(losses, (0, forward.size - len(losses)))
        if rows < len(losses):
            losses = losses * (torch.arange(len(losses), device=losses.device) < rows)
        found = GhostTensor(plain.module, plain.optimizer, losses, plain.loss_reduction)
        found.rows, found.again = rows, again
        return found

    def _again(self, kept: Tensor, labels: Tensor) -> "GhostTensor":
        """The losses of some rows of the block alone."""
        block = self._forward.current.block if self._forward is not None else None
        if block is None:
            raise ValueError("rows are left out of a block that was never handed out")
        good = filled(kept, len(labels))
        with torch.enable_grad():
            return self._counted(
                self.module(block.filled_features[good]), labels[good], len(kept), None
            )

    def _compare(self, outputs: Any, labels: Any) -> None:
        """Raise if rows meet in the criterion, in the first batches; torch's own are known to
        treat rows alone.
        """
        known = type(self.criterion).__module__ == "torch.nn.modules.loss"
        if known or self._compared == FIRST_STEPS or not len(outputs):
            return
        self._compared += 1
        plain = super().__call__
        compare_losses(lambda rows, targets: plain(rows, targets).loss_per_sample, outputs, labels)


class GhostTensor(DPTensorFastGradientClipping):  # type: ignore[misc]
    """A loss that stays one number per row through arithmetic, until ``backward``."""

    rows: int
    again: Callable[[Tensor], "GhostTensor"] | None = None  # the losses of some rows alone

    @classmethod
    def checked(cls, plain: Any, rows: int) -> "GhostTensor":
        """Take over an Opacus loss after checking its shape."""
        losses = per_sample(plain.loss_per_sample, rows)
        checked = cls(plain.module, plain.optimizer, losses, plain.loss_reduction)
        checked.rows = rows
        return checked

    def backward(self) -> None:
        """Leave the clipped sum in ``p.grad``, as ``clip_in_second_pass`` does."""
        self.optimizer.zero_grad()
        norms = self._clip()
        finite = norms.isfinite()
        if not bool(finite.all()):
            if self.again is None:
                raise PrivacyError(
                    "a row's gradient is not finite; use grad_sample_mode=hooks, or clean the data"
                )
            # A factor of zero does not silence NaN in a backward pass, so the row has to go.
            kept = finite.nonzero().squeeze(1)
            self.optimizer.rows_not_finite += len(norms) - len(kept)
            if len(kept):
                self.again(kept)._clip()
        self.module.per_sample_gradient_norms = norms
        self.optimizer.note_clipped(norms)

    def _clip(self) -> Tensor:
        """Clip in a second pass; the norms of the rows that count."""
        # The margin that BELOW leaves covers the rounding of the sum.
        norms = clip_in_second_pass(
            self.module,
            self.loss_per_sample,
            self.optimizer.params,
            self.optimizer.max_grad_norm * BELOW,
            mean=self.loss_reduction == "mean",
        )
        return norms[: self.rows]

    def detach(self) -> Tensor:
        """The mean (or sum) of the losses of the rows."""
        losses: Tensor = self.loss_per_sample.detach()[: self.rows]
        return losses.mean() if self.loss_reduction == "mean" else losses.sum()

    def _like(self, plain: Any) -> "GhostTensor":
        found = GhostTensor.checked(plain, len(self.loss_per_sample))
        found.rows = self.rows
        return found

    def __mul__(self, other: Any) -> "GhostTensor":
        return self._like(super().__mul__(_plain(other)))

    def __rmul__(self, other: Any) -> "GhostTensor":
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> "GhostTensor":
        return self._like(super().__truediv__(_plain(other)))

    def __add__(self, other: Any) -> "GhostTensor":
        return self._like(super().__add__(_plain(other)))

    def __radd__(self, other: Any) -> "GhostTensor":
        return self.__add__(other)

    def __sub__(self, other: Any) -> "GhostTensor":
        return self._like(super().__sub__(_plain(other)))

    def __rsub__(self, other: Any) -> "GhostTensor":
        return self._like(super().__rsub__(_plain(other)))

    def __neg__(self) -> "GhostTensor":
        return self._like(super().__neg__())


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise PrivacyError(
            "grad_sample_mode=ghost: a penalty on the weights inside the loss would not be "
            "clipped; use weight_decay of the optimizer, which is added after the noise"
        )
    return value.loss_per_sample if isinstance(value, DPTensorFastGradientClipping) else value
