"""Whether rows of a module stay apart, tried on a few made-up rows when training is set up.

One row is changed, then left out; the losses and gradients of the others must stay as they were,
every layer must get the rows in their order, and no forward pass may write to the module. Larger
batches and the real rows of the first steps are compared by ``row_independence.py``.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import Loss, per_sample

Probed = tuple[Tensor, Sequence[Tensor | None]]  # losses per row, and gradients by parameter


def probe_rows(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> None:
    """Raise PrivacyError if one row changes another row's loss or gradient, or if a forward pass
    writes to the module.

    One row gets other features and another label, and then is left out, as the neighbouring
    relation has it; every layer must get it in its place. Rows are made up where features are
    floating point; integer features (embedding indices) reuse rows of the table, and so do models
    that made-up rows show nothing of. Runs under its own random state, so nothing that is drawn
    later depends on it.
    """
    if not len(features):
        return
    count = probe_count(features, 4)
    rows = probe_features(features, count)
    # equal, so that a loss that counts labels shows it
    targets = labels[:1].repeat(count, *(1,) * (labels.dim() - 1))
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
            except Exception:
                # rows that the model does not take: it reads floats as indices, or wants positive
                # ones
                seen.clear()
                rows, changed = table_rows(features, count), table_rows(features, count)
                changed[-1] = another_row(features, rows[-1])
                expected = _seeded_losses(module, loss, rows, targets)
        with _layer_inputs(module) as seen_changed:
            differs = _difference(expected, _seeded_losses(module, loss, changed, other))
        without = None if differs else _left_out(module, loss, rows, targets, expected)
        written = [
            name for name, tensor in _named_tensors(module) if not torch.equal(tensor, before[name])
        ]
    module.train(was_training)
    if differs or without:
        raise PrivacyError(
            _mixes(
                module,
                "changing one row" if differs else "leaving one row out",
                differs or without,
            )
        )
    _check_order(seen, seen_changed, count, 1 if isinstance(module, RowsSecond) else 0)
    if written:
        raise PrivacyError(
            f"{written[0]} is written by the forward pass; remove it: it would carry data raw"
        )


def probe_features(features: Tensor, count: int) -> Tensor:
    """Rows shaped like the features: made up, or for integers (which may be indices) copied from
    the table.
    """
    if not features.is_floating_point():
        return table_rows(features, count)
    generator = torch.Generator().manual_seed(0)
    return torch.randn((count, *features.shape[1:]), generator=generator, dtype=torch.float64).to(
        features
    )


class RowsSecond(nn.Module):
    """A module that takes rows in the second dimension (Opacus' ``batch_first=False``), called
    with rows first.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Any:
        return self.inner(rows.transpose(0, 1))


def probe_count(features: Tensor, least: int) -> int:
    """How many rows to probe with: of any table, since what is refused must not depend on how many
    rows there are.

    No dimension of a record has that size, so that rows are told from positions.
    """
    return next(
        count
        for count in range(least, least + features.dim() + 1)
        if count not in features.shape[1:]
    )


@contextmanager
def awake(module: nn.Module) -> Iterator[None]:
    """Random numbers for weights that are all zero while the block runs: no gradient goes
    through those to be seen.
    """
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
    """Raise ArithmeticError where made-up rows give NaN, which shows nothing about which rows
    were mixed.
    """
    if not bool(values.isfinite().all()):
        raise ArithmeticError("not finite")


def table_rows(features: Tensor, count: int) -> Tensor:
    """The first rows of the table, from the start again where it has fewer."""
    return features[torch.arange(count, device=features.device) % len(features)]


def size_of_outputs(outputs: Any, labels: Tensor) -> Tensor:
    """A stand-in loss for probing a module whose loss is not known: the squared length of each
    row's outputs.

    Of several outputs (a tuple, a dict, what an LSTM gives) it takes the first.
    """
    while isinstance(outputs, tuple | list | Mapping) and len(outputs):
        outputs = next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs))
    if not isinstance(outputs, Tensor):
        raise PrivacyError(
            f"the model gives {type(outputs).__name__}; return a tensor, or several in a tuple or "
            "dict"
        )
    rows = len(labels) if outputs.dim() > 1 and outputs.shape[1] == len(labels) else len(outputs)
    return _row_sizes(
        outputs, rows if outputs.dim() and outputs.shape[0] != len(labels) else len(outputs)
    )


