"""The fast path as an Opacus pair: a GradSampleModule and a DPOptimizer.

The backward pass keeps the gradients at the layers' outputs, and ``optimizer.step()`` clips them,
adds noise and steps. Per-sample gradients (``p.grad_sample``) never exist. Under a criterion that
``make_private`` returned, the gradient at the outputs is known without autograd; under one of the
loop's own, the forward pass is one autograd node over all layers.
"""

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import Tensor, nn

from homo_dp.privacy.engine.dp_optimizer import SecureDPOptimizer, check_trained
from homo_dp.privacy.engine.drawn_ahead import PoissonBatches
from homo_dp.privacy.engine.passes import Passes
from homo_dp.privacy.engine.release import ClippedSum, ForStep
from homo_dp.privacy.engine.sgd import plain_sgd_step, views
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import all_finite
from homo_dp.privacy.gradients.losses import Loss, per_sample
from homo_dp.privacy.noise.source import NoiseSource


class FastGradSampleModule(AbstractGradSampleModule):  # type: ignore[misc]
    """A wrapped module whose gradients are clipped on the fast path.

    Guarantees:
        - as its passes, for one forward and one backward pass per step; anything else is refused.
    """

    def __init__(
        self,
        m: nn.Module,
        passes: Passes,
        *,
        loss_reduction: str = "mean",
        closed_form: bool = False,
    ) -> None:
        """Wrap a module.

        Args:
            m: The module.
            passes: How its gradients are computed.
            loss_reduction: ``mean`` or ``sum``: what the loop's own criterion does.
            closed_form: Whether the criterion of ``make_private`` takes the backward pass, without
                autograd.
        """
        super().__init__(m, batch_first=True, loss_reduction=loss_reduction)
        self.passes = passes
        self._closed_form = closed_form
        # makes autograd call backward; gets no gradient
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, inputs: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            plain: Tensor = self._module(inputs)
            return plain
        if inputs.requires_grad:
            raise PrivacyError(
                "grad_sample_mode=fast gives no gradient at the inputs; use grad_sample_mode=hooks"
            )
        if self._closed_form:
            return self.passes.forward(inputs)[1]
        outputs: Tensor = _AutogradNode.apply(  # type: ignore[no-untyped-call]
            self._anchor, inputs, self.passes, self.loss_reduction == "mean"
        )
        return outputs

    def remove_hooks(self) -> None:
        """Nothing to do: the fast path uses no hooks."""


class FastCriterion:
    """The criterion of the fast path, for a loss that is one number a row.

    Its value has ``backward()`` and ``item()``, as a loss of torch. ``backward`` takes the gradient
    at the outputs in closed form where the loss knows it, else by autograd over the loss alone.
    """

    def __init__(self, passes: Passes, loss: Loss, loss_reduction: str) -> None:
        self.passes, self.loss, self.mean = passes, loss, loss_reduction == "mean"

    def __call__(self, outputs: Tensor, labels: Tensor) -> "FastLossValue":
        return FastLossValue(self, outputs, labels, self.passes.number)


class FastLossValue:
    """What the criterion of the fast path gives for a batch."""

    __slots__ = ("_criterion", "_labels", "_number", "_outputs")

    def __init__(
        self, criterion: FastCriterion, outputs: Tensor, labels: Tensor, number: int
    ) -> None:
        self._criterion, self._outputs, self._labels = criterion, outputs, labels
        self._number = number

    def backward(self) -> None:
        """Keep what ``optimizer.step()`` clips."""
        criterion = self._criterion
        criterion.passes.backward_of(self._number, criterion.loss, self._labels)

    def detach(self) -> Tensor:
        """The mean (or sum) of the losses of the rows."""
        outputs = self._outputs
        losses = per_sample(self._criterion.loss(outputs, self._labels), len(outputs)).detach()
        return losses.mean() if self._criterion.mean else losses.sum()

    def item(self) -> float:
        """The same as a number."""
        return float(self.detach())


