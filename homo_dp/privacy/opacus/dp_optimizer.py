"""Opacus' optimisers with noise from our source instead of a torch generator, and no way through for NaN.

Opacus draws secure noise from ``torchcsprng``, which has no build for a current torch; everything else of its
optimisers (skipped steps for physical batches, the accounting hook, the wrapped optimiser) is used as it is.
"""

from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
    DPTensorFastGradientClipping,
)

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import clip_factors, row_norms
from homo_dp.privacy.gradients.ghost import clip_in_second_pass
from homo_dp.privacy.gradients.losses import per_sample
from homo_dp.privacy.gradients.opacus_gradients import joint_norms, scaled_sum
from homo_dp.privacy.gradients.row_independence import FIRST_STEPS, compare_losses
from homo_dp.privacy.gradients.row_sums import BELOW, GHOST_ROWS
from homo_dp.privacy.noise.grid import noised
from homo_dp.privacy.noise.source import NoiseSource


def add_secure_noise(optimizer: Any) -> None:
    """``p.grad = p.summed_grad + noise`` for every parameter; the sigma that was used is left in ``applied_sigma``.

    Guarantees:
        - noise is independent between parameters and steps, of std ``noise_multiplier * max_grad_norm``;
        - sum and noise are float64, and the gradient lies on the grid of the noise.
    """
    multiplier = getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier)
    sigma = float(multiplier * optimizer.max_grad_norm)
    source: NoiseSource = optimizer.noise_source
    check_trained(optimizer)
    for parameter in optimizer.params:
        _check_processed_flag(parameter.summed_grad)
        if not bool(parameter.summed_grad.isfinite().all()):
            raise PrivacyError(
                "a clipped sum of gradients is not finite; use grad_sample_mode=hooks, or clean the data"
            )
        parameter.grad = noised(parameter.summed_grad.view_as(parameter), sigma, source).to(
            parameter.dtype
        )
        _mark_as_processed(parameter.summed_grad)
    optimizer.applied_sigma = sigma


class SecureDPOptimizer(DPOptimizer):  # type: ignore[misc]
    """DPOptimizer for the hooks, functorch and expanded-weights modes.

    Guarantees:
        - as ``add_secure_noise``; norms and sums are float64;
        - a row whose gradient is not finite adds nothing to the sum.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, noise: NoiseSource, **options: Any
    ) -> None:
        super().__init__(optimizer, secure_mode=False, **options)
        _take_source(self, noise)

    def clip_and_accumulate(self) -> None:
        samples = self.grad_samples
        factors = clip_factors(joint_norms(samples, len(samples[0])), self.max_grad_norm * BELOW)
        for parameter, rows in zip(self.params, samples, strict=True):
            _accumulate(parameter, rows, factors)

    def add_noise(self) -> None:
        add_secure_noise(self)


class SecurePerLayerOptimizer(DPPerLayerOptimizer):  # type: ignore[misc]
    """The same for one clip bound a layer."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, noise: NoiseSource, **options: Any
    ) -> None:
        super().__init__(optimizer, secure_mode=False, **options)
        _take_source(self, noise)

    def clip_and_accumulate(self) -> None:
        samples = self.grad_samples
        finite = joint_norms(
            samples, len(samples[0])
        ).isfinite()  # a row counts in all layers or in none
        for parameter, rows, bound in zip(self.params, samples, self.max_grad_norms, strict=True):
            _accumulate(parameter, rows, clip_factors(row_norms(rows), bound * BELOW) * finite)

    def add_noise(self) -> None:
        add_secure_noise(self)


class SecureGhostOptimizer(DPOptimizerFastGradientClipping):  # type: ignore[misc]
    """The same for ghost clipping, which clips before the optimiser sees anything; a sum with NaN is refused.

    Guarantees:
        - only gradients as the backward pass of a GhostTensor left them are stepped: others were never clipped;
        - a batch of so many rows that its float32 sum could be off by more than clipping leaves free is refused.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, noise: NoiseSource, **options: Any
    ) -> None:
        super().__init__(optimizer, secure_mode=False, **options)
        _take_source(self, noise)
        self._clipped: list[tuple[Any, int]] = []
        self._rows = self._rows_squared = 0

    def note_clipped(self, rows: int) -> None:
        """Note that the gradients are clipped, and over how many rows they are summed."""
        self._clipped = [_seen(parameter.grad) for parameter in self.params]
        self._rows = rows

    def accumulate(self) -> None:
        found = [_seen(parameter.grad) for parameter in self.params]
        same = len(found) == len(self._clipped)
        for (gradient, version), (clipped, clipped_version) in zip(
            found, self._clipped, strict=False
        ):
            same = same and gradient is clipped and version == clipped_version
        self._clipped = []
        if not same:
            raise PrivacyError(
                "grad_sample_mode=ghost: these gradients are not clipped; call backward() once, on the loss of the "
                "criterion that make_private returned, and on nothing else"
            )
        self._bound_rounding()
        for parameter in self.params:
            if parameter.summed_grad is None:
                parameter.summed_grad = torch.zeros_like(parameter, dtype=torch.float64)
            parameter.summed_grad.add_(parameter.grad.detach())

    def _bound_rounding(self) -> None:
        """Raise if float32 sums of this batch may be off by more than clipping leaves free: by m**2 C / 2**24 of m."""
        if self.params[0].summed_grad is None:
            self._rows_squared = 0
        self._rows_squared += self._rows**2
        if self._rows_squared > GHOST_ROWS**2:
            raise PrivacyError(
                f"grad_sample_mode=ghost: {self._rows} rows at a time are summed in float32, and one record could move "
                f"the sum by more than max_grad_norm; take at most {GHOST_ROWS} rows a batch, or physical batches (64 "
                "rows for 1024, 32 for 2048: BatchMemoryManager), or grad_sample_mode=auto"
            )

    def add_noise(self) -> None:
        add_secure_noise(self)


class GhostLoss(DPLossFastGradientClipping):  # type: ignore[misc]
    """Opacus' criterion for ghost clipping, for losses that are one number per row.

    Guarantees:
        - per-sample losses of shape (n, 1) are reshaped to (n,), other shapes refused: stock Opacus multiplies them
          with (n,) factors, which broadcasts to (n, n) and lets one record move the clipped sum by hundreds of C.
    """

    _compared = 0

    def __call__(self, *args: Any, shape: Any = None, **kwargs: Any) -> "GhostTensor":
        if self.module.max_grad_norm != self.optimizer.max_grad_norm:
            raise PrivacyError(
                f"max_grad_norm={self.module.max_grad_norm} of the module is not {self.optimizer.max_grad_norm} of the "
                "optimizer; set both, or noise would not fit the clipping"
            )
        if shape is None and not kwargs and len(args) == 2:
            self._compare(*args)
        plain = super().__call__(*args, shape=shape, **kwargs)
        outputs = args[0] if args else kwargs["input"]
        return GhostTensor.checked(plain, int(shape[0]) if shape is not None else len(outputs))

    def _compare(self, outputs: Any, labels: Any) -> None:
        """Raise if rows meet in the criterion, in the first batches; torch's own are known to treat rows alone."""
        known = type(self.criterion).__module__ == "torch.nn.modules.loss"
        if known or self._compared == FIRST_STEPS or not len(outputs):
            return
        self._compared += 1
        plain = super().__call__
        compare_losses(lambda rows, targets: plain(rows, targets).loss_per_sample, outputs, labels)