def size_of_all_outputs(outputs: Any, labels: Tensor) -> Tensor:
    """The same of all outputs together, since a loss may use any of them.

    States of a recurrent layer have their rows in the second dimension; what has rows in neither
    counts for every row.
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
        given = next(
            (each for each in (*inputs, *named.values()) if isinstance(each, Tensor)), None
        )
        if given is not None:
            seen.append((name, given.detach()))

    handles = [
        layer.register_forward_pre_hook(
            lambda _, inputs, named, name=name: keep(name, inputs, named), with_kwargs=True
        )
        for name, layer in module.named_modules()
        if name and any(True for _ in layer.parameters(recurse=False))
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _check_order(
    one: Sequence[tuple[str, Tensor]],
    other: Sequence[tuple[str, Tensor]],
    count: int,
    dimension: int,
) -> None:
    """Raise unless the changed row, the last of the batch, is the last that each layer gets, too.

    Norms are added up over layers by position: were row 3 of one layer row 1 of another, both would
    be clipped wrongly.
    """
    for (name, first), (_, second) in zip(one, other, strict=False):
        if first.shape[dimension : dimension + 1] != (count,) or first.shape != second.shape:
            continue
        first, second = first.movedim(dimension, 0), second.movedim(dimension, 0)
        if not torch.allclose(
            first[:-1].double(), second[:-1].double(), rtol=1e-4, atol=1e-6, equal_nan=True
        ):
            raise PrivacyError(
                f"{name}: is given the rows in another order than the model, so that gradients of "
                "different rows would be clipped as one; keep the order of rows inside the model"
            )


def _seeded_losses(
    module: nn.Module, loss: Loss, rows: Tensor, labels: Tensor, kept: int = -1, seed: int = 0
) -> Probed:
    """Losses of the first rows (all but the last), and the gradient of their sum: neither may
    depend on the last.
    """
    # The same dropout mask both times. Seeding every kind of device costs milliseconds, many times
    # a run.
    (
        torch.default_generator.manual_seed(seed)
        if rows.device.type == "cpu"
        else torch.manual_seed(seed)
    )
    losses = per_sample(loss(module(rows.clone()), labels), len(rows))[:kept]
    if not losses.requires_grad:
        return losses, ()
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return losses.detach(), torch.autograd.grad(losses.sum(), trainable, allow_unused=True)


def _left_out(
    module: nn.Module, loss: Loss, rows: Tensor, labels: Tensor, expected: Probed
) -> str | None:
    """What the first rows show of the last one's being there: ``loss``, ``gradient`` or nothing."""
    kept = len(rows) - 1
    found = _difference(expected, _seeded_losses(module, loss, rows[:-1], labels[:-1], kept))
    if (
        found is None
        or _difference(expected, _seeded_losses(module, loss, rows, labels, seed=1)) is None
    ):
        return found
    # Fewer rows draw another dropout mask: compare without. What draws even then was compared with
    # its row changed.
    module.eval()
    expected = _seeded_losses(module, loss, rows, labels)
    if _difference(expected, _seeded_losses(module, loss, rows, labels, seed=1)) is not None:
        return None
    return _difference(expected, _seeded_losses(module, loss, rows[:-1], labels[:-1], kept))


def _difference(one: Probed, other: Probed) -> str | None:
    if not torch.allclose(one[0], other[0], rtol=1e-4, atol=1e-6, equal_nan=True):
        return "loss"
    # By the largest of all: the bias of an attention's keys gets nothing but what rounding leaves.
    sizes = [
        float(each.abs().max()) for each in map(_dense, one[1]) if each is not None and each.numel()
    ]
    scale = max((size for size in sizes if math.isfinite(size)), default=0.0)
    return (
        None
        if all(_same_gradient(*pair, scale) for pair in zip(one[1], other[1], strict=True))
        else "gradient"
    )


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _same_gradient(one: Tensor | None, other: Tensor | None, scale: float) -> bool:
    one, other = _dense(one), _dense(other)
    if one is None or other is None:
        return one is other
    # zero times the infinity that a made-up row gives is NaN
    finite = one.isfinite() & other.isfinite()
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
