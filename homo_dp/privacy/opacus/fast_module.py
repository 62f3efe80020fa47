"""The fast path as an Opacus pair: a GradSampleModule and a DPOptimizer for a training loop written for Opacus.

The forward pass is one autograd node over the whole chain. Its backward keeps the gradients at the layers' outputs, and
``optimizer.step()`` clips them, adds noise and steps. Per-sample gradients (``p.grad_sample``) never exist.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import FastChain, all_finite, chain_of
from homo_dp.privacy.gradients.validation import check_has_noise
from homo_dp.privacy.noise.grid import Grid
from homo_dp.privacy.opacus.dp_optimizer import SecureDPOptimizer, check_trained
from homo_dp.privacy.training.batches_and_noise import NoiseVectors
from homo_dp.privacy.training.sgd import step_optimizer, views

_ENDLESS = 1 << 30  # steps: an Opacus loop does not say how many it will take


class FastGradSampleModule(AbstractGradSampleModule):  # type: ignore[misc]
    """A wrapped module whose gradients are clipped on the fast path.

    Guarantees:
        - as FastChain, for one forward and one backward pass per step; anything else is refused.
    """

    def __init__(
        self,
        m: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        chain: FastChain | None = None,
    ) -> None:
        super().__init__(m, batch_first=batch_first, loss_reduction=loss_reduction)
        chain, reason = chain_of(m) if chain is None else (chain, "batch_first=False")
        if chain is None or not batch_first:
            raise PrivacyError(f"grad_sample_mode=fast: {reason}; use grad_sample_mode=auto")
        self.passes = Passes(chain, loss_reduction)
        self._anchor = torch.zeros(
            (), requires_grad=True
        )  # makes autograd call backward; gets no gradient

    def forward(self, inputs: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            plain: Tensor = self._module(inputs)
            return plain
        if inputs.requires_grad:
            raise PrivacyError(
                "grad_sample_mode=fast gives no gradient at the inputs; use grad_sample_mode=hooks"
            )
        outputs: Tensor = _TapeFunction.apply(self._anchor, inputs, self.passes)  # type: ignore[no-untyped-call]
        return outputs

    def remove_hooks(self) -> None:
        """Nothing to do: the fast path uses no hooks."""


class Passes:
    """What is kept between forward, backward and step. No attributes of the module: torch takes long to set those."""

    def __init__(self, chain: FastChain, loss_reduction: str) -> None:
        self.chain = chain
        self._mean = loss_reduction == "mean"
        self._count = 0
        self._inputs: Tensor | None = None
        self._gradient: Tensor | None = None
        self._squares: Tensor | None = None

    def forward(self, inputs: Tensor) -> tuple[int, Tensor]:
        """Forward over the chain; the number names this pass."""
        self._count += 1
        self._inputs, self._gradient, self._squares = inputs, None, None
        return self._count, self.chain.forward(inputs)

    def backward(self, number: int, gradient: Tensor) -> None:
        """Backward over the chain, given the gradient of the reduced loss at the outputs."""
        if number != self._count or self._squares is not None:
            raise PrivacyError(
                "grad_sample_mode=fast takes one forward and one backward pass a step; use grad_sample_mode=hooks"
            )
        self._gradient = gradient * len(gradient) if self._mean else gradient
        self._squares = self.chain.backward(self._gradient)

    @property
    def ready(self) -> bool:
        """Whether there is a sum to take."""
        return self._squares is not None

    def take_clipped_sum(self, clip_norm: float, sums: list[Tensor], accumulate: bool) -> None:
        """Write (or add) the clipped sum of the last pass, once."""
        squares, inputs, gradient = self._squares, self._inputs, self._gradient
        if squares is None or inputs is None or gradient is None:
            raise ValueError(
                "no gradients since the last step: call backward() on the loss before optimizer.step()"
            )
        self._inputs = self._gradient = self._squares = None
        if not all_finite(squares):
            finite = squares.isfinite()
            if not bool(finite.any()):  # not every module takes a batch of no rows
                self.chain.forget()
                for total in () if accumulate else sums:
                    total.zero_()
                return
            self.chain.forward(inputs[finite])
            squares = self.chain.backward(gradient[finite])
        self.chain.write_clipped_sum(squares, clip_norm, sums, accumulate)
        self.chain.forget()


class FastDPOptimizer(SecureDPOptimizer):
    """DPOptimizer that takes clipped sums from a FastGradSampleModule instead of per-sample gradients.

    All sums lie in one tensor, so that noise, division and checks cost one call each, however many parameters there
    are. Noise is drawn ahead of need.

    Guarantees:
        - as SecureDPOptimizer; a sum is released once, and zero_grad() has to come before the next.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, module: FastGradSampleModule, **options: Any
    ) -> None:
        super().__init__(optimizer, **options)
        self._passes = module.passes
        self._chain_order = cast("list[nn.Parameter]", self._passes.chain.parameters)
        if {id(parameter) for parameter in self._chain_order} != set(self.trained):
            raise PrivacyError(
                "grad_sample_mode=fast trains all trainable parameters; use grad_sample_mode=hooks"
            )
        size = sum(parameter.numel() for parameter in self._chain_order)
        self._sum = torch.zeros(size, dtype=torch.float64, device=self._chain_order[0].device)
        self._sums = views(self._sum, self._chain_order)
        self._released = False
        self._gradient: Tensor | None = None
        self._gradients: list[Tensor] = []
        self._vectors: NoiseVectors | None = None

    @property
    def accumulated_iterations(self) -> int:
        return 1

    def clip_and_accumulate(self) -> None:
        accumulate = self._chain_order[0].summed_grad is not None  # type: ignore[attr-defined]
        if accumulate and self._released and self._passes.ready:
            raise ValueError(
                "the last sum was released already: call optimizer.zero_grad() before the next pass"
            )
        with torch.no_grad():
            self._passes.take_clipped_sum(self.max_grad_norm, self._sums, accumulate)
        self._released = False
        for parameter, clipped in zip(self._chain_order, self._sums, strict=True):
            parameter.summed_grad = clipped  # type: ignore[attr-defined]

    def add_noise(self) -> None:
        check_trained(self)
        if self._released:
            raise ValueError(
                "the last sum was released already: call optimizer.zero_grad() before the next pass"
            )
        if not all_finite(self._sum):
            raise PrivacyError(
                "a clipped sum of gradients is not finite; lower the learning rate or clean the data"
            )
        sigma = check_has_noise(float(self.noise_multiplier)) * float(self.max_grad_norm)
        if self._vectors is None:
            self._vectors = NoiseVectors(self.noise_source, len(self._sum), _ENDLESS)
        self._released = True
        noisy = torch.add(self._sum, self._vectors.next().to(self._sum.device), alpha=sigma)
        self._gradient = Grid.of(sigma).round_(noisy).to(self._chain_order[0].dtype)
        self._gradients = views(self._gradient, self._chain_order)
        for parameter, gradient in zip(self._chain_order, self._gradients, strict=True):
            parameter.grad = gradient
        self.applied_sigma = sigma

    def scale_grad(self) -> None:
        if self.loss_reduction == "mean" and self._gradient is not None:
            self._gradient.div_(self.expected_batch_size)

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

    def step(self, closure: Callable[[], float] | None = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self.pre_step():
            step_optimizer(self.original_optimizer, self._chain_order, self._gradients)

    def zero_grad(self, set_to_none: bool = False) -> None:
        for parameter in self._chain_order:
            parameter.grad_sample = None  # type: ignore[attr-defined]
            if not self._is_last_step_skipped:
                parameter.summed_grad = None  # type: ignore[attr-defined]
        own = self._gradient is not None and all(
            parameter.grad is gradient
            for parameter, gradient in zip(self._chain_order, self._gradients, strict=True)
        )
        if own and self._gradient is not None and not set_to_none:
            self._gradient.zero_()
        else:
            self.original_optimizer.zero_grad(set_to_none)


class _TapeFunction(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, anchor: Tensor, inputs: Tensor, passes: Passes) -> Tensor:
        context.passes = passes
        context.number, outputs = passes.forward(inputs)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None]:
        context.passes.backward(context.number, gradients[0])
        return None, None, None