class GhostTensor(DPTensorFastGradientClipping):  # type: ignore[misc]
    """A loss that stays one number per row through arithmetic, until ``backward``."""

    rows: int

    @classmethod
    def checked(cls, plain: Any, rows: int) -> "GhostTensor":
        """Take over an Opacus loss after checking its shape."""
        losses = per_sample(plain.loss_per_sample, rows)
        checked = cls(plain.module, plain.optimizer, losses, plain.loss_reduction)
        checked.rows = rows
        return checked

    def backward(self) -> None:
        """Leave the clipped sum in ``p.grad``, as ``clip_in_second_pass`` does."""
        mean = self.loss_reduction == "mean"
        self.optimizer.zero_grad()
        # The margin that BELOW leaves covers the rounding of the sum.
        norms = clip_in_second_pass(
            self.module,
            self.loss_per_sample,
            self.optimizer.params,
            self.optimizer.max_grad_norm * BELOW,
            mean=mean,
        )
        if not bool(norms.isfinite().all()):
            raise PrivacyError(
                "a row's gradient is not finite; use grad_sample_mode=hooks, or clean the data"
            )
        self.module.per_sample_gradient_norms = norms
        self.optimizer.note_clipped(self.rows)

    def __mul__(self, other: Any) -> "GhostTensor":
        return GhostTensor.checked(super().__mul__(_plain(other)), self.rows)

    def __rmul__(self, other: Any) -> "GhostTensor":
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> "GhostTensor":
        return GhostTensor.checked(super().__truediv__(_plain(other)), self.rows)

    def __add__(self, other: Any) -> "GhostTensor":
        return GhostTensor.checked(super().__add__(_plain(other)), self.rows)

    def __radd__(self, other: Any) -> "GhostTensor":
        return self.__add__(other)

    def __sub__(self, other: Any) -> "GhostTensor":
        return GhostTensor.checked(super().__sub__(_plain(other)), self.rows)

    def __rsub__(self, other: Any) -> "GhostTensor":
        return GhostTensor.checked(super().__rsub__(_plain(other)), self.rows)

    def __neg__(self) -> "GhostTensor":
        return GhostTensor.checked(super().__neg__(), self.rows)


def _accumulate(parameter: Any, rows: torch.Tensor, factors: torch.Tensor) -> None:
    """Add the rows times their factors to ``summed_grad``, in float64."""
    _check_processed_flag(parameter.grad_sample)
    total = scaled_sum(rows, factors)
    parameter.summed_grad = (
        total if parameter.summed_grad is None else parameter.summed_grad.add_(total)
    )
    _mark_as_processed(parameter.grad_sample)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise PrivacyError(
            "grad_sample_mode=ghost: a penalty on the weights inside the loss would not be clipped; use weight_decay "
            "of the optimizer, which is added after the noise"
        )
    return value.loss_per_sample if isinstance(value, DPTensorFastGradientClipping) else value


def _seen(gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    return gradient, -1 if gradient is None else gradient._version


def check_trained(optimizer: Any) -> None:
    """Raise if other parameters are trainable than were clipped; drop gradients that nobody clipped."""
    if [id(parameter) for parameter in optimizer.params] != optimizer.trained:
        raise PrivacyError(
            "the trainable parameters changed since make_private; call make_private again"
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                parameter.grad = None


def _take_source(optimizer: Any, noise: NoiseSource) -> None:
    optimizer.noise_source = noise
    optimizer.secure_mode = noise.secure
    optimizer.applied_sigma = 0.0
    optimizer.trained = [id(parameter) for parameter in optimizer.params]
