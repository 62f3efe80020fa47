"""Whether rows stay alone in batches as large as training uses: a batch's gradients against those
of its rows.

``probe_rows`` tries four made-up rows when training is set up. A model or a loss may treat rows
alone there and let them meet in a larger batch, or where a value is large. So made-up rows of the
size of a batch, and then the real rows of the first steps, go through a copy of the model together
and one at a time; losses and gradients must be the same.

What this cannot see: rows that meet only in later steps, in batches unlike those of the first
steps; and rows that meet by chance, in a layer that draws random numbers of its own (dropout is
switched off for the comparison).
"""

import copy
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.losses import KNOWN_LOSSES, Loss, is_known, per_sample
from homo_dp.privacy.gradients.probing import (
    RowsSecond,
    another_row,
    awake,
    probe_features,
    size_of_all_outputs,
)

# with rows in them; the first may start from weights of zero, the second never does
FIRST_STEPS = 2
_MOST_ALONE = 256  # rows of a batch that are taken one at a time; the others in _PARTS parts
_PARTS = 64
_MADE_UP = 512  # rows at most
# a smaller gradient may be what rounding left of terms that cancel: it is not scaled to one
_ROUNDING = 1e-6
_log = logging.getLogger(__name__)

Losses = Tensor
Gradients = list[Tensor]
Run = Callable[[Tensor, Tensor], tuple[Losses, Callable[[Tensor], Gradients]]]


class RowsAlone:
    """Compares the first batches of a module and a loss with their rows, on a copy in float64.

    Guarantees:
        - a batch in which a row changes the loss, or the gradient, of another row is refused before
          it is summed;
        - the module, its hooks and the random numbers of the program are left as they are.
    """

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        self._loss = loss
        self._left = FIRST_STEPS
        self._name = type(module.inner if isinstance(module, RowsSecond) else module).__name__
        self._doubles = True
        self._twin: nn.Module | None
        try:
            self._twin = copy.deepcopy(module)
        except Exception as error:  # whatever copying somebody's code raises
            _log.warning(
                "%s cannot be copied (%s): its first batches are not compared", self._name, error
            )
            self._twin = None
            return
        self._twin.train()
        for layer in self._twin.modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.eval()

    def compare_made_up(self, features: Tensor, labels: Tensor, size: float) -> None:
        """Compare rows that are made up (integers: rows of the table, again and again), as many as
        a batch has.

        Every fourth row is large, so that what depends on a batch's maximum shows.
        """
        if not len(labels):
            return
        count = max(2, min(_MADE_UP, math.ceil(size)))
        rows = probe_features(features, count)
        if rows.is_floating_point():
            rows[::4] *= 100.0
        targets = labels[:1].repeat(count, *(1,) * (labels.dim() - 1))
        targets[1::2] = another_row(labels, targets[0])
        try:
            self._compare(rows, targets)
        except PrivacyError:
            raise
        except Exception as error:  # rows that the model does not take: the real ones follow
            _log.debug("made-up rows are not taken: %s", error)

    def compare_step(
        self, module: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], *, ended: bool = True
    ) -> bool:
        """Compare blocks of a batch; False once no further batch is to be compared.

        Args:
            module: Has the weights of the step.
            batches: Features and labels of each block.
            ended: Whether the batch ends with these blocks.
        """
        if self._twin is None:
            return False
        if any(len(features) for features, _ in batches):
            with torch.no_grad():
                for own, other in zip(self._twin.parameters(), module.parameters(), strict=True):
                    own.copy_(other)
            for features, labels in batches:
                if len(features):
                    self._compare(features, labels)
            self._left -= ended
        return self._left > 0

    def _compare(self, features: Tensor, labels: Tensor) -> None:
        if self._twin is None:
            return
        if self._doubles:
            self._twin.double()
            try:
                self._compare_as(_double(features), _double(labels), 1e-6)
                return
            except PrivacyError:
                raise
            except Exception:  # a model that makes float32 of its own
                self._doubles = False
                self._twin.to(features.dtype if features.is_floating_point() else torch.float32)
        self._compare_as(features, labels, 1e-2)

    def _compare_as(self, features: Tensor, labels: Tensor, tolerance: float) -> None:
        twin, loss = self._twin, self._loss
        if twin is None:
            return
        trainable = [parameter for parameter in twin.parameters() if parameter.requires_grad]

        def run(rows: Tensor, places: Tensor) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
            outputs = twin(rows)
            losses = per_sample(loss(outputs, labels[places]), len(rows))
            known = getattr(loss, "output_gradient", None)
            if known is None or not outputs.requires_grad:
                return losses, lambda weights: _gradients((losses * weights).sum(), trainable)
            at_outputs: Tensor = known(outputs.detach(), labels[places])
            return losses, lambda weights: _gradients(
                (outputs * _spread(weights, at_outputs)).sum(), trainable
            )

        with torch.enable_grad(), torch.random.fork_rng(devices=[]), awake(twin):
            found = differing(run, features, tolerance)
        if found:
            raise PrivacyError(
                f"{self._name} mixes rows: in a batch of {len(features)} rows a row's {found} is "
                "not what it is alone; use layers (and a loss) that treat each row alone, for "
                "example GroupNorm or LayerNorm"
            )


