"""What may be trained privately: modules whose rows do not meet, with no state that data writes to.

Opacus checks trainable layers only, so a BatchNorm without weights passes it; here every layer and buffer is looked at,
and a short run on made-up rows finds modules that mix rows without saying so in a layer's name.
"""

import copy
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.core.errors import error_text
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.recurrent import is_fast_lstm
from homo_dp.privacy.gradients.losses import Loss, per_sample

_FIX = "or set model.fix=true (fix=True) to have it replaced"
_WITHOUT_RULES = ("linear", "conv", "container", "sparse", "normalization")
_FLOATS = (torch.float32, torch.float64)
Probed = tuple[Tensor, Sequence[Tensor | None]]  # losses per row, and gradients by parameter


def check_has_noise(noise_multiplier: float) -> float:
    """Return a noise multiplier above zero, or raise PrivacyError: there is no private training without noise.

    >>> check_has_noise(1.1)
    1.1
    """
    if isinstance(noise_multiplier, bool) or not isinstance(noise_multiplier, int | float):
        raise PrivacyError(f"noise_multiplier={noise_multiplier!r} is not a number; give a number > 0")
    if not math.isfinite(noise_multiplier) or noise_multiplier <= 0:
        raise PrivacyError(
            f"noise_multiplier={noise_multiplier} is not a finite number > 0; "
            "give more noise, or ask for no privacy by name with privacy.mechanism=none"
        )
    return float(noise_multiplier)


def compatible_module(module: nn.Module, *, fix: bool = False, public: Collection[str] = ()) -> nn.Module:
    """Return a module that can be trained privately: the same one, or a repaired copy when ``fix`` is asked for.

    ``public`` names buffers that hold no data and are never trained.

    >>> compatible_module(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), fix=True)[1]
    GroupNorm(1, 4, eps=1e-05, affine=True, bias=True)
    """
    if fix:
        from opacus.validators import ModuleValidator

        module = ModuleValidator.fix(_without_batch_norm(copy.deepcopy(module)))
        for layer in module.modules():
            if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.running_mean is not None:
                _forget_running_statistics(layer)
    check_module(module, public)
    return module


def check_module(module: nn.Module, public: Collection[str] = ()) -> None:
    """Raise PrivacyError unless every layer, parameter and buffer of the module can be trained privately."""
    for name, layer in module.named_modules():
        _check_layer(name or "model", layer)
    for name, parameter in module.named_parameters():
        if parameter.dtype not in _FLOATS:
            raise PrivacyError(f"{name}: dtype={parameter.dtype} is not float32 or float64; convert the model first")
        if parameter.numel() == 0:
            raise PrivacyError(f"{name}: shape={tuple(parameter.shape)} has no values; remove the parameter")
        if not bool(parameter.isfinite().all()):
            raise PrivacyError(f"{name} holds NaN or infinity; start from finite weights")
    _check_buffers(module, public)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise PrivacyError("the model has 0 trainable parameters; set requires_grad=True on at least one")
    if len({(parameter.dtype, parameter.device) for parameter in trainable}) > 1:
        raise PrivacyError("trainable parameters have several dtypes or devices; move the model to one of each")
    if _opacus_has_a_say(module):
        _ask_opacus(module)


