"""The fast path as an Opacus pair: a GradSampleModule and a DPOptimizer for a training loop written for Opacus.

The forward pass is one autograd node over the whole tape. Its backward keeps the gradients at the layers' outputs, and
``optimizer.step()`` clips them, adds noise and steps. Per-sample gradients (``p.grad_sample``) never exist.
"""

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import Tensor, nn

from homo_dp.privacy.dp_optimizer import SecureDPOptimizer
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.fast_tape import FastTape, all_finite, tape_of


class FastGradSampleModule(AbstractGradSampleModule):  # type: ignore[misc]
    """A wrapped module whose gradients are clipped on the fast path.

    Guarantees:
        - as FastTape, for one forward and one backward pass per step; anything else is refused.
    """

    def __init__(self, m: nn.Module, *, batch_first: bool = True, loss_reduction: str = "mean") -> None:
        super().__init__(m, batch_first=batch_first, loss_reduction=loss_reduction)
        tape, reason = tape_of(m)
        if tape is None or not batch_first:
            raise PrivacyError(f"grad_sample_mode=fast: {reason}; use grad_sample_mode=auto")
        self._tape: FastTape = tape
        self._anchor = torch.zeros((), requires_grad=True)  # makes autograd call backward; gets no gradient
        self._passes = 0
        self._inputs: Tensor | None = None
        self._gradient: Tensor | None = None
        self._squares: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            plain: Tensor = self._module(inputs)
            return plain
        if inputs.requires_grad:
            raise PrivacyError("grad_sample_mode=fast gives no gradient at the inputs; use grad_sample_mode=hooks")
        outputs: Tensor = _TapeFunction.apply(self._anchor, inputs, self)  # type: ignore[no-untyped-call]
        return outputs

    def run(self, inputs: Tensor) -> tuple[int, Tensor]:
        """Forward over the tape; the number names this pass."""
        self._passes += 1
        self._inputs, self._gradient, self._squares = inputs, None, None
        return self._passes, self._tape.forward(inputs)

    def capture(self, number: int, gradient: Tensor) -> None:
        """Backward over the tape, given the gradient of the reduced loss at the outputs."""
        if number != self._passes or self._squares is not None:
            raise PrivacyError(
                "grad_sample_mode=fast takes one forward and one backward pass a step; use grad_sample_mode=hooks"
            )
        self._gradient = gradient * len(gradient) if self.loss_reduction == "mean" else gradient
        self._squares = self._tape.backward(self._gradient)

    def take_clipped_sum(self, clip_norm: float, sums: list[Tensor]) -> None:
        """Write the clipped sum of the last pass, once."""
        squares, inputs, gradient = self._squares, self._inputs, self._gradient
        if squares is None or inputs is None or gradient is None:
            raise ValueError("no gradients since the last step: call backward() on the loss before optimizer.step()")
        self._inputs = self._gradient = self._squares = None
        if not all_finite(squares):
            finite = squares.isfinite()
            self._tape.forward(inputs[finite])
            squares = self._tape.backward(gradient[finite])
        self._tape.write_clipped_sum(squares, clip_norm, sums, accumulate=False)
        self._tape.forget()

    def remove_hooks(self) -> None:
        """There are none."""


class FastDPOptimizer(SecureDPOptimizer):
    """DPOptimizer that takes clipped sums from a FastGradSampleModule instead of per-sample gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, module: FastGradSampleModule, **options: Any) -> None:
        super().__init__(optimizer, **options)
        self._source = module
        order = {id(parameter): index for index, parameter in enumerate(module._tape.parameters)}
        self._order = [order[id(parameter)] for parameter in self.params]

    @property
    def accumulated_iterations(self) -> int:
        return 1

    def clip_and_accumulate(self) -> None:
        with torch.no_grad():
            sums = [torch.zeros_like(parameter) for parameter in self._source._tape.parameters]
            self._source.take_clipped_sum(self.max_grad_norm, sums)
            for parameter, index in zip(self.params, self._order, strict=True):
                if parameter.summed_grad is None:
                    parameter.summed_grad = sums[index]
                else:  # in place: a sum that was released before zero_grad() keeps Opacus' mark, and is refused
                    parameter.summed_grad += sums[index]

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        self.clip_and_accumulate()
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            return False
        self.add_noise()
        self.scale_grad()
        if self.step_hook:
            self.step_hook(self)
        self._is_last_step_skipped = False
        return True


class _TapeFunction(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, anchor: Tensor, inputs: Tensor, module: FastGradSampleModule) -> Tensor:
        context.module = module
        context.number, outputs = module.run(inputs)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None]:
        context.module.capture(context.number, gradients[0])
        return None, None, None
