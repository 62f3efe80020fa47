"""The engine: wraps a module, its optimizer and its loader, so that an ordinary training loop of
torch is DP-SGD with our noise and our sampling.

It is Opacus' engine with secure mode that works. Every gradient of records becomes private here: in
the federation, whose ledger charges ``event``, and in loops of one's own.
"""

import functools
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import opacus
import torch
from opacus.accountants import create_accountant
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from homo_dp.privacy.accounting.checks import check_delta
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.engine.checkpoint import load_checkpoint, save_checkpoint, use_plain_names
from homo_dp.privacy.engine.criterion import (
    FilledForward,
)
from homo_dp.privacy.engine.dp_optimizer import (
    SecureDPOptimizer,
    SecureGhostOptimizer,
    SecurePerLayerOptimizer,
)
from homo_dp.privacy.engine.drawn_ahead import PoissonBatches
from homo_dp.privacy.engine.dropout_masks import SecretMasks, may_draw, secret_masks
from homo_dp.privacy.engine.fast_module import FastDPOptimizer, FastGradSampleModule
from homo_dp.privacy.engine.loader import (
    CurrentBlock,
    PoissonBatchSampler,
    poisson_sampler,
    steps_for,
)
from homo_dp.privacy.engine.passes import Passes
from homo_dp.privacy.engine.preparation import (
    Rows,
    block_sizes,
    check_bounds,
    check_counts,
    check_request,
    check_sums,
    criterion_of,
    first_batches_of,
    loader_of,
    passes_for,
    probe_once,
    rows_of,
    sum_to_hand_out,
)
from homo_dp.privacy.engine.release import HandOut, ReleaseName
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import FastChain, chain_of
from homo_dp.privacy.gradients.ghost import GHOST_NORMS, check_ghost_layers
from homo_dp.privacy.gradients.grad_sample_mode import probe_mode, probed_chain
from homo_dp.privacy.gradients.opacus_gradients import (
    ExpandedWeights,
    rows_first,
)
from homo_dp.privacy.gradients.probing import RowsSecond, size_of_all_outputs
from homo_dp.privacy.gradients.row_independence import FirstBatches
from homo_dp.privacy.gradients.validation import (
    check_has_noise,
    check_module,
    check_optimizer,
    compatible_module,
    out_of_place,
)
from homo_dp.privacy.noise.source import NoiseSource, OrdinaryNoise, secure_noise
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler

ACCOUNTANTS = ("rdp", "prv")
_BY_NAME = "asked for by name"
_log = logging.getLogger(__name__)


