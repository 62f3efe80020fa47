"""The Opacus engine whose secure mode works: our noise, our sampling, Opacus' modules, optimisers and accountants.

It is for training loops written for Opacus. The federation does not use it: its loop is
``privacy.training.private_training``, and its ledger accounts.
"""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import opacus
import torch
from opacus.accountants import create_accountant
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from homo_dp.privacy.accounting.checks import check_delta
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipped_gradients import out_of_place
from homo_dp.privacy.gradients.clipping import check_clip_norm
from homo_dp.privacy.gradients.fast.chain import FastChain, chain_of
from homo_dp.privacy.gradients.ghost import GHOST_NORMS, check_ghost_layers
from homo_dp.privacy.gradients.grad_sample_mode import MODES, probe_mode, probed_chain
from homo_dp.privacy.gradients.opacus_gradients import ExpandedWeights, rows_first
from homo_dp.privacy.gradients.probing import RowsSecond, probe_rows, size_of_all_outputs
from homo_dp.privacy.gradients.row_independence import FirstBatches
from homo_dp.privacy.gradients.validation import (
    check_has_noise,
    check_module,
    check_optimizer,
    compatible_module,
)
from homo_dp.privacy.noise.source import NoiseSource, OrdinaryNoise, secure_noise
from homo_dp.privacy.opacus.checkpoint import load_checkpoint, save_checkpoint, use_plain_names
from homo_dp.privacy.opacus.dp_optimizer import (
    GhostLoss,
    SecureDPOptimizer,
    SecureGhostOptimizer,
    SecurePerLayerOptimizer,
)
from homo_dp.privacy.opacus.fast_module import FastDPOptimizer, FastGradSampleModule
from homo_dp.privacy.opacus.loader import first_features, poisson_loader, poisson_sampler, steps_for
from homo_dp.privacy.training.dropout_masks import SecretMasks, may_draw

ACCOUNTANTS = ("rdp", "prv")
_BY_NAME = "asked for by name"
_log = logging.getLogger(__name__)


