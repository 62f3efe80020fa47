"""One forward and one backward pass of the fast mode, and the clipped sum that follows from them.

A pass keeps what its sum needs: the gradients at the layers' outputs, or, for a linear model with
one output, the rows in float64. Gradients of single rows are never made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from homo_dp.privacy.engine.loader import CurrentBlock
from homo_dp.privacy.engine.release import ClippedSum
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import Numbers, Places, places_of
from homo_dp.privacy.gradients.fast.called_layers import called_layers_of
from homo_dp.privacy.gradients.fast.chain import FastChain, all_finite, chain_of, filled
from homo_dp.privacy.gradients.fast.linear import LayerInDouble, one_output_layer
from homo_dp.privacy.gradients.losses import Loss, is_known, output_gradient
from homo_dp.privacy.gradients.probing import size_of_outputs
from homo_dp.privacy.gradients.row_sums import BELOW

_AT_ONCE = 64  # rows whose lengths are made together


class Passes(ABC):
    """What is kept between forward, backward and step. No attributes of the module: torch takes
    long to set those.

    Guarantees:
        - one row moves the float64 sum by at most the clip norm, rounding included;
        - a row whose gradient is not finite adds nothing, is counted, and changes no bit of what
          the others add;
        - rows that fill up a batch add nothing.
    """

    def __init__(self, current: CurrentBlock) -> None:
        self._current = current
        self._number = 0
        self._rows = 0  # in the batch, without those that fill it up
        self._ready = False
        self._listeners: list[Callable[[], None]] = []
        self.rows_not_finite = 0
        self.secret_masks: Callable[[], AbstractContextManager[None]] = nullcontext
        """Surrounds forward passes outside of the module's own call, where layers draw masks."""

    @property
    @abstractmethod
    def parameters(self) -> list[nn.Parameter]:
        """Trained weights in the order of the sums."""

    @property
    def number(self) -> int:
        """Which pass this is: a backward pass has to be that of the last forward pass."""
        return self._number

    @property
    def fills(self) -> bool:
        """Whether rows that fill up a batch have to be copies of others: a factor of zero does not
        silence what is not finite.
        """
        return True

    @property
    def ready(self) -> bool:
        """Whether there is a sum to take."""
        return self._ready

    @property
    def columns(self) -> int:
        """Numbers that the sum is written with, those that only fill registers included."""
        return 0

    def before_forward(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at the start of every forward pass: the batch is known by then."""
        self._listeners.append(listener)

    def forward(self, given: Tensor) -> tuple[int, Tensor]:
        """The outputs of a batch; the number names this pass."""
        for listener in self._listeners:
            listener()
        self._number += 1
        self._ready = False
        self._rows = given.shape[0]
        outputs = self._forward(self._current.features_of(given))
        return self._number, outputs[: self._rows]

    def backward(self, number: int, gradient: Tensor) -> None:
        """Take the gradient of the summed loss at the outputs of pass ``number``."""
        self._begin_backward(number)
        if self._rows:
            self._backward(gradient)

    def backward_of(self, number: int, loss: Loss, labels: Tensor) -> None:
        """The same for the outputs that this object has, without autograd where the loss knows
        its gradient.
        """
        self._begin_backward(number)
        if self._rows:
            self._backward_of(loss, labels)

    def _begin_backward(self, number: int) -> None:
        if number != self._number or self._ready:
            raise PrivacyError(
                "grad_sample_mode=fast takes one forward and one backward pass a step; use "
                "grad_sample_mode=hooks"
            )
        self._ready = True

    @abstractmethod
    def take_clipped_sum(
        self, clip_norm: float, clipped: ClippedSum, *, accumulate: bool
    ) -> Callable[[], Tensor]:
        """Write (or add) the clipped sum of the last pass, once; return what gives the norms.

        Args:
            clip_norm: The bound on a row's gradient.
            clipped: Where the sum goes.
            accumulate: Whether to add to what is there.
        """

    def _end_pass(self) -> None:
        if not self._ready:
            raise ValueError(
                "no gradients since the last step: call backward() on the loss before "
                "optimizer.step()"
            )
        self._ready = False

    def prepared(self, features: Tensor) -> Tensor:
        """A table as batches are best gathered from: the same rows."""
        return features

    @abstractmethod
    def kept(self) -> list[Tensor]:
        """What the sum of the last pass is made of, rows first: for ``batch_invariance.py``."""

    @abstractmethod
    def _forward(self, inputs: Tensor) -> Tensor:
        """The outputs of filled rows."""

    @abstractmethod
    def _backward(self, gradient: Tensor) -> None:
        """Keep what the sum needs, given the gradient at the outputs without filling rows."""

    @abstractmethod
    def _backward_of(self, loss: Loss, labels: Tensor) -> None:
        """The same by a loss, given labels without filling rows."""


class ChainPasses(Passes):
    """Passes over a chain of layers; ``exact`` outputs of a linear model stay float64."""

    def __init__(self, chain: FastChain, current: CurrentBlock, *, exact: bool = False) -> None:
        super().__init__(current)
        self._chain, self._exact = chain, exact
        self._linear = chain.only_linear
        if self._linear is not None:
            self._linear.exact = True
        self._inputs = self._outputs = self._gradient = self._squares = torch.zeros(0)
        self._version = 0

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self._chain.parameters  # type: ignore[return-value]

    @torch.no_grad()
    def _forward(self, inputs: Tensor) -> Tensor:
        self._inputs = filled(inputs, self._chain.multiple) if len(inputs) else inputs
        self._version = self._inputs._version
        self._outputs = outputs = self._chain.forward(self._inputs)
        if self._linear is not None and not self._exact and inputs.is_floating_point():
            return outputs.to(inputs.dtype)
        return outputs

    def _backward(self, gradient: Tensor) -> None:
        more = self._inputs.shape[0] - gradient.shape[0]
        if more:
            gradient = torch.cat([gradient, gradient.new_zeros((more, *gradient.shape[1:]))])
        self._keep(gradient)

    def _backward_of(self, loss: Loss, labels: Tensor) -> None:
        outputs = self._outputs
        gradient = output_gradient(loss, outputs, self._current.labels_of(labels, outputs.shape[0]))
        if gradient.shape != outputs.shape:
            raise PrivacyError(
                f"output_gradient of shape {tuple(gradient.shape)} for outputs of shape "
                f"{tuple(outputs.shape)}; return one gradient per output"
            )
        self._keep(gradient)

    @torch.no_grad()
    def _keep(self, gradient: Tensor) -> None:
        if self._inputs.is_floating_point():
            gradient = gradient.to(self._inputs.dtype)
        self._gradient = gradient
        self._squares = self._chain.backward(gradient)

    def kept(self) -> list[Tensor]:
        return [self._squares, *(values.clone() for values in self._chain.kept())]

    @torch.no_grad()
    def take_clipped_sum(
        self, clip_norm: float, clipped: ClippedSum, *, accumulate: bool
    ) -> Callable[[], Tensor]:
        self._end_pass()
        if not self._rows:
            return _nobody(clipped, accumulate)
        if self._inputs._version != self._version:
            raise PrivacyError(
                "a batch was changed between the forward pass and optimizer.step(); change a copy"
            )
        squares = counted = self._squares[: self._rows]
        if not all_finite(counted):
            counted = self._without_rows_that_are_not_finite(counted)
        if len(counted):
            self._chain.write_clipped_sum(counted, clip_norm, clipped.parts, accumulate)
        elif not accumulate:  # not every module takes a batch of no rows
            clipped.total.zero_()
        self._chain.forget()
        return squares.sqrt

    def _without_rows_that_are_not_finite(self, squares: Tensor) -> Tensor:
        """Pass again over the other rows: a factor of zero does not silence NaN."""
        finite = squares.isfinite()
        self.rows_not_finite += int((~finite).sum())
        kept = finite.nonzero().squeeze(1)
        if not len(kept):
            return squares[:0]
        good = filled(kept, self._inputs.shape[0])
        with self.secret_masks():
            self._chain.forward(self._inputs[good])
        return self._chain.backward(self._gradient[good])[: len(kept)]


class OneOutputPasses(Passes):
    """Passes over one Linear layer with one output, which is logistic and linear regression.

    The gradient of a row is one number, the gradient at the output, times the row and its 1 for
    the bias. Its norm is that number times the row's norm, so a row is clipped by clamping one
    number, and a batch costs two products, in float64 (``gradients/fast/linear.py``).
    """

    def __init__(self, module: nn.Linear, current: CurrentBlock, *, exact: bool = False) -> None:
        super().__init__(current)
        self._module, self._exact = module, exact
        self._layer = LayerInDouble(module)
        self._room = self._layer.room(0)
        # views of the room by rows with and without those that fill up: the rows as they are
        # multiplied, their columns, and those that count as they are summed
        self._views: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._inputs = self._table = self._summed = self._outputs = self._gradient = self._room
        self._lengths: Tensor | None = None  # norms of rows that do not change

    @property
    def columns(self) -> int:
        return self._layer.columns

    @property
    def fills(self) -> bool:
        return False  # sums are of the other rows alone

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self._module.parameters() if p.requires_grad]

    def prepared(self, features: Tensor) -> Tensor:
        """A copy of the rows, so that nobody can change one behind the norm that is kept of it;
        or the table of ``LayerInDouble.room`` that they lie in, without norms.
        """
        table = features._base
        if table is not None and self._layer.is_room_of(table, features):
            return table
        if not len(features):
            return features.detach()
        # in blocks of one size, as all numbers are made that must not depend on a row's position
        room, columns, _ = self._room_for(_AT_ONCE, _AT_ONCE)
        lengths = []
        for block in torch.split(features.detach().flatten(1), _AT_ONCE):
            columns.copy_(filled(block, _AT_ONCE))
            lengths.append(torch.linalg.vector_norm(room, dim=1)[: len(block)])
        # of numbers in float32 no product is infinite that would be finite by another way
        if features.dtype is torch.float32:
            self._lengths = torch.cat(lengths)
        return features.detach().clone()

    def _forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs
        if inputs.dim() == 2 and inputs.shape[1] == self._layer.columns:
            self._table, self._summed = inputs, inputs[: self._rows].t()
        else:
            size = inputs.shape[0], self._rows
            room = self._views.get(size) or self._room_for(*size)
            self._table, columns, self._summed = room
            columns.copy_(inputs if inputs.dim() == 2 else inputs.flatten(1))
        self._outputs = outputs = self._layer.outputs(self._table)
        return outputs if self._exact else outputs.to(inputs.dtype).unsqueeze(1)

    def _backward(self, gradient: Tensor) -> None:
        self._gradient = gradient.new_zeros(len(self._table), dtype=torch.float64)
        self._gradient[: len(gradient)] = gradient.reshape(-1)

    def _backward_of(self, loss: Loss, labels: Tensor) -> None:
        outputs = self._outputs
        labels = self._current.labels_of(labels, outputs.shape[0])
        self._gradient = output_gradient(loss, outputs, labels)

    def take_clipped_sum(
        self, clip_norm: float, clipped: ClippedSum, *, accumulate: bool
    ) -> Callable[[], Tensor]:
        self._end_pass()
        count = self._rows
        if not count:
            return _nobody(clipped, accumulate)
        rows, bound = self._summed, clip_norm * BELOW
        lengths = self._lengths_of_rows()
        norms = self._gradient[:count] * lengths
        factors = norms.clamp(-bound, bound).div_(lengths)
        if not all_finite(norms):
            # A factor of zero does not silence NaN, so the row has to go too.
            finite = norms.isfinite()
            self.rows_not_finite += count - int(finite.sum())
            factors = torch.where(finite, factors, 0.0)
            # a copy: later batches find their 1 for the bias
            rows = rows.masked_fill(~finite, 0.0)
        # finite factors, which bound rows, so that the sum is finite
        if accumulate:
            clipped.padded.addmv_(rows, factors)
        else:
            torch.mv(rows, factors, out=clipped.padded)
        clipped.finite = True
        return norms.abs

    def _lengths_of_rows(self) -> Tensor:
        """Norms of the rows of a batch: those that are kept, if it is as the loader gave it."""
        block, kept = self._current.block, self._lengths
        if kept is not None and block is not None and block.numbers is not None:
            inputs = self._inputs
            if block.filled_features is inputs and inputs._version == block.version:
                return kept.index_select(0, block.numbers)
        lengths: Tensor = torch.linalg.vector_norm(self._table, dim=1)
        return lengths[: self._rows]

    def kept(self) -> list[Tensor]:
        lengths: Tensor = torch.linalg.vector_norm(self._table, dim=1)
        return [self._table.clone(), self._gradient, lengths]

    def _room_for(self, size: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """So many float64 rows, of them the columns of the table, and the first ``count`` rows
        transposed.
        """
        if self._room.shape[0] < size:
            self._room = self._layer.room(size + size // 8)
            self._views.clear()
        room = self._room[:size]
        found = room, room[:, : self._layer.parts[0]], room[:count].t()
        self._views[size, count] = found
        return found


def _nobody(clipped: ClippedSum, accumulate: bool) -> Callable[[], Tensor]:
    """The sum of an empty batch."""
    if not accumulate:
        clipped.total.zero_()
    return clipped.total.new_zeros(0).clone


def passes_of(
    module: nn.Module,
    chain: FastChain,
    loss: Loss | None,
    features: Tensor | None,
    current: CurrentBlock,
) -> Passes:
    """The passes of a module whose layers are fast.

    Args:
        module: The module.
        chain: Its layers.
        loss: The loss, if it is known; None where the loop has one of its own, by autograd.
        features: Some rows, if there are any.
        current: The block that the loader gave.
    """
    known = is_known(loss) and not chain.has_foreign_code
    layer = one_output_layer(module) if known or loss is None else None
    # not a sequence, with one output at each position
    flat = (
        features is not None
        and layer is not None
        and features.shape[1:].numel() == layer.in_features
    )
    if layer is not None and flat:
        return OneOutputPasses(layer, current, exact=known)
    return ChainPasses(chain, current, exact=loss is not None)


def places_of_passes(module: nn.Module, chain: FastChain, loss: Loss | None) -> Places:
    """Which batches may be taken at once; models of the same layers share what was found."""
    known = not chain.has_foreign_code and (loss is None or is_known(loss))
    return places_of(module, _numbers(loss), ("fast", loss) if known else None)


def _numbers(loss: Loss | None) -> Numbers:
    def numbers(module: nn.Module, features: Tensor, labels: Tensor) -> list[Tensor]:
        chain = fast_chain(module)
        chain.multiple = 1
        passes = passes_of(module, chain, loss, features, CurrentBlock())
        with torch.no_grad():
            number, _ = passes.forward(features)
            passes.backward_of(number, size_of_outputs if loss is None else loss, labels)
        return passes.kept()

    return numbers


def fast_chain(module: nn.Module) -> FastChain:
    """The layers of a module that was found to have a fast gradient."""
    chain = chain_of(module)[0] or called_layers_of(module)[0]
    if chain is None:
        raise ValueError("the copy of a model is another model")
    return chain