class PrivacyEngine(opacus.PrivacyEngine):  # type: ignore[misc]
    """``opacus.PrivacyEngine`` for which ``secure_mode=True`` works, and is the default.

    Guarantees:
        - noise and batches come from ``noise``: the secure source of the process unless one is
          given;
        - the sampling rate that is accounted is the one that samples: batch size over rows;
        - the accountant is made once and sees every step of every round.

    >>> engine = PrivacyEngine()
    >>> engine.secure_mode, engine.noise.private
    (True, True)
    """

    def __init__(
        self,
        *,
        accountant: str = "rdp",
        secure_mode: bool = True,
        noise: NoiseSource | None = None,
    ) -> None:
        if accountant not in ACCOUNTANTS:
            raise PrivacyError(
                f"accountant={accountant!r} gives no upper bound we quote; use rdp or prv"
            )
        if noise is None:
            noise = secure_noise() if secure_mode else OrdinaryNoise()
        self.noise = checked_source(noise, secure_mode)
        self.accountant = create_accountant(mechanism=accountant)
        self.secure_mode = secure_mode
        self.secure_rng = None  # Opacus' torchcsprng generator: never used here
        self.dataset: Any = None
        self.grad_sample_mode, self.mode_reason = "", ""
        self._performs: Performed | None = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float | Sequence[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: Any = None,
        grad_sample_mode: str = "auto",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        sample_rate: float | None = None,
        expected_batch_size: float | None = None,
        steps: int | None = None,
        physical_batch_size: int | None = None,
        release: ReleaseName = "step",
        private_sum: PrivateSum | None = None,
        noise: NoiseSource | None = None,
        **unknown: Any,
    ) -> tuple[Any, ...]:
        """Wrap module, optimizer and loader, so that the ordinary loop of torch trains privately.

        Args:
            module: What is trained.
            optimizer: What steps; it holds trainable parameters of the module.
            criterion: A loss of one number a row, or one of torch's. Where it is given, one to be
                called in its place is returned, which need no autograd where gradients at the
                outputs are known; batches then share a buffer, so each is valid until the next.
            data_loader: Rows; its batch size over their number is the sample rate.
            noise_multiplier: Standard deviation of the noise over the clip norm.
            max_grad_norm: The clip norm; one a parameter with ``clipping="per_layer"``.
            batch_first: Whether rows are in the first dimension.
            loss_reduction: ``mean`` or ``sum``: what the criterion does.
            poisson_sampling: Always true.
            clipping: ``flat`` or ``per_layer``.
            noise_generator: Not used.
            grad_sample_mode: ``auto``, ``fast``, ``hooks``, ``functorch``, ``ew`` or ``ghost``.
            wrap_model: Whether the module is wrapped, or gets hooks (hooks mode).
            rand_on_empty: Always false.
            sample_rate: The declared rate, with ``expected_batch_size``: then nothing is read off
                the number of rows, which may be secret.
            expected_batch_size: The declared size of a batch, by which sums are divided.
            steps: Batches in a pass over the loader; else as many as ``data_loader`` has.
            physical_batch_size: Rows of a batch that are taken at once, with ``criterion``.
            release: What ``optimizer.step()`` does with the noisy sum: ``step``; ``hand_out``
                (``optimizer.released`` is the sum in float64, nothing moves); ``hand_out_masked``
                (the same in int64, with this party's share of the noise).
            private_sum: The sum that is handed out: who shares its noise, and the rows of all. For
                ``hand_out`` it may be left out: all of the noise is then this party's own.
            noise: The source of noise and batches from now on, in place of the engine's.
            unknown: Refused.

        Returns:
            (module, optimizer, data_loader); with the criterion before the loader in ghost mode, or
            where ``criterion`` is given.

        Guarantees:
            - batches are Poisson with q = batch_size / rows (or the declared rate), and q is what
              the accountant is told and ``event`` names;
            - gradients are divided by the expected batch size;
            - weights go in and out (``load_state_dict``, ``state_dict``) under the names of
              ``module``.

        Raises:
            PrivacyError: something could not be trained privately, and what to do instead.
        """
        check_request(
            poisson_sampling, noise_generator, rand_on_empty, clipping, grad_sample_mode, module
        )
        if unknown:
            raise PrivacyError(
                f"{next(iter(unknown))} is no argument of make_private; leave it out"
            )
        if noise is not None:
            self.noise = checked_source(noise, self.secure_mode)
        if isinstance(module, FastGradSampleModule):
            module = module._module  # what was kept for other rows goes with its wrapper
        check_has_noise(noise_multiplier)
        check_bounds(max_grad_norm)
        check_counts(steps, physical_batch_size)
        sampler = poisson_sampler(data_loader, sample_rate, expected_batch_size)
        check_sums(sampler, noise_multiplier, max_grad_norm)
        if batch_first:
            rows_first(module)
        rows = rows_of(data_loader, criterion if batch_first else None)
        self._check_data(module, optimizer, data_loader, rows, batch_first=batch_first)
        first_batches = first_batches_of(module, rows, batch_first=batch_first)
        if first_batches is not None and rows.features is not None and rows.labels is not None:
            size = min(physical_batch_size or math.inf, max(1.0, sampler.expected_size))
            first_batches.compare_made_up(rows.features, rows.labels, size)
        plain = clipping == "flat" and wrap_model and batch_first
        mode, self.mode_reason, chain = self._mode(
            module, optimizer, grad_sample_mode, rows.features, plain=plain, batch_first=batch_first
        )
        self.grad_sample_mode = mode
        _log.info("grad_sample_mode=%s: %s", mode, self.mode_reason)
        sizes = block_sizes(module, mode, chain, rows, physical_batch_size)
        summed = rows.loss is not None and mode not in ("fast", "ghost")
        wrapped = self._prepare_model(
            module,
            batch_first=batch_first,
            max_grad_norm=max_grad_norm,
            loss_reduction="sum" if summed else loss_reduction,
            grad_sample_mode=mode,
            wrap_model=wrap_model,
            passes=passes_for(module, chain, rows),
            closed_form=rows.loss is not None,
        )
        wrapped.forbid_grad_accumulation()
        if wrapped is not module and isinstance(wrapped, AbstractGradSampleModule):
            use_plain_names(wrapped)
        called = wrapped if wrap_model else module
        fills = sizes is not None and mode != "fast"
        forward = FilledForward(called, rows.current) if fills else None
        if first_batches is not None:
            self._watch(first_batches, module, called)
        batches = PoissonBatchSampler(
            sampler, self.noise, len(data_loader) if steps is None else steps
        )
        handed_over = sum_to_hand_out(
            release, private_sum, optimizer, sampler, noise_multiplier, max_grad_norm
        )
        private_optimizer = self._prepare_optimizer(
            optimizer=optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=sampler.expected_size,
            loss_reduction=loss_reduction,
            clipping=clipping,
            grad_sample_mode=mode,
            module=wrapped,
            batches=batches.drawn,
            current=None if sizes is None else rows.current,
            hand_out=None if handed_over is None else HandOut(handed_over, self.noise),
        )
        batches.before_batches(rows.current.forget)
        batches.before_batches(private_optimizer.begin_batch)
        private_optimizer.attach_step_hook(
            self.accountant.get_optimizer_hook_fn(sample_rate=sampler.sample_rate)
        )
        self._performs = Performed(sampler, float(noise_multiplier), private_optimizer, handed_over)
        loader = loader_of(
            data_loader, batches, rows, sizes, private_optimizer, wrapped, batch_first=batch_first
        )
        if mode != "ghost" and criterion is None:
            return wrapped, private_optimizer, loader
        made = criterion_of(
            wrapped,
            private_optimizer,
            criterion,
            rows.loss,
            forward,
            loss_reduction=loss_reduction,
        )
        return wrapped, private_optimizer, made, loader

    def event(self, steps: int) -> DpEvent:
        """The event of so many steps of what was made private last, which the ledger charges."""
        if self._performs is None:
            raise PrivacyError("nothing was made private; call make_private first")
        return self._performs.event(steps)

    def _watch(self, first_batches: FirstBatches, module: nn.Module, called: nn.Module) -> None:
        """Check the first batches of what the training loop calls, and keep dropout masks
        secret.
        """
        first_batches.watch(called)
        if self.noise.private and may_draw(module):
            SecretMasks(called)
            if isinstance(called, FastGradSampleModule):
                called.passes.secret_masks = functools.partial(secret_masks, self.noise)

    def make_private_with_epsilon(
        self,
        *,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        **options: Any,
    ) -> tuple[Any, ...]:
        """``make_private`` with the smallest noise that keeps everything this engine accounts
        below the target.
        """
        sampler = poisson_sampler(
            data_loader, options.get("sample_rate"), options.get("expected_batch_size")
        )
        check_delta(target_delta, sampler.declared or sampler.population)
        steps = options.get("steps")
        taken = steps_for(epochs, data_loader) if steps is None else epochs * steps
        noise_multiplier = self.noise_multiplier_for(
            target_epsilon, target_delta, sampler.sample_rate, taken
        )
        return self.make_private(
            data_loader=data_loader, noise_multiplier=noise_multiplier, **options
        )

    def noise_multiplier_for(
        self, epsilon: float, delta: float, sample_rate: float, steps: int
    ) -> float:
        """Noise for ``steps`` more steps such that they and all steps accounted before stay
        within epsilon.
        """
        if not 0 < epsilon < float("inf") or not 0 < delta < 1:
            raise PrivacyError(
                f"target_epsilon={epsilon}, target_delta={delta} must be > 0, delta < 1; give both"
            )
        trial = create_accountant(mechanism=self.accountant.mechanism())

        def spent(noise_multiplier: float) -> float:
            trial.history = [*self.accountant.history, (noise_multiplier, sample_rate, steps)]
            return float(trial.get_epsilon(delta=delta))

        if self.accountant.history and self.get_epsilon(delta) >= epsilon:
            raise PrivacyError(f"target_epsilon={epsilon} is spent already; raise it")
        high = 1.0
        while spent(high) > epsilon:
            high *= 2
            if high > 1e5:
                raise PrivacyError(
                    f"target_epsilon={epsilon} is too small; raise it or take fewer steps"
                )
        low = high / 2 if high > 1.0 else 0.1
        while high / low > 1.002:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
        return high

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy with BatchNorm, LSTM and the like replaced by layers that treat rows alone."""
        return compatible_module(module, fix=True)

    def state(self) -> dict[str, Any]:
        """The accountant as JSON: mechanism and history of (noise_multiplier, sample_rate, steps).

        >>> PrivacyEngine().state()
        {'mechanism': 'rdp', 'history': []}
        """
        return {
            "mechanism": self.accountant.mechanism(),
            "history": [list(entry) for entry in self.accountant.history],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put a ``state()`` back; the accountant then continues where it was."""
        if state.get("mechanism") != self.accountant.mechanism() or not isinstance(
            state.get("history"), list
        ):
            raise PrivacyError(
                "the state is of another accountant; make the engine with the same accountant"
            )
        history = [
            (float(noise), float(rate), int(steps)) for noise, rate, steps in state["history"]
        ]
        self.accountant.history = history

    def save_checkpoint(
        self, *, path: Any, module: nn.Module, optimizer: Any = None, **unsupported: Any
    ) -> None:
        """Weights, optimiser state and accountant in one safetensors file; nothing in it can
        execute.
        """
        _refuse_options(unsupported)
        save_checkpoint(path, module, optimizer, self.state())

    def load_checkpoint(
        self, *, path: Any, module: nn.Module, optimizer: Any = None, **unsupported: Any
    ) -> None:
        """Read what ``save_checkpoint`` wrote."""
        _refuse_options(unsupported)
        self.restore(load_checkpoint(path, module, optimizer))

    def _mode(
        self,
        module: nn.Module,
        optimizer: Any,
        mode: str,
        features: Tensor | None,
        *,
        plain: bool,
        batch_first: bool,
    ) -> tuple[str, str, FastChain | None]:
        """The mode to use for the one that was asked for, why, and the chain of the fast one."""
        if isinstance(module, AbstractGradSampleModule):
            found = "fast" if isinstance(module, FastGradSampleModule) else "hooks"
            return (
                (found, "the module is wrapped already", None)
                if mode == "auto"
                else (mode, _BY_NAME, None)
            )
        if mode == "auto" and not plain:
            mode, reason = "hooks", "the fast mode clips flat, batch first, in a wrapped module"
        elif mode in ("auto", "fast"):
            chain, reason = chain_of(module) if features is None else probed_chain(module, features)
            held = sum(
                parameter.requires_grad
                for group in optimizer.param_groups
                for parameter in group["params"]
            )
            if chain is not None and len(chain.parameters) != held:
                chain, reason = None, "the optimizer holds a part of the parameters"
            if chain is not None:
                return "fast", reason if mode == "auto" else _BY_NAME, chain
            if mode == "fast":
                raise PrivacyError(f"grad_sample_mode=fast: {reason}; use grad_sample_mode=auto")
            mode = "hooks"
        else:
            reason = _BY_NAME
        if features is not None:
            probe_mode(module, features, mode, batch_first=batch_first)
        return mode, reason, None

    def _check_data(
        self,
        module: nn.Module,
        optimizer: Any,
        data_loader: DataLoader[Any],
        rows: Rows,
        *,
        batch_first: bool,
    ) -> None:
        """Raise unless module, optimiser and data fit each other."""
        inner = module._module if isinstance(module, AbstractGradSampleModule) else module
        check_optimizer(inner, optimizer, partly=True)
        check_module(inner)
        if self.dataset is not None and self.dataset is not data_loader.dataset:
            warnings.warn(
                "the dataset changed: one engine accounts one dataset; make an engine a dataset",
                stacklevel=3,
            )
        self.dataset = data_loader.dataset
        if rows.features is None or rows.labels is None or module is not inner:
            return
        if not batch_first and rows.features.dim() < 2:
            raise PrivacyError(
                "batch_first=False takes records of one dimension or more; use batch_first=True"
            )
        probe_once(
            module if batch_first else RowsSecond(module),
            size_of_all_outputs if rows.loss is None else rows.loss,
            rows.features.detach(),
            rows.labels.detach(),
        )

    def _prepare_model(
        self,
        module: nn.Module,
        *,
        grad_sample_mode: str,
        passes: Passes | None = None,
        closed_form: bool = False,
        **options: Any,
    ) -> Any:
        if not isinstance(module, AbstractGradSampleModule):
            module.train()
            same = {
                "batch_first": options["batch_first"],
                "loss_reduction": options["loss_reduction"],
            }
            if passes is not None:
                reduction = options["loss_reduction"]
                return FastGradSampleModule(
                    module, passes, loss_reduction=reduction, closed_form=closed_form
                )
            if grad_sample_mode == "ew":
                return ExpandedWeights(module, **same)
        elif isinstance(module, FastGradSampleModule | ExpandedWeights):
            return module
        out_of_place(module)
        if grad_sample_mode == "ghost":
            check_ghost_layers(
                module._module if isinstance(module, AbstractGradSampleModule) else module
            )
        wrapped = super()._prepare_model(module, grad_sample_mode=grad_sample_mode, **options)
        if grad_sample_mode == "ghost":
            wrapped.NORM_SAMPLERS = GHOST_NORMS
        return wrapped

    def _prepare_optimizer(
        self,
        *,
        optimizer: torch.optim.Optimizer,
        clipping: str,
        grad_sample_mode: str,
        module: Any,
        batches: PoissonBatches,
        current: CurrentBlock | None,
        hand_out: HandOut | None,
        **options: Any,
    ) -> Any:
        if isinstance(optimizer, DPOptimizer):
            optimizer = optimizer.original_optimizer
        if clipping == "per_layer":
            return SecurePerLayerOptimizer(optimizer, noise=self.noise, current=current, **options)
        options |= {"noise": self.noise, "current": current, "hand_out": hand_out}
        if grad_sample_mode == "fast":
            return FastDPOptimizer(optimizer, module=module, batches=batches, **options)
        kind = SecureGhostOptimizer if grad_sample_mode == "ghost" else SecureDPOptimizer
        return kind(optimizer, **options)


def checked_source(noise: NoiseSource, secure_mode: bool) -> NoiseSource:
    """The source, if it is as secure as is asked."""
    if secure_mode and not noise.secure:
        raise PrivacyError(
            f"secure_mode=True with {noise!r} is not secure; leave noise out, or secure_mode=False"
        )
    return noise


@dataclass(frozen=True)
class Performed:
    """What the steps of a training do, for the event that they are charged as."""

    sampler: PoissonSampler
    noise_multiplier: float
    optimizer: Any
    private_sum: PrivateSum | None

    def event(self, steps: int) -> DpEvent:
        """So many steps, of which each added the noise that was asked for."""
        if self.private_sum is not None:
            return self.private_sum.event(steps)
        used = {*self.optimizer.noise_multipliers, float(self.optimizer.noise_multiplier)}
        for other in used - {self.noise_multiplier}:
            raise PrivacyError(
                f"noise_multiplier={other}: was changed from {self.noise_multiplier}; the event of "
                "all steps names one, so read the accountant of the engine instead"
            )
        return self.sampler.event(self.noise_multiplier, steps)


def _refuse_options(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise PrivacyError(
            f"{given[0]} is not part of a checkpoint here; store it yourself without pickle"
        )
