"""Whether a row gets the same numbers wherever it stands in a batch, bit by bit: tried out for
every size of batch.

How a product of matrices rounds a row may depend on where the row lies in memory, and so on the
rows before it. Where a network turns the last bit into a whole gradient (a ReLU at zero, or large
weights), one record more then changes the gradients of all records behind it: 18 C for two layers
with weights of one and 800 crafted rows. Clipping does not help, since it bounds each row and not
how many rows change.

So batches are filled up to a multiple of 8 to 32 rows (``fast/chain.py``), narrow products are made
wide (``fast/invariant_products.py``), and what is left to the libraries is tried: copies of 64
rows, at all places of a batch, go through a copy of the model with weights of our own, and all that
sums are made of must be equal. Kernels are chosen by shapes and threads, not by values. A size that
fails is taken in pieces of one that does not, at worst row by row.
"""

import copy
import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.fast.chain import rows_multiple
from homo_dp.privacy.gradients.probing import probe_features, table_rows

_PIECES = (64, 32, 16, 8)  # sizes of batches that may stand in for others
_DIFFERENT = 64  # rows
_MOST_KNOWN = 256
_log = logging.getLogger(__name__)

Numbers = Callable[[nn.Module, Tensor, Tensor], list[Tensor]]
"""All that the sums of a batch (features, labels) through a module are made of, rows first."""


class Places:
    """Which batches of one model may be taken at once.

    Guarantees:
        - in pieces of ``at_once`` rows, filled up to that size, the numbers of a row depend on the
          row alone: as far as can be tried with made-up rows and weights, on this machine and with
          these threads. Layers that draw random numbers of their own (not dropout) cannot be
          compared and are taken as they come.
    """

    def __init__(self, module: nn.Module, numbers: Numbers) -> None:
        self._module, self._numbers = module, numbers
        self._rows, self._labels = torch.zeros(0), torch.zeros(0)
        self._expected: list[Tensor] = []
        self._piece = 0
        self._sizes: dict[int, int] = {}
        self.multiple = rows_multiple(module.parameters())

    def at_once(self, size: int, features: Tensor, labels: Tensor) -> int:
        """Rows to take at a time of a batch that has this size when it is filled up."""
        if size not in self._sizes:
            with torch.random.fork_rng(devices=[]):
                self._sizes[size] = self._found(size, features, labels)
        return self._sizes[size]

    def _found(self, size: int, features: Tensor, labels: Tensor) -> int:
        try:
            twin = _twin(self._module)
            if not self._piece:
                self._choose(twin, features, labels)
            if self._piece in (1, size) or self._draws(twin):
                return self._piece if self._piece == 1 else size
            return size if self._same(twin, size) else self._piece
        except Exception as error:  # whatever copying or calling somebody's code raises
            _log.warning(
                "%s cannot be tried out (%s): one row at a time",
                type(self._module).__name__,
                error,
            )
            return 1

    def _choose(self, twin: nn.Module, features: Tensor, labels: Tensor) -> None:
        """Find a size at which all places are equal; what it gives is what other sizes have to
        give.
        """
        self._labels = table_rows(labels, _DIFFERENT)
        self._rows = probe_features(features, _DIFFERENT)
        try:
            taken = all(
                bool(values.isfinite().all())
                for values in self._numbers(twin, self._rows, self._labels)
            )
        except Exception:  # made-up rows that the model does not take
            taken = False
        if not taken:
            self._rows = table_rows(features, _DIFFERENT)
        for piece in _PIECES:
            parts = [
                self._numbers(twin, self._rows[places], self._labels[places])
                for places in torch.split(torch.arange(_DIFFERENT), piece)
            ]
            self._expected = [torch.cat(each) for each in zip(*parts, strict=True)]
            if self._draws(twin) or self._same(twin, piece):
                self._piece = piece
                return
        self._piece = 1
        _log.warning(
            "%s: products round a row by its place in a batch on this machine, so rows are taken "
            "one at a time",
            type(self._module).__name__,
        )

    def _same(self, twin: nn.Module, size: int) -> bool:
        generator = torch.Generator().manual_seed(size)
        for _ in range(max(1, 2 * _DIFFERENT // size)):
            places = torch.randint(0, _DIFFERENT, (size,), generator=generator)
            numbers = self._numbers(twin, self._rows[places], self._labels[places])
            if not all(map(_equal, numbers, [values[places] for values in self._expected])):
                return False
        return True

    def _draws(self, twin: nn.Module) -> bool:
        before = torch.get_rng_state()
        self._numbers(twin, self._rows[:1], self._labels[:1])
        return not torch.equal(before, torch.get_rng_state())


_known: dict[tuple[object, ...], Places] = {}


def places_of(module: nn.Module, numbers: Numbers, key: tuple[object, ...] | None) -> Places:
    """The places of a model; with a key, models of the same layers and sizes share what was
    found.
    """
    if key is None:
        return Places(module, numbers)
    shapes = tuple((tuple(parameter.shape), parameter.dtype) for parameter in module.parameters())
    full = (repr(module), shapes, torch.get_num_threads(), *key)
    if full not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[full] = Places(module, numbers)
    return _known[full]


def _twin(module: nn.Module) -> nn.Module:
    """A copy with random weights, since those that an aggregator sends might show nothing, and
    without dropout.
    """
    twin = copy.deepcopy(module).train()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in twin.parameters():
            size = (
                1.0 / math.sqrt(parameter[0].numel())
                if parameter.dim() > 1 and len(parameter)
                else 0.5
            )
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    for layer in twin.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.eval()
    return twin


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
