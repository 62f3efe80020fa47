"""Opacus' optimisers with noise from our source instead of a torch generator, and no way through
for NaN.

Opacus draws secure noise from ``torchcsprng``, which has no build for a current torch; everything
else of its optimisers (skipped steps for blocks of a batch, the accounting hook, the wrapped
optimiser) is used as it is.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor, nn

from homo_dp.privacy.engine.loader import Block, CurrentBlock
from homo_dp.privacy.engine.release import HandOut
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import clip_factors, row_norms
from homo_dp.privacy.gradients.fast.chain import all_finite
from homo_dp.privacy.gradients.opacus_gradients import joint_norms, scaled_sum
from homo_dp.privacy.gradients.row_sums import BELOW, GHOST_ROWS
from homo_dp.privacy.gradients.validation import check_has_noise
from homo_dp.privacy.noise.grid import noised
from homo_dp.privacy.noise.source import NoiseSource

_log = logging.getLogger(__name__)


class SecureStep:
    """What our optimizers add to those of Opacus: the noise, the release, and how rows fared.

    Guarantees:
        - noise is independent between parameters and steps, of std ``noise_multiplier *
          max_grad_norm``;
        - sum and noise are float64, and what is released lies on the grid of the noise;
        - a clipped sum that is not finite counts as zeros: whether it is depends on rows, so an
          error would tell of them.
    """

    params: list[nn.Parameter]
    noise_multiplier: float
    max_grad_norm: float
    _step_skip_queue: list[bool]
    _is_last_step_skipped: bool

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise: NoiseSource,
        current: CurrentBlock | None = None,
        hand_out: HandOut | None = None,
        **options: Any,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: What steps.
            noise: The source of noise.
            current: The block that the loader gave, where the loader is ours.
            hand_out: Releases the sum itself; None where the optimizer steps by it.
            options: Those of Opacus' optimizer.
        """
        super().__init__(optimizer, secure_mode=False, **options)  # type: ignore[call-arg]
        self.noise_source, self.secure_mode = noise, noise.secure
        self.current, self.hand_out = current, hand_out
        self.applied_sigma = 0.0
        self.trained = [id(parameter) for parameter in self.params]
        self.released: Tensor | None = None  # the last sum that is to be handed out
        self.rows_not_finite = 0  # local: never send it, it has no event
        self.sums_not_finite = 0  # local, too
        self.noise_multipliers: set[float] = set()  # of all steps, for the event
        self._clipped_to: Any = None
        self._stepped: Block | None = None
        self._norms: list[Callable[[], Tensor]] = []
        self._batch_goes_on = False

    @property
    def last_norms(self) -> Tensor:
        """Gradient norms of the last batch before clipping. They have no event: never send them."""
        return torch.cat([norms() for norms in self._norms]) if self._norms else torch.zeros(0)

    @property
    def last_fraction_clipped(self) -> float:
        """Share of the last batch whose norm was above the clip norm; it has no event, either."""
        norms = self.last_norms
        return float((norms > self.max_grad_norm).double().mean()) if len(norms) else 0.0

    @property
    def _bounds(self) -> Any:
        """What rows are clipped to."""
        return self.max_grad_norm

    def _check_bound(self, clipped: bool) -> None:
        """Raise if noise would not fit the clip norm of a sum."""
        if clipped and self._clipped_to != self._bounds:
            raise PrivacyError(
                f"max_grad_norm={self._bounds} was {self._clipped_to} when rows of this batch were "
                "clipped; change it after the last block of a batch"
            )

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise that a step adds."""
        self._check_bound(clipped=True)
        if self.hand_out is not None:
            private_sum = self.hand_out.private_sum
            if self.max_grad_norm != private_sum.clip_norm:
                raise PrivacyError(
                    f"max_grad_norm={self.max_grad_norm} is not clip_norm="
                    f"{private_sum.clip_norm} of the sum that is handed out; leave it as it was"
                )
            return private_sum.party_sigma
        return check_has_noise(float(self.noise_multiplier)) * float(self.max_grad_norm)

    def _check_fresh(self) -> None:
        """Raise if the block of this step had its step before: it is no new sample."""
        block = None if self.current is None else self.current.block
        if block is not None and block is self._stepped:
            raise PrivacyError(
                "one batch of the loader takes one step; take the next one (a list of the loader "
                "holds one batch many times, since batches share a buffer)"
            )
        self._stepped = block

    def begin_batch(self) -> None:
        """Drop the blocks of a batch that a loop left half way, as an error does: a row of both
        batches would move the next sum twice.
        """
        if self._step_skip_queue or self._is_last_step_skipped:
            self._step_skip_queue.clear()
            self._is_last_step_skipped = self._batch_goes_on = False
            self.zero_grad()  # type: ignore[attr-defined]

    def check_trained(self) -> None:
        """Raise if other parameters are trainable than were clipped."""
        check_trained(self)

    def take_released(self) -> Tensor:
        """The sum that is to be handed out, once."""
        released, self.released = self.released, None
        if released is None:
            raise ValueError("nothing was released since the last call; take a step first")
        return released

    def add_noise(self) -> None:
        """Leave ``summed_grad`` with noise in ``p.grad``, or in ``released`` to be handed out."""
        check_trained(self)
        sums = self._sums()
        if not all_finite(torch.stack([total.abs().sum() for total in sums])):
            self._count_as_zeros(sums)
        self.applied_sigma = sigma = self.sigma
        self.noise_multipliers.add(float(self.noise_multiplier))
        if self.hand_out is not None:
            self.released = self.hand_out.of(torch.cat([total.reshape(-1) for total in sums]))
            for parameter in self.params:
                parameter.grad = None  # what a backward pass of torch left there was never clipped
            return
        for parameter, total in zip(self.params, sums, strict=True):
            values = noised(total.view_as(parameter), sigma, self.noise_source)
            parameter.grad = values.to(parameter.dtype)

    def _sums(self) -> list[Tensor]:
        """The clipped sums, one for each parameter, to be released once."""
        for parameter in self.params:
            _check_processed_flag(parameter.summed_grad)  # type: ignore[attr-defined]
            _mark_as_processed(parameter.summed_grad)  # type: ignore[attr-defined]
        return [parameter.summed_grad for parameter in self.params]  # type: ignore[attr-defined]

    def _count_as_zeros(self, sums: list[Tensor]) -> None:
        for total in sums:
            total.zero_()
        self.sums_not_finite += 1
        _log.warning(
            "a clipped sum of gradients is not finite and counts as zeros; lower the learning rate"
        )

    def _note_norms(self, norms: Callable[[], Tensor]) -> None:
        """Keep what gives the norms of a block, with those of the blocks before it in the batch."""
        self._check_bound(self._batch_goes_on)
        self._norms = [*self._norms, norms] if self._batch_goes_on else [norms]
        self._clipped_to = self._bounds

    def _own_rows(self, rows: Tensor) -> Tensor:
        """Of values of the rows in a block, those that do not fill it up."""
        block = None if self.current is None else self.current.block
        return rows if block is None else rows[: len(block.features)]

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Whether the wrapped optimizer has to step: not within a batch, nor by a sum that is
        handed out.
        """
        self._check_fresh()
        ready = bool(super().pre_step(closure))  # type: ignore[misc]
        self._batch_goes_on = not ready
        return ready and self.hand_out is None

    def scale_grad(self) -> None:
        """Divide the gradients by the expected size of a batch."""
        if self.hand_out is None:
            super().scale_grad()  # type: ignore[misc]