class FastDPOptimizer(SecureDPOptimizer):
    """DPOptimizer that takes clipped sums from a FastGradSampleModule instead of per-sample
    gradients.

    Guarantees:
        - as SecureDPOptimizer; a sum is released once, and zero_grad() has to come before the next.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        module: FastGradSampleModule,
        noise: NoiseSource,
        batches: PoissonBatches | None = None,
        **options: Any,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: What steps.
            module: The wrapped module, whose passes give the sums.
            noise: The source of the noise.
            batches: Draws the batches of the loader, where it is ours.
            options: As SecureDPOptimizer.
        """
        super().__init__(optimizer, noise=noise, **options)
        self._passes = module.passes
        parameters = self._passes.parameters
        if {id(parameter) for parameter in parameters} != set(self.trained):
            raise PrivacyError(
                "grad_sample_mode=fast trains all trainable parameters; use grad_sample_mode=hooks"
            )
        self.clipped = ClippedSum(parameters, self._passes.columns)
        self._for_step = ForStep(parameters, noise, batches)
        self._holds_sum = self._is_released = False
        self._gradient: Tensor | None = None
        self._gradients: list[Tensor] = []
        if self.hand_out is None:
            self._passes.before_forward(self._for_step.begin)

    @property
    def noise_cpu_seconds(self) -> float:
        """CPU time of drawing noise in other threads so far."""
        return self._for_step.producer_cpu_seconds

    @property
    def accumulated_iterations(self) -> int:
        return 1

    def clip_and_accumulate(self) -> None:
        if self._holds_sum and self._is_released and self._passes.ready:
            raise ValueError(
                "the last sum was released already: call optimizer.zero_grad() before the next pass"
            )
        norms = self._passes.take_clipped_sum(
            float(self.max_grad_norm), self.clipped, accumulate=self._holds_sum
        )
        self.rows_not_finite = self._passes.rows_not_finite
        self._note_norms(norms)
        self._holds_sum, self._is_released = True, False

    def add_noise(self) -> None:
        check_trained(self)
        if self._is_released:
            raise ValueError(
                "the last sum was released already: call optimizer.zero_grad() before the next pass"
            )
        self._is_released = True
        total = self.clipped.total
        if not self.clipped.finite and not all_finite(total):
            self._count_as_zeros([total])
        self.applied_sigma = sigma = self.sigma
        self.noise_multipliers.add(float(self.noise_multiplier))
        if self.hand_out is not None:
            self.released = self.hand_out.of(total)
            return
        divisor = self.expected_batch_size if self.loss_reduction == "mean" else 1.0
        own = self._own_gradient()
        gradient = self._for_step.of(total, sigma, float(divisor), own)
        if own is None:
            self._gradient = gradient
            self._gradients = views(gradient, self.clipped.parameters)
            for parameter, part in zip(self.clipped.parameters, self._gradients, strict=True):
                parameter.grad = part

    def scale_grad(self) -> None:
        """Nothing to do: noise, grid and division are one pass over the sum."""

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Whether the wrapped optimizer has still to step, by ``DPOptimizer.step``.

        Plain SGD has moved the weights by then: its own step costs more than a small model's
        gradient.
        """
        self._check_fresh()
        self.clip_and_accumulate()
        skipped = self._check_skip_next_step()
        self._is_last_step_skipped = self._batch_goes_on = skipped
        if skipped:
            return False
        self.add_noise()
        if self.step_hook:
            self.step_hook(self)
        if self.hand_out is not None:
            return False
        return not plain_sgd_step(self.original_optimizer, self.clipped.parameters, self._gradients)

    def zero_grad(self, set_to_none: bool = False) -> None:
        if not self._is_last_step_skipped:
            self._holds_sum = False
        own = None if set_to_none else self._own_gradient()
        if own is not None:
            own.zero_()
        else:
            self.original_optimizer.zero_grad(set_to_none)

    def _own_gradient(self) -> Tensor | None:
        """All gradients as one tensor, if they are still those of the last step."""
        if self._gradient is None:
            return None
        for parameter, gradient in zip(self.clipped.parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:
                return None
        return self._gradient


class _AutogradNode(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, anchor: Tensor, inputs: Tensor, passes: Passes, mean: bool) -> Tensor:
        context.passes, context.mean = passes, mean
        context.number, outputs = passes.forward(inputs)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None, None]:
        (gradient,) = gradients
        summed = gradient * len(gradient) if context.mean else gradient
        context.passes.backward(context.number, summed)
        return None, None, None, None