class PrivacyEngine(opacus.PrivacyEngine):  # type: ignore[misc]
    """``opacus.PrivacyEngine`` for which ``secure_mode=True`` works, and is the default.

    Guarantees:
        - noise and batches come from ``noise``: the secure source of the process unless one is given;
        - the sampling rate that is accounted is the one that samples: batch size over rows;
        - the accountant is made once and sees every step of every round.

    >>> engine = PrivacyEngine()
    >>> engine.secure_mode, engine.noise.private
    (True, True)
    """

    def __init__(
        self, *, accountant: str = "rdp", secure_mode: bool = True, noise: NoiseSource | None = None
    ) -> None:
        if accountant not in ACCOUNTANTS:
            raise PrivacyError(
                f"accountant={accountant!r} gives no upper bound we quote; use rdp or prv"
            )
        if secure_mode and noise is not None and not noise.secure:
            raise PrivacyError(
                f"secure_mode=True with {noise!r} is not secure; leave noise out, or secure_mode=False"
            )
        if noise is None:
            noise = secure_noise() if secure_mode else OrdinaryNoise()
        self.noise = noise
        self.accountant = create_accountant(mechanism=accountant)
        self.secure_mode = secure_mode
        self.secure_rng = None  # Opacus' torchcsprng generator: never used here
        self.dataset: Any = None
        self.mode_reason = ""

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
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """As Opacus: (module, optimizer, data_loader), with the criterion before the loader in ghost mode.

        Guarantees:
            - batches are Poisson with q = batch_size / rows and q is what the accountant is told;
            - gradients are divided by the expected batch size;
            - weights go in and out (``load_state_dict``, ``state_dict``) under the names of ``module``.
        """
        _check_request(
            poisson_sampling, noise_generator, rand_on_empty, clipping, grad_sample_mode, module
        )
        check_has_noise(noise_multiplier)
        _check_bounds(max_grad_norm)
        sampler = poisson_sampler(data_loader)
        plain = clipping == "flat" and wrap_model and batch_first
        if batch_first:
            rows_first(module)
        features = self._check_data(module, optimizer, data_loader, batch_first=batch_first)
        first_batches = _first_batches(
            module, features, sampler.expected_size, batch_first=batch_first
        )
        mode, self.mode_reason, chain = self._mode(
            module, optimizer, grad_sample_mode, features, plain=plain, batch_first=batch_first
        )
        _log.info("grad_sample_mode=%s: %s", mode, self.mode_reason)
        wrapped = self._prepare_model(
            module,
            batch_first=batch_first,
            max_grad_norm=max_grad_norm,
            loss_reduction=loss_reduction,
            grad_sample_mode=mode,
            wrap_model=wrap_model,
            chain=chain,
        )
        wrapped.forbid_grad_accumulation()
        if wrapped is not module and isinstance(wrapped, AbstractGradSampleModule):
            use_plain_names(wrapped)
        if first_batches is not None:
            self._watch(first_batches, module, wrapped if wrap_model else module)
        private_optimizer = self._prepare_optimizer(
            optimizer=optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=sampler.expected_size,
            loss_reduction=loss_reduction,
            clipping=clipping,
            grad_sample_mode=mode,
            module=wrapped,
            **kwargs,
        )
        private_optimizer.attach_step_hook(
            self.accountant.get_optimizer_hook_fn(sample_rate=sampler.sample_rate)
        )
        loader = poisson_loader(data_loader, sampler, self.noise, batch_first=batch_first)
        if mode == "ghost":
            criterion = (
                nn.CrossEntropyLoss(reduction=loss_reduction) if criterion is None else criterion
            )
            return (
                wrapped,
                private_optimizer,
                GhostLoss(wrapped, private_optimizer, criterion, loss_reduction),
                loader,
            )
        return wrapped, private_optimizer, loader

    def _watch(self, first_batches: FirstBatches, module: nn.Module, called: nn.Module) -> None:
        """Check the first batches of what the training loop calls, and keep dropout masks secret."""
        first_batches.watch(called)
        if self.noise.private and may_draw(module):
            SecretMasks(called)

    def make_private_with_epsilon(
        self,
        *,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        **options: Any,
    ) -> tuple[Any, ...]:
        """``make_private`` with the smallest noise that keeps everything this engine accounts below the target."""
        sampler = poisson_sampler(data_loader)
        check_delta(target_delta, sampler.population)
        noise_multiplier = self.noise_multiplier_for(
            target_epsilon, target_delta, sampler.sample_rate, steps_for(epochs, data_loader)
        )
        return self.make_private(
            data_loader=data_loader, noise_multiplier=noise_multiplier, **options
        )

    def noise_multiplier_for(
        self, epsilon: float, delta: float, sample_rate: float, steps: int
    ) -> float:
        """Noise for ``steps`` more steps such that they and all steps accounted before stay within epsilon."""
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
        """Weights, optimiser state and accountant in one safetensors file; nothing in it can execute."""
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
        self, module: nn.Module, optimizer: Any, data_loader: DataLoader[Any], *, batch_first: bool
    ) -> Tensor | None:
        """Raise unless module, optimiser and data fit each other; a few rows to probe with, where rows are tensors."""
        inner = module._module if isinstance(module, AbstractGradSampleModule) else module
        check_optimizer(inner, optimizer, partly=True)
        check_module(inner)
        if self.dataset is not None and self.dataset is not data_loader.dataset:
            warnings.warn(
                "the dataset changed: one engine accounts one dataset; make an engine a dataset",
                stacklevel=3,
            )
        self.dataset = data_loader.dataset
        features = first_features(data_loader.dataset)
        if features is not None and module is inner:
            if not batch_first and features.dim() < 2:
                raise PrivacyError(
                    "batch_first=False takes records of one dimension or more; use batch_first=True"
                )
            probe_rows(
                module if batch_first else RowsSecond(module),
                size_of_all_outputs,
                features,
                features,
            )
        return features

    def _prepare_model(
        self,
        module: nn.Module,
        *,
        grad_sample_mode: str,
        chain: FastChain | None = None,
        **options: Any,
    ) -> Any:
        if not isinstance(module, AbstractGradSampleModule):
            module.train()
            same = {
                "batch_first": options["batch_first"],
                "loss_reduction": options["loss_reduction"],
            }
            if grad_sample_mode == "fast":
                return FastGradSampleModule(module, chain=chain, **same)
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
        **options: Any,
    ) -> Any:
        if isinstance(optimizer, DPOptimizer):
            optimizer = optimizer.original_optimizer
        if grad_sample_mode == "fast":
            return FastDPOptimizer(optimizer, module=module, noise=self.noise, **options)
        if grad_sample_mode == "ghost":
            return SecureGhostOptimizer(optimizer, noise=self.noise, **options)
        kind = SecurePerLayerOptimizer if clipping == "per_layer" else SecureDPOptimizer
        return kind(optimizer, noise=self.noise, **options)


def _check_request(
    poisson_sampling: bool,
    noise_generator: Any,
    rand_on_empty: bool,
    clipping: str,
    mode: str,
    module: nn.Module,
) -> None:
    if not poisson_sampling:
        raise PrivacyError("poisson_sampling=False would be accounted as Poisson; leave it True")
    if noise_generator is not None:
        raise PrivacyError(
            "noise_generator is not used; make the engine with noise=SeededNoise(seed) for a test"
        )
    if rand_on_empty:
        raise PrivacyError(
            "rand_on_empty=True trains on made-up rows; leave it False, empty batches are handled"
        )
    if clipping not in ("flat", "per_layer") or (
        clipping == "per_layer" and mode in ("ghost", "fast")
    ):
        raise PrivacyError(
            f"clipping={clipping!r} does not go with grad_sample_mode={mode!r}; use flat"
        )
    if mode not in MODES:
        raise PrivacyError(f"grad_sample_mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise PrivacyError(
            "a distributed module is not supported; train in one process and federate instead"
        )


def _first_batches(
    module: nn.Module, features: Any, expected_size: float, *, batch_first: bool
) -> FirstBatches | None:
    """Compares rows alone with rows in a batch; None for a module that was wrapped, and so compared, before."""
    if isinstance(module, AbstractGradSampleModule):
        return None
    found = FirstBatches(module, batch_first)
    if features is not None:
        found.compare_made_up(features, expected_size)
    return found


def _check_bounds(max_grad_norm: float | Sequence[float]) -> None:
    for bound in [max_grad_norm] if isinstance(max_grad_norm, int | float) else max_grad_norm:
        check_clip_norm(bound, "max_grad_norm")


def _refuse_options(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise PrivacyError(
            f"{given[0]} is not part of a checkpoint here; store it yourself without pickle"
        )
