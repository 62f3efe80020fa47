"""What the engine finds out and makes before a training: rows, block sizes, loader, criterion."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from homo_dp.privacy.engine.criterion import (
    FilledForward,
    GhostLoss,
    RowCriterion,
    WithReduction,
    rows_loss,
)
from homo_dp.privacy.engine.dp_optimizer import SecureGhostOptimizer
from homo_dp.privacy.engine.fast_module import FastCriterion, FastGradSampleModule
from homo_dp.privacy.engine.loader import (
    BlockLoader,
    BlockSizes,
    CurrentBlock,
    PoissonBatchSampler,
    TensorRows,
    first_features,
    poisson_loader,
    table_of,
)
from homo_dp.privacy.engine.passes import Passes, passes_of, places_of_passes
from homo_dp.privacy.engine.release import RELEASES, checked_sum
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import Places, places_of
from homo_dp.privacy.gradients.clipping import check_clip_norm
from homo_dp.privacy.gradients.fast.chain import FastChain, has_hooks
from homo_dp.privacy.gradients.grad_sample_mode import MODES
from homo_dp.privacy.gradients.losses import Loss
from homo_dp.privacy.gradients.opacus_gradients import opacus_numbers
from homo_dp.privacy.gradients.probing import probe_rows
from homo_dp.privacy.gradients.row_independence import FirstBatches, keeps_rows_alone
from homo_dp.privacy.gradients.row_sums import ghost_rows
from homo_dp.privacy.noise.grid import Grid
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler

# numbers of rows of a linear model that are taken at once: many more leave the cache
_NUMBERS_AT_ONCE = 1 << 20


def check_request(
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


def check_counts(steps: int | None, physical_batch_size: int | None) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise PrivacyError(
            f"steps={steps!r} is not a whole number >= 0; give the number of steps to take"
        )
    if physical_batch_size is not None and physical_batch_size < 1:
        raise PrivacyError(
            f"physical_batch_size={physical_batch_size} is not >= 1; give a number of rows, or None"
        )


def check_bounds(max_grad_norm: float | Sequence[float]) -> None:
    for bound in [max_grad_norm] if isinstance(max_grad_norm, int | float) else max_grad_norm:
        check_clip_norm(bound, "max_grad_norm")


@dataclass(frozen=True)
class Rows:
    """What is known of the rows and their loss before a training.

    Attributes:
        table: Features and labels as tensors, with a criterion that was given; else None.
        loss: One loss a row, with a table; else None.
        features: Rows to probe with, where rows are tensors.
        labels: Labels to probe with.
        current: The block that the loader will give.
    """

    table: TensorRows | None
    loss: Loss | None
    features: Tensor | None
    labels: Tensor | None
    current: CurrentBlock


def rows_of(data_loader: DataLoader[Any], criterion: Any) -> Rows:
    found = None if criterion is None else table_of(data_loader)
    if found is None or len(found.tensors) != 2:
        features = first_features(data_loader.dataset)
        return Rows(None, None, features, features, CurrentBlock())
    return Rows(found, rows_loss(criterion), *found.tensors, CurrentBlock())


_apart: set[tuple[object, ...]] = set()  # models that were probed, and what they were probed with
_MOST_APART = 1024


def probe_once(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> None:
    """``probe_rows``, once in a process for all parties with the same layers, sizes and known loss,
    for which made-up rows show the same.
    """
    shapes = tuple((tuple(parameter.shape), parameter.dtype) for parameter in module.parameters())
    kinds = tuple((tuple(each.shape[1:]), each.dtype, each.device) for each in (features, labels))
    key = (repr(module), shapes, kinds, loss)
    made_up = features.is_floating_point() and len(features) > 0
    plain = not any(has_hooks(each) or "forward" in vars(each) for each in module.modules())
    shared = made_up and plain and keeps_rows_alone(module, loss)
    if shared and key in _apart:
        return
    probe_rows(module, loss, features, labels)
    if shared:
        if len(_apart) >= _MOST_APART:
            _apart.clear()
        _apart.add(key)


def first_batches_of(module: nn.Module, rows: Rows, *, batch_first: bool) -> FirstBatches | None:
    """Compares rows alone with rows in a batch; None for a module that was wrapped, and so
    compared, before.
    """
    if isinstance(module, AbstractGradSampleModule):
        return None
    if rows.loss is None:
        return FirstBatches(module, batch_first=batch_first)
    return FirstBatches(module, loss=rows.loss, block_of=rows.current.truth_of)


def passes_for(module: nn.Module, chain: FastChain | None, rows: Rows) -> Passes | None:
    if chain is None:
        return None
    return passes_of(module, chain, rows.loss, rows.features, rows.current)


def block_sizes(
    module: nn.Module,
    mode: str,
    chain: FastChain | None,
    rows: Rows,
    physical_batch_size: int | None,
) -> BlockSizes | None:
    """How many rows may be taken at once, found on a copy before there are hooks; None where the
    loop's own criterion or loader decides.
    """
    if rows.table is None or rows.loss is None:
        return None
    features, labels = rows.table.tensors
    return BlockSizes(
        _places(module, mode, chain, rows.loss),
        features,
        labels,
        _rows_at_once(mode, chain, physical_batch_size, features.shape[1:].numel()),
    )


def _places(module: nn.Module, mode: str, chain: FastChain | None, loss: Loss) -> Places:
    if chain is not None:
        return places_of_passes(module, chain, loss)
    try:
        twin = copy.deepcopy(module)
    except Exception:  # whatever copying somebody's code raises: batch_invariance.py will say so
        twin = module
    return places_of(twin, opacus_numbers(loss, mode), None)


def _rows_at_once(
    mode: str, chain: FastChain | None, physical_batch_size: int | None, width: int
) -> Callable[[int], float]:
    """Rows of ``width`` numbers that may be taken at once of a batch that has so many."""
    most = math.inf if physical_batch_size is None else float(physical_batch_size)
    if chain is not None and chain.only_linear is not None:
        most = min(most, max(1.0, _NUMBERS_AT_ONCE // max(1, width)))
    if mode == "ghost":
        return lambda rows: min(most, ghost_rows(rows))
    return lambda rows: most


def loader_of(
    data_loader: DataLoader[Any],
    batches: PoissonBatchSampler,
    rows: Rows,
    sizes: BlockSizes | None,
    optimizer: Any,
    wrapped: Any,
    *,
    batch_first: bool,
) -> DataLoader[Any]:
    """Blocks where the rows are a table and the criterion is ours, else whole batches."""
    if rows.table is None or sizes is None:
        return poisson_loader(data_loader, batches, batch_first=batch_first)
    features = rows.table.tensors[0]
    fast = isinstance(wrapped, FastGradSampleModule)
    prepared = wrapped.passes.prepared(features) if fast else features
    return BlockLoader(
        rows.table,
        batches,
        sizes,
        rows.current,
        optimizer,
        prepared.detach(),
        fills=not fast or wrapped.passes.fills,
    )


def criterion_of(
    wrapped: Any,
    optimizer: Any,
    given: Any,
    loss: Loss | None,
    forward: FilledForward | None,
    *,
    loss_reduction: str,
) -> Any:
    """The criterion of a mode for one that was given, or for cross-entropy."""
    if isinstance(optimizer, SecureGhostOptimizer):
        if given is None:
            given = nn.CrossEntropyLoss(reduction=loss_reduction)
        elif loss is not None and not hasattr(given, "reduction"):
            given = WithReduction(loss, loss_reduction)
        return GhostLoss(wrapped, optimizer, given, loss_reduction, forward=forward)
    if loss is None:
        return given
    if isinstance(wrapped, FastGradSampleModule):
        return FastCriterion(wrapped.passes, loss, loss_reduction)
    if forward is None:
        raise ValueError("a criterion of a mode with hooks needs a forward pass that fills up")
    return RowCriterion(forward, loss, loss_reduction)


def check_sums(
    sampler: PoissonSampler, noise_multiplier: float, max_grad_norm: float | Sequence[float]
) -> None:
    """Raise if sums of these rows are too large for the grid of their noise."""
    bounds = [max_grad_norm] if isinstance(max_grad_norm, int | float) else max_grad_norm
    for bound in bounds:
        rows = sampler.population if sampler.declared is None else sampler.declared
        Grid.of(noise_multiplier * bound).check(rows * bound)


def sum_to_hand_out(
    release: str,
    private_sum: PrivateSum | None,
    optimizer: torch.optim.Optimizer,
    sampler: PoissonSampler,
    noise_multiplier: float,
    max_grad_norm: float | Sequence[float],
) -> PrivateSum | None:
    """The sum that is handed out over the weights that are trained; None for steps."""
    if release not in RELEASES:
        raise PrivacyError(f"release={release!r} is unknown; use one of {', '.join(RELEASES)}")
    trained = sum(
        parameter.numel()
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    )
    if release == "hand_out" and private_sum is None and isinstance(max_grad_norm, int | float):
        rows = sampler.population if sampler.declared is None else sampler.declared
        private_sum = PrivateSum(
            trained, max_grad_norm, noise_multiplier, rows, sampler.sample_rate
        )
    wanted = "step"
    if private_sum is not None:
        wanted = "hand_out" if private_sum.share is None else "hand_out_masked"
    if release != wanted:
        raise PrivacyError(
            f"release={release}: needs a private_sum with a share of the noise for "
            "hand_out_masked, one without for hand_out, and none for step"
        )
    if private_sum is None:
        return None
    sigma = private_sum.party_sigma / private_sum.clip_norm
    if (
        max_grad_norm != private_sum.clip_norm
        or sampler.sample_rate != private_sum.sample_rate
        or not math.isclose(noise_multiplier, sigma, rel_tol=1e-9)
    ):
        raise PrivacyError(
            f"private_sum: its clip_norm={private_sum.clip_norm}, "
            f"sample_rate={private_sum.sample_rate} and noise of {sigma:g} C are not those of this "
            f"training (max_grad_norm={max_grad_norm}, sample_rate={sampler.sample_rate}, "
            f"noise_multiplier={noise_multiplier}); give the same to both"
        )
    return checked_sum(private_sum, trained)