def probe_rows(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> None:
    """Raise PrivacyError if one row changes another row's loss or gradient, or if a forward pass writes to the module.

    One row gets other features and another label, and then is left out, as the neighbouring relation has it; every
    layer must get it in its place. Rows are made up where features are floating point; integer features (embedding
    indices) reuse rows of the table, and so do models that made-up rows show nothing of. Runs under its own random
    state, so nothing that is drawn later depends on it.
    """
    if not len(features):
        return
    count = probe_count(features, 4)
    rows = probe_features(features, count)
    targets = labels[:1].repeat(count, *(1,) * (labels.dim() - 1))  # equal, so that a loss that counts labels shows it
    other = targets.clone()
    other[-1] = another_row(labels, targets[-1])
    changed = rows.clone()
    changed[-1] = rows[-1] * 3 + 1 if rows.is_floating_point() else another_row(features, rows[-1])
    was_training = module.training
    module.train()
    with torch.enable_grad(), torch.random.fork_rng(devices=[]), awake(module):
        before = {name: tensor.detach().clone() for name, tensor in _named_tensors(module)}
        with _layer_inputs(module) as seen:
            try:
                expected = _seeded_losses(module, loss, rows, targets)
                check_shown(expected[0])
            except Exception:  # rows that the model does not take: it reads floats as indices, or wants positive ones
                seen.clear()
                rows, changed = table_rows(features, count), table_rows(features, count)
                changed[-1] = another_row(features, rows[-1])
                expected = _seeded_losses(module, loss, rows, targets)
        with _layer_inputs(module) as seen_changed:
            differs = _difference(expected, _seeded_losses(module, loss, changed, other))
        without = None if differs else _left_out(module, loss, rows, targets, expected)
        written = [name for name, tensor in _named_tensors(module) if not torch.equal(tensor, before[name])]
    module.train(was_training)
    if differs or without:
        raise PrivacyError(_mixes(module, "changing one row" if differs else "leaving one row out", differs or without))
    _check_order(seen, seen_changed, count, 1 if isinstance(module, RowsSecond) else 0)
    if written:
        raise PrivacyError(f"{written[0]} is written by the forward pass; remove it: it would carry data raw")


def check_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, *, partly: bool = False) -> None:
    """Raise PrivacyError unless the optimiser holds the trainable parameters of the module (or some, if ``partly``)."""
    held = [
        id(parameter) for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
    ]
    trainable = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    missing = [name for key, name in trainable.items() if key not in set(held)]
    if missing and not partly:
        raise PrivacyError(f"{missing[0]} is trainable but not in the optimizer; add it, or freeze it")
    if set(held) - set(trainable) or len(held) != len(set(held)):
        raise PrivacyError("the optimizer holds parameters that the model has not; build it from model.parameters()")
    for index, group in enumerate(optimizer.param_groups):
        if group.get("maximize"):
            raise PrivacyError(f"param_groups[{index}] maximize=True is not supported; negate the loss instead")