class SecureDPOptimizer(SecureStep, DPOptimizer):  # type: ignore[misc]
    """DPOptimizer for the hooks, functorch and expanded-weights modes.

    Guarantees:
        - as SecureStep; norms and sums are float64;
        - a row whose gradient is not finite adds nothing to the sum.
    """

    def _get_flat_grad_sample(self, p: Tensor) -> Tensor:
        reached = any(getattr(each, "grad_sample", None) is not None for each in self.params)
        missing = getattr(p, "grad_sample", None) is None and not hasattr(p, "_current_grad_sample")
        if self.current is not None and reached and missing:
            rows = 0 if self.current.block is None else len(self.current.block.features)
            return p.new_zeros(()).expand(rows, *p.shape)  # no loss depends on this parameter
        found: Tensor = super()._get_flat_grad_sample(p)
        return self._own_rows(found)

    def _check_criterion(self) -> None:
        """Raise if gradients are of another criterion than the one that make_private returned."""
        if self.current is None:
            return
        if not self.current.took_criterion:
            raise PrivacyError(
                "these gradients are not of the criterion that make_private returned; call it in "
                "place of the one that was given"
            )
        self.current.took_criterion = False

    @property
    def accumulated_iterations(self) -> int:
        return 1 if self.current is not None else int(super().accumulated_iterations)

    def clip_and_accumulate(self) -> None:
        self._check_criterion()
        samples = self.grad_samples
        norms = joint_norms(samples, len(samples[0]))
        factors = clip_factors(norms, self.max_grad_norm * BELOW)
        self.rows_not_finite += len(norms) - int(norms.isfinite().sum())
        self._note_norms(norms.clone)
        for parameter, rows in zip(self.params, samples, strict=True):
            _accumulate(parameter, rows, factors)