class FirstBatches:
    """The same in a training loop, by a hook on the module that it calls.

    Where the loss is not known, the sizes of the model's outputs stand in for it, and what the loss
    does to its outputs is not seen.

    Guarantees:
        - as RowsAlone, for rows that meet in the model, and in a loss that is known.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        batch_first: bool = True,
        loss: Loss | None = None,
        block_of: Callable[[Tensor], tuple[Tensor, bool] | None] | None = None,
    ) -> None:
        """Copy the module, before hooks are put on it.

        Args:
            module: The module.
            batch_first: Whether rows are in the first dimension.
            loss: One loss a row, if it is known.
            block_of: For features that the module is called with, their labels and whether a batch
                ends with them; None for features that are no batch. With ``loss``.
        """
        self._module = module if batch_first else RowsSecond(module)
        self._batch_first, self._block_of = batch_first, block_of
        known = keeps_rows_alone(module, KNOWN_LOSSES[0] if loss is None else loss)
        self._alone = (
            None
            if known
            else RowsAlone(self._module, size_of_all_outputs if loss is None else loss)
        )

    def compare_made_up(self, features: Tensor, labels: Tensor, size: float) -> None:
        """As RowsAlone."""
        if self._alone is not None:
            self._alone.compare_made_up(features, labels, size)

    def watch(self, called: nn.Module) -> None:
        """Compare the first batches that this module is called with to be trained."""
        if self._alone is None:
            return
        alone = self._alone

        def compare(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not module.training or not torch.is_grad_enabled() or len(inputs) != 1:
                return
            rows = inputs[0] if self._batch_first else inputs[0].transpose(0, 1)
            found = (rows.detach(), True)
            if self._block_of is not None:
                block = self._block_of(inputs[0])
                if block is None:
                    return
                found = block
            if not alone.compare_step(self._module, [(rows.detach(), found[0])], ended=found[1]):
                handle.remove()

        handle = called.register_forward_pre_hook(compare, prepend=True)


def keeps_rows_alone(module: nn.Module, loss: Loss) -> bool:
    """Whether only layers and losses that are known to treat rows alone touch them: then there is
    nothing to compare.

    >>> keeps_rows_alone(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), KNOWN_LOSSES[0])
    True
    """
    chain, _ = chain_of(module)
    return chain is not None and not chain.has_foreign_code and is_known(loss)


def compare_losses(
    criterion: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> None:
    """Raise PrivacyError if a criterion gives a row of a batch another loss, or gradient, than
    the row alone.
    """

    def run(rows: Tensor, places: Tensor) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
        leaf = rows.detach().requires_grad_()
        losses = per_sample(criterion(leaf, labels[places]), len(leaf))

        def gradients(weights: Tensor) -> Gradients:
            (found,) = _gradients((losses * weights).sum(), [leaf])
            return [torch.zeros_like(outputs, dtype=leaf.dtype).index_copy_(0, places, found)]

        return losses, gradients

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            found = differing(run, outputs.detach().double(), 1e-6)
        except RuntimeError:  # a criterion that makes float32 of its own
            found = differing(run, outputs.detach(), 1e-3)
    if found:
        raise PrivacyError(
            f"the criterion mixes rows: in a batch of {len(outputs)} rows a row's {found} is not "
            "what it is alone; use a loss that treats each row alone"
        )


def differing(run: Run, features: Tensor, tolerance: float, *, linear: bool = True) -> str | None:
    """``loss`` or ``gradient``, if a batch's differ from those of its parts; rows that are not
    finite are left out.

    Rows are weighted so that each has a gradient of about one: a large one would hide what happens
    to the others. The weights differ, as clip factors do, so that a backward pass that mixes what
    it is given shows too. ``linear`` saves the backward pass of each row's weight; a backward pass
    that is not linear, as of clamped gradients, is compared again without.
    """
    if _draws(run, features):
        return None
    generator = torch.Generator().manual_seed(0)
    weights = (
        torch.rand(len(features), generator=generator, dtype=torch.float64)
        .add_(0.5)
        .to(features.device)
    )
    kept, losses = torch.zeros(len(features), dtype=torch.bool, device=features.device), []
    total: Gradients | None = None
    length = 0.0
    for places in _parts(len(features), features.device):
        alone, gradients = run(features[places], places)
        part = gradients(torch.ones_like(alone))
        norm = _norm(part)
        if not math.isfinite(norm) or not bool(alone.isfinite().all()):
            continue
        weights[places] /= norm if norm > _ROUNDING else 1.0
        if linear and len(places) == 1:
            weight = float(weights[places])
            part, norm = [each * weight for each in part], norm * weight
        else:
            part = gradients(weights[places].to(alone.dtype))
            norm = _norm(part)
        total = (
            part if total is None else [one + other for one, other in zip(total, part, strict=True)]
        )
        length += norm
        losses.append(alone.detach())
        kept[places] = True
    if total is None:
        return None
    places = kept.nonzero().squeeze(1)
    together, gradients = run(features[places], places)
    expected = torch.cat(losses)
    if not torch.allclose(
        together.detach(), expected, rtol=tolerance, atol=1e-2 * tolerance, equal_nan=True
    ):
        return "loss"
    batch = gradients(weights[places].to(together.dtype))
    if _norm([one - other for one, other in zip(batch, total, strict=True)]) > tolerance * (
        length + 1e-3
    ):
        return differing(run, features, tolerance, linear=False) if linear else "gradient"
    return None


def _draws(run: Run, features: Tensor) -> bool:
    """Whether a pass draws random numbers, so that two passes cannot be compared."""
    torch.default_generator.manual_seed(0)
    before = torch.get_rng_state()
    run(features[:1], torch.arange(1, device=features.device))
    return not torch.equal(before, torch.get_rng_state())


def _parts(count: int, device: torch.device) -> list[Tensor]:
    places = torch.arange(count, device=device)
    alone = list(torch.split(places[:_MOST_ALONE], 1))
    rest = places[_MOST_ALONE:]
    return alone + (list(rest.chunk(_PARTS)) if len(rest) else [])


def _gradients(value: Tensor, leaves: Sequence[Tensor]) -> Gradients:
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
    made = [
        torch.zeros_like(leaf) if each is None else each
        for leaf, each in zip(leaves, found, strict=True)
    ]
    return [each.to_dense() if each.is_sparse else each for each in made]


def _norm(gradients: Gradients) -> float:
    return math.sqrt(
        sum(float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in gradients)
    )


def _spread(weights: Tensor, values: Tensor) -> Tensor:
    return values * weights.reshape(-1, *[1] * (values.dim() - 1))


def _double(values: Any) -> Any:
    return values.double() if values.is_floating_point() else values