def _check_layer(name: str, layer: nn.Module) -> None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise PrivacyError(
            f"{name}: {type(layer).__name__} mixes the rows of a batch and keeps raw statistics; "
            f"use GroupNorm or LayerNorm, {_FIX}"
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise PrivacyError(
            f"{name}: {type(layer).__name__} track_running_stats=True keeps raw statistics; "
            f"use track_running_stats=False, {_FIX}"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise PrivacyError(
            f"{name}: {type(layer).__name__} max_norm={layer.max_norm} rewrites the vectors of the words it sees, "
            "without noise; use max_norm=None"
        )


def _opacus_has_a_say(module: nn.Module) -> bool:
    """Whether Opacus may have a rule for a layer; its rules go by exact type, and importing them takes half a second.

    It has none for layers of the files named here. Rules for layers of somebody's own come from whoever imported it.
    """
    weighted = [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]
    files = {type(layer).__module__ for layer in weighted if not is_fast_lstm(layer)}
    return "opacus.validators" in sys.modules or any(
        file.startswith("torch.nn.") and file.removeprefix("torch.nn.modules.") not in _WITHOUT_RULES for file in files
    )


def _ask_opacus(module: nn.Module) -> None:
    from opacus.validators import ModuleValidator

    # An LSTM of torch's own is trained on the fast path, which needs no layer made for hooks.
    asked = [layer for layer in module.modules() if _has_trained(layer) and not is_fast_lstm(layer)]
    validators = ModuleValidator.VALIDATORS
    errors = [error for layer in asked if type(layer) in validators for error in validators[type(layer)](layer)]
    if errors:
        raise PrivacyError(f"{type(module).__name__} cannot be trained privately: {error_text(errors[0])}; {_FIX}")


def _has_trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _check_buffers(module: nn.Module, public: Collection[str]) -> None:
    persistent = set(module.state_dict(keep_vars=True)) - {name for name, _ in _all_parameters(module)}
    for name, buffer in module.named_buffers():
        if name in persistent and name not in public:
            raise PrivacyError(
                f"buffer {name} (dtype={buffer.dtype}) may hold data and has no privacy event; "
                "remove it, register a constant with persistent=False, or (dp_fedavg) list it in privacy.public_tensors"
            )


def _all_parameters(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return module.named_parameters(remove_duplicate=False)


def _without_batch_norm(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        # Opacus takes gcd(32, features) groups too, but on flat records such a group may be one value, which it zeroes.
        flat = isinstance(module, nn.BatchNorm1d | nn.SyncBatchNorm)  # or may be: it takes any shape
        groups = 1 if flat else math.gcd(32, module.num_features)
        return nn.GroupNorm(groups, module.num_features, eps=module.eps, affine=module.affine)
    for name, child in module.named_children():
        setattr(module, name, _without_batch_norm(child))
    return module


def _forget_running_statistics(layer: nn.modules.instancenorm._InstanceNorm) -> None:
    layer.track_running_stats = False
    for name in list(dict(layer.named_buffers(recurse=False))):
        setattr(layer, name, None)


def probe_features(features: Tensor, count: int) -> Tensor:
    """Rows shaped like the features: made up, or for integers (which may be indices) copied from the table."""
    if not features.is_floating_point():
        return table_rows(features, count)
    generator = torch.Generator().manual_seed(0)
    return torch.randn((count, *features.shape[1:]), generator=generator, dtype=torch.float64).to(features)


class RowsSecond(nn.Module):
    """A module that takes rows in the second dimension (Opacus' ``batch_first=False``), called with rows first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Any:
        return self.inner(rows.transpose(0, 1))


def probe_count(features: Tensor, least: int) -> int:
    """How many rows to probe with: of any table, since what is refused must not depend on how many rows there are.

    No dimension of a record has that size, so that rows are told from positions.
    """
    return next(count for count in range(least, least + features.dim() + 1) if count not in features.shape[1:])


@contextmanager
def awake(module: nn.Module) -> Iterator[None]:
    """Random numbers for weights that are all zero while the block runs: no gradient goes through those to be seen."""
    asleep = [parameter for parameter in module.parameters() if not bool(parameter.any())]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in asleep:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        yield
    finally:
        with torch.no_grad():
            for parameter in asleep:
                parameter.zero_()


def check_shown(values: Tensor) -> None:
    """Raise ArithmeticError where made-up rows give NaN, which shows nothing about which rows were mixed."""
    if not bool(values.isfinite().all()):
        raise ArithmeticError("not finite")


def table_rows(features: Tensor, count: int) -> Tensor:
    """The first rows of the table, from the start again where it has fewer."""
    return features[torch.arange(count, device=features.device) % len(features)]


def size_of_outputs(outputs: Any, labels: Tensor) -> Tensor:
    """A stand-in loss for probing a module whose loss is not known: the squared length of each row's outputs.

    Of several outputs (a tuple, a dict, what an LSTM gives) it takes the first.
    """
    while isinstance(outputs, tuple | list | Mapping) and len(outputs):
        outputs = next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs))
    if not isinstance(outputs, Tensor):
        raise PrivacyError(f"the model gives {type(outputs).__name__}; return a tensor, or several in a tuple or dict")
    rows = len(labels) if outputs.dim() > 1 and outputs.shape[1] == len(labels) else len(outputs)
    return _row_sizes(outputs, rows if outputs.dim() and outputs.shape[0] != len(labels) else len(outputs))


def size_of_all_outputs(outputs: Any, labels: Tensor) -> Tensor:
    """The same of all outputs together, since a loss may use any of them.

    States of a recurrent layer have their rows in the second dimension; what has rows in neither counts for every row.
    """
    if isinstance(outputs, tuple | list | Mapping):
        inner = outputs.values() if isinstance(outputs, Mapping) else outputs
        sizes = [size_of_all_outputs(each, labels) for each in inner]
        return torch.stack(sizes).sum(0) if sizes else torch.zeros(len(labels))
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        return torch.zeros(len(labels))
    return _row_sizes(outputs, len(labels))


def _row_sizes(outputs: Tensor, rows: int) -> Tensor:
    squares = outputs.square()
    if squares.dim() > 1 and squares.shape[0] != rows and squares.shape[1] == rows:
        squares = squares.transpose(0, 1)
    if not squares.dim() or squares.shape[0] != rows:
        return squares.sum().expand(rows)
    return squares.flatten(1).sum(1) if squares.dim() > 1 else squares


@contextmanager
def _layer_inputs(module: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """What every layer with weights of its own is given, call by call, while the block runs."""
    seen: list[tuple[str, Tensor]] = []

    def keep(name: str, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        given = next((each for each in (*inputs, *named.values()) if isinstance(each, Tensor)), None)
        if given is not None:
            seen.append((name, given.detach()))

    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, named, name=name: keep(name, inputs, named), with_kwargs=True)
        for name, layer in module.named_modules()
        if name and any(True for _ in layer.parameters(recurse=False))
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _check_order(
    one: Sequence[tuple[str, Tensor]], other: Sequence[tuple[str, Tensor]], count: int, dimension: int
) -> None:
    """Raise unless the changed row, the last of the batch, is the last that each layer gets, too.

    Norms are added up over layers by position: were row 3 of one layer row 1 of another, both would be clipped wrongly.
    """
    for (name, first), (_, second) in zip(one, other, strict=False):
        if first.shape[dimension : dimension + 1] != (count,) or first.shape != second.shape:
            continue
        first, second = first.movedim(dimension, 0), second.movedim(dimension, 0)
        if not torch.allclose(first[:-1].double(), second[:-1].double(), rtol=1e-4, atol=1e-6, equal_nan=True):
            raise PrivacyError(
                f"{name}: is given the rows in another order than the model, so that gradients of different rows "
                "would be clipped as one; keep the order of rows inside the model"
            )


def _seeded_losses(
    module: nn.Module, loss: Loss, rows: Tensor, labels: Tensor, kept: int = -1, seed: int = 0
) -> Probed:
    """Losses of the first rows (all but the last), and the gradient of their sum: neither may depend on the last."""
    # The same dropout mask both times. Seeding every kind of device costs milliseconds, many times a run.
    torch.default_generator.manual_seed(seed) if rows.device.type == "cpu" else torch.manual_seed(seed)
    losses = per_sample(loss(module(rows.clone()), labels), len(rows))[:kept]
    if not losses.requires_grad:
        return losses, ()
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return losses.detach(), torch.autograd.grad(losses.sum(), trainable, allow_unused=True)


def _left_out(module: nn.Module, loss: Loss, rows: Tensor, labels: Tensor, expected: Probed) -> str | None:
    """What the first rows show of the last one's being there: ``loss``, ``gradient`` or nothing."""
    kept = len(rows) - 1
    found = _difference(expected, _seeded_losses(module, loss, rows[:-1], labels[:-1], kept))
    if found is None or _difference(expected, _seeded_losses(module, loss, rows, labels, seed=1)) is None:
        return found
    # Fewer rows draw another dropout mask: compare without. What draws even then was compared with its row changed.
    module.eval()
    expected = _seeded_losses(module, loss, rows, labels)
    if _difference(expected, _seeded_losses(module, loss, rows, labels, seed=1)) is not None:
        return None
    return _difference(expected, _seeded_losses(module, loss, rows[:-1], labels[:-1], kept))


def _difference(one: Probed, other: Probed) -> str | None:
    if not torch.allclose(one[0], other[0], rtol=1e-4, atol=1e-6, equal_nan=True):
        return "loss"
    # By the largest of all: the bias of an attention's keys gets nothing but what rounding leaves.
    sizes = [float(each.abs().max()) for each in map(_dense, one[1]) if each is not None and each.numel()]
    scale = max((size for size in sizes if math.isfinite(size)), default=0.0)
    return None if all(_same_gradient(*pair, scale) for pair in zip(one[1], other[1], strict=True)) else "gradient"


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _same_gradient(one: Tensor | None, other: Tensor | None, scale: float) -> bool:
    one, other = _dense(one), _dense(other)
    if one is None or other is None:
        return one is other
    finite = one.isfinite() & other.isfinite()  # zero times the infinity that a made-up row gives is NaN
    one, other = one[finite], other[finite]
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5 * scale + 1e-7)


def another_row(features: Tensor, row: Tensor) -> Tensor:
    """A row of the table that differs from this one, where there is one."""
    differs = (features != row).reshape(len(features), -1).any(1)
    return features[int(differs.int().argmax())]


def _named_tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from ((f"buffer {name}", buffer) for name, buffer in module.named_buffers())
    yield from ((f"parameter {name}", parameter) for name, parameter in module.named_parameters())


def _mixes(module: nn.Module, how: str, what: str | None) -> str:
    module = module.inner if isinstance(module, RowsSecond) else module
    return (
        f"{type(module).__name__} mixes rows: {how} changed another row's {what}; "
        "use layers (and a loss) that treat each row alone, for example GroupNorm or LayerNorm"
    )