class SecurePerLayerOptimizer(SecureStep, DPPerLayerOptimizer):  # type: ignore[misc]
    """The same for one clip bound a layer."""

    def _get_flat_grad_sample(self, p: Tensor) -> Tensor:
        found: Tensor = super()._get_flat_grad_sample(p)
        return self._own_rows(found)

    @property
    def _bounds(self) -> Any:
        return tuple(self.max_grad_norms)

    def clip_and_accumulate(self) -> None:
        samples = self.grad_samples
        # a row counts in all layers or in none
        norms = joint_norms(samples, len(samples[0]))
        self._note_norms(norms.clone)
        for parameter, rows, bound in zip(self.params, samples, self.max_grad_norms, strict=True):
            factors = clip_factors(row_norms(rows), bound * BELOW) * norms.isfinite()
            _accumulate(parameter, rows, factors)


class SecureGhostOptimizer(SecureStep, DPOptimizerFastGradientClipping):  # type: ignore[misc]
    """The same for ghost clipping, which clips before the optimiser sees anything.

    Guarantees:
        - only gradients as the backward pass of a GhostTensor left them are stepped: others were
          never clipped;
        - a batch of so many rows that its float32 sum could be off by more than clipping leaves
          free is refused.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(optimizer, **options)
        self._clipped: list[tuple[Any, int]] = []
        self._rows = self._rows_squared = 0

    def note_clipped(self, norms: Tensor) -> None:
        """Note that the gradients are clipped, and the norms of the rows that they are summed
        over.
        """
        self._clipped = [_seen(parameter.grad) for parameter in self.params]
        self._rows = len(norms)
        self._note_norms(norms.clone)

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
                "grad_sample_mode=ghost: these gradients are not clipped; call backward() once, on "
                "the loss of the criterion that make_private returned, and on nothing else"
            )
        self._bound_rounding()
        for parameter in self.params:
            _add_to_sum(parameter)

    def _bound_rounding(self) -> None:
        """Raise if float32 sums of this batch may be off by more than clipping leaves free: by
        m**2 C / 2**24 of m, and not at all of one.
        """
        if not self._batch_goes_on:
            self._rows_squared = 0
        self._rows_squared += self._rows**2 if self._rows > 1 else 0
        if self._rows_squared > GHOST_ROWS**2:
            raise PrivacyError(
                f"grad_sample_mode=ghost: {self._rows} rows at a time are summed in float32, and "
                "one record could move the sum by more than max_grad_norm; take at most "
                f"{GHOST_ROWS} rows a batch, or physical batches (64 rows for 1024, 32 for 2048: "
                "BatchMemoryManager), or grad_sample_mode=auto"
            )


def _add_to_sum(parameter: Any) -> None:
    if parameter.summed_grad is None:
        parameter.summed_grad = torch.zeros_like(parameter, dtype=torch.float64)
    if parameter.grad is not None:
        parameter.summed_grad.add_(parameter.grad.detach())


def _accumulate(parameter: Any, rows: torch.Tensor, factors: torch.Tensor) -> None:
    """Add the rows times their factors to ``summed_grad``, in float64."""
    samples = parameter.grad_sample
    if samples is not None:
        _check_processed_flag(samples)
        _mark_as_processed(samples)
    total = scaled_sum(rows, factors)
    parameter.summed_grad = (
        total if parameter.summed_grad is None else parameter.summed_grad.add_(total)
    )


def _seen(gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    return gradient, -1 if gradient is None else gradient._version


def check_trained(optimizer: Any) -> None:
    """Raise if other parameters are trainable than were clipped; drop gradients that nobody
    clipped.
    """
    trained = []
    for group in optimizer.original_optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                trained.append(id(parameter))
            else:
                parameter.grad = None
    if trained != optimizer.trained:
        raise PrivacyError(
            "the trainable parameters changed since make_private; call make_private again"
        )
