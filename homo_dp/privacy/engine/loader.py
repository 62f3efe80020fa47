"""Poisson batches for a training loop: row numbers from the secure source, rows by index-select.

Opacus' loader collates a batch row by row in Python; a table that is a tensor gives the same batch
in one call. A batch that is too large for memory, or whose rows would be rounded by their position,
comes as several blocks: the optimizer adds up their clipped sums and releases once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from opacus.data_loader import wrap_collate_with_empty
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from homo_dp.privacy.engine.drawn_ahead import PoissonBatches
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import Places
from homo_dp.privacy.gradients.fast.chain import filled
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.sampling.samplers import PoissonSampler


class Block(NamedTuple):
    """Rows of a batch that are in the loop at one time: all of them, or some.

    Attributes:
        features: What the loop gets.
        labels: Their labels.
        filled_features: The same rows, with copies behind them that fill up a multiple.
        filled_labels: Their labels.
        last: Whether the batch ends with this block.
        numbers: Their positions in the table; None where they are made up.
        version: Of ``filled_features`` as the loader gave them: torch counts changes in place.
    """

    features: Tensor
    labels: Tensor
    filled_features: Tensor
    filled_labels: Tensor
    last: bool
    numbers: Tensor | None
    version: int


class CurrentBlock:
    """The block that the loader gave last, for the module and the criterion, which are
    called with its tensors.
    """

    def __init__(self) -> None:
        self.block: Block | None = None
        # whether a backward pass went through the criterion that make_private returned
        self.took_criterion = False

    def forget(self) -> None:
        """Forget the block of an earlier pass over the data."""
        self.block = None

    def features_of(self, given: Tensor) -> Tensor:
        """Features as the loop passes them, filled up if they are those of the block."""
        block = self.block
        return given if block is None or block.features is not given else block.filled_features

    def truth_of(self, given: Tensor) -> tuple[Tensor, bool] | None:
        """The labels of features that the loop passes, and whether a batch ends with them; None
        for other features.
        """
        block = self.block
        return None if block is None or block.features is not given else (block.labels, block.last)

    def labels_of(self, given: Tensor, size: int) -> Tensor:
        """Labels as the loop passes them, filled up to the size of a filled batch."""
        block = self.block
        if block is not None and block.labels is given and block.filled_labels.shape[0] == size:
            return block.filled_labels
        return filled(given, size) if len(given) else given.new_zeros((size, *given.shape[1:]))


class BlockSizes:
    """How many rows of a batch may be taken at once, and what they are filled up to.

    Guarantees:
        - in these blocks the numbers of a row depend on the row alone, as far as ``places`` has
          found out.
    """

    def __init__(
        self,
        places: Places,
        features: Tensor,
        labels: Tensor,
        at_most: Callable[[int], float] = lambda rows: math.inf,
    ) -> None:
        """Prepare the sizes for one table.

        Args:
            places: Which batches of the model may be taken at once.
            features: The rows of the table.
            labels: Their labels.
            at_most: Rows that may be taken at once of a batch that has so many.
        """
        self._places, self._at_most = places, at_most
        self._features, self._labels = features, labels
        self._known: dict[int, tuple[int, int]] = {}

    def of(self, rows: int) -> tuple[int, int]:
        """Rows in a block of a batch of so many, and rows once it is filled up."""
        if rows not in self._known:
            self._known[rows] = self._found(rows)
        return self._known[rows]

    def _found(self, rows: int) -> tuple[int, int]:
        multiple = self._places.multiple
        taken = max(1, int(min(rows, self._at_most(rows))))
        size = taken + -taken % multiple
        if len(self._features):
            size = self._places.at_once(size, self._features, self._labels)
        return min(taken, size), size


def poisson_sampler(
    data_loader: DataLoader[Any],
    sample_rate: float | None = None,
    expected_batch_size: float | None = None,
) -> PoissonSampler:
    """The sampler whose expected batch is the loader's batch: q = batch_size / rows, not 1 / number
    of batches.

    Args:
        data_loader: What the loop would train on without privacy.
        sample_rate: The declared rate, with ``expected_batch_size``: then nothing is read off the
            number of rows, which may be secret.
        expected_batch_size: The declared size of a batch.

    >>> poisson_sampler(DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=4)).sample_rate
    0.4
    """
    if not isinstance(data_loader, DataLoader):
        raise PrivacyError(
            f"data_loader: is a {type(data_loader).__name__}; give a torch.utils.data.DataLoader"
        )
    if isinstance(data_loader.dataset, IterableDataset):
        raise PrivacyError(
            "an IterableDataset cannot be Poisson sampled; give a map-style dataset or tensors"
        )
    rows = len(data_loader.dataset)  # type: ignore[arg-type]
    if (sample_rate is None) != (expected_batch_size is None):
        raise PrivacyError(
            f"sample_rate={sample_rate}, expected_batch_size={expected_batch_size}: give both, or "
            "none"
        )
    if sample_rate is not None and expected_batch_size is not None:
        return PoissonSampler(rows, sample_rate, declared=round(expected_batch_size / sample_rate))
    if rows < 1:
        raise PrivacyError("the dataset has 0 rows; give at least one")
    known = getattr(data_loader.batch_sampler, "sample_rate", None)
    if known is not None:
        return PoissonSampler(rows, float(known))
    batch_size = data_loader.batch_size or getattr(data_loader.batch_sampler, "batch_size", None)
    if batch_size is None:
        raise PrivacyError(
            "the data loader has no batch_size; give one, it is the expected size of a Poisson "
            "batch"
        )
    return PoissonSampler(rows, min(1.0, batch_size / rows))


def poisson_loader(
    data_loader: DataLoader[Any], batches: "PoissonBatchSampler", *, batch_first: bool = True
) -> DataLoader[Any]:
    """A loader over the same data with Poisson batches; empty batches come as empty.

    Guarantees:
        - ``batches`` and nothing else decides who is in a batch.
    """
    rows = table_of(data_loader)
    if rows is not None and batch_first:
        return RowsLoader(rows, batches)
    first = data_loader.dataset[0]
    collate = wrap_collate_with_empty(
        collate_fn=data_loader.collate_fn,
        batch_first=batch_first,
        sample_empty_shapes=[(0, *_shape(value)) for value in first],
        dtypes=[value.dtype if isinstance(value, Tensor) else type(value) for value in first],
    )
    return DataLoader(
        data_loader.dataset,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=data_loader.num_workers,
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
    )


def table_of(data_loader: DataLoader[Any]) -> "TensorRows | None":
    """The rows of a loader where they are tensors that nothing but torch's own collating turns
    into batches.
    """
    if data_loader.collate_fn in (default_collate, _as_is):
        return tensor_rows(data_loader.dataset)
    return None


class PoissonBatchSampler(UniformWithReplacementSampler):  # type: ignore[misc]
    """Batches of row numbers of one epoch; a subclass of Opacus' sampler, so that its memory
    manager accepts it.
    """

    def __init__(self, sampler: PoissonSampler, noise: NoiseSource, steps: int) -> None:
        # Opacus refuses no rows, which would tell that there are none
        rows = max(1, sampler.population)
        super().__init__(num_samples=rows, sample_rate=sampler.sample_rate, steps=steps)
        self._batches = PoissonBatches(sampler, noise)
        self._listeners: list[Callable[[], None]] = []

    def before_batches(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` before the first batch of each pass over the data."""
        self._listeners.append(listener)

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self.batches())

    @property
    def drawn(self) -> PoissonBatches:
        """What draws the batches."""
        return self._batches

    def batches(self) -> Iterator[Tensor]:
        """The same as tensors, which need not become lists of Python numbers and tensors again."""
        for listener in self._listeners:
            listener()
        # what was drawn in another epoch may be in copies of this process
        self._batches.start(self.steps)
        return (self._batches.next() for _ in range(self.steps))


class TensorRows(Dataset[tuple[Tensor, ...]]):
    """Tensors with one row a record, read by index-select; ``order`` maps row numbers for a
    subset.
    """

    def __init__(self, tensors: Sequence[Tensor], order: Tensor | None = None) -> None:
        self.tensors, self._order = tuple(tensors), order

    def __len__(self) -> int:
        return len(self.tensors[0]) if self._order is None else len(self._order)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        row = index if self._order is None else int(self._order[index])
        return tuple(tensor[row] for tensor in self.tensors)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """A whole batch at once; torch's loader calls this where a dataset has it."""
        return self.take(torch.as_tensor(indices, dtype=torch.int64))

    def take(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows of these numbers."""
        rows = self.numbers_of(rows)
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors)

    @property
    def in_order(self) -> bool:
        """Whether row numbers are positions in the tensors."""
        return self._order is None

    def numbers_of(self, rows: Tensor) -> Tensor:
        """The positions in the tensors of rows that are given by number."""
        return (rows if self._order is None else self._order[rows]).to(self.tensors[0].device)


class RowsLoader(DataLoader[Any]):
    """Poisson batches of a table that is a tensor, without the steps by which torch's loader
    gets to a batch.
    """

    def __init__(self, rows: TensorRows, batches: PoissonBatchSampler) -> None:
        super().__init__(rows, batch_sampler=batches, collate_fn=_as_is)
        self._rows, self._batches = rows, batches

    def __iter__(self) -> Any:
        return (self._rows.take(rows) for rows in self._batches.batches())


class _Room(NamedTuple):
    """Views of the buffers in which batches of one size are gathered."""

    own: Tensor
    own_labels: Tensor
    features: Tensor
    labels: Tensor
    gathered: Tensor
    gathered_labels: Tensor


class BlockLoader(DataLoader[Any]):
    """Poisson batches of (features, labels), in blocks in which no row is rounded by its position.

    Guarantees:
        - ``optimizer`` releases once a batch, whatever the number of its blocks, and also for an
          empty one.
    """

    def __init__(
        self,
        rows: TensorRows,
        batches: PoissonBatchSampler,
        sizes: BlockSizes,
        current: CurrentBlock,
        optimizer: DPOptimizer,
        prepared: Tensor,
        *,
        fills: bool = True,
    ) -> None:
        """Make the loader.

        Args:
            rows: Features and labels.
            batches: Draws the row numbers.
            sizes: How large blocks are.
            current: Where module and criterion find the block that the loop has.
            optimizer: Adds up the blocks of a batch.
            prepared: The features as the module gathers them best; the first columns are they.
            fills: Whether what fills up a block has to be copies of rows; else it is whatever an
                earlier block left there.
        """
        super().__init__(rows, batch_sampler=batches, collate_fn=_as_is)
        self._rows, self._batches, self.sizes, self._fills = rows, batches, sizes, fills
        self._current, self._optimizer = current, optimizer
        features, labels = rows.tensors
        self._labels = labels.detach()
        self._features = prepared
        # columns of prepared rows that are the features
        self._width = None if prepared.shape == features.shape else features.shape[1:].numel()
        self._room = self._features[:0], self._labels[:0]
        self._views: dict[tuple[int, int], _Room] = {}
        self._count = len(prepared)
        self._empty: Block | None = None
        self._version = prepared._version

    def __iter__(self) -> Any:
        self._optimizer.check_trained()
        for numbers in self._batches.batches():
            self._optimizer.begin_batch()
            count = numbers.shape[0]
            step, size = self.sizes.of(count)
            for start in range(0, count or 1, step):
                last = start + step >= count
                if start or not last:
                    self._optimizer.signal_skip_step(not last)
                part = numbers[start : start + step] if count > step else numbers
                block = self._block(part, size, last, everybody=count == self._count)
                self._current.block = block
                yield block.features, block.labels

    @property
    def batch_ended(self) -> bool:
        """Whether the block that was handed out last is the last of its batch."""
        block = self._current.block
        return block is not None and block.last

    def _block(self, numbers: Tensor, size: int, last: bool, *, everybody: bool) -> Block:
        count = numbers.shape[0]
        if not count:
            return self._of_nobody(size)
        if everybody and count == size and self._rows.in_order:
            part = slice(int(numbers[0]), int(numbers[0]) + size)  # nothing to gather
            features, labels = self._features[part], self._labels[part]
            own = self._own(features)
            return Block(own, labels, features, labels, last, numbers, self._version)
        if self._fills:
            numbers = filled(numbers, size)
        numbers = self._rows.numbers_of(numbers)
        room = self._views.get((count, size)) or self._room_for(count, size)
        torch.index_select(self._features, 0, numbers, out=room.gathered)
        torch.index_select(self._labels, 0, numbers, out=room.gathered_labels)
        own, own_labels, features, labels, gathered, _ = room
        return Block(own, own_labels, features, labels, last, numbers, gathered._version)

    def _room_for(self, count: int, size: int) -> "_Room":
        """Where the rows and labels of a batch of this size are gathered.

        One buffer for all batches: memory that is given back and asked for again every step costs
        page faults.
        """
        features, labels = self._room
        if len(features) < size:
            self._views.clear()
            most = size + size // 8
            features = self._features.new_zeros((most, *self._features.shape[1:]))
            labels = self._labels.new_zeros((most, *self._labels.shape[1:]))
            self._room = features, labels
        features, labels = features[:size], labels[:size]
        gathered = size if self._fills else count
        found = _Room(
            self._own(features[:count]),
            labels[:count],
            features,
            labels,
            features[:gathered],
            labels[:gathered],
        )
        self._views[count, size] = found
        return found

    def _own(self, features: Tensor) -> Tensor:
        return features if self._width is None else features[:, : self._width]

    def _of_nobody(self, size: int) -> Block:
        """An empty batch: rows of zeros that count for nothing, so that a model which cannot take
        no rows takes it.
        """
        if self._empty is None or len(self._empty.filled_features) != size:
            features = self._features.new_zeros((size, *self._features.shape[1:]))
            labels = self._labels.new_zeros((size, *self._labels.shape[1:]))
            self._empty = Block(features[:0], labels[:0], features, labels, True, None, 0)
        return self._empty._replace()  # each empty batch is one of its own


def tensor_rows(dataset: Dataset[Any]) -> TensorRows | None:
    """The dataset as tensors, without a copy, where it is nothing more; None where rows are made
    by code.
    """
    if isinstance(dataset, TensorRows):
        return dataset
    if (
        isinstance(dataset, TensorDataset)
        and type(dataset).__getitem__ is TensorDataset.__getitem__
    ):
        return TensorRows(dataset.tensors)
    if type(dataset) is Subset:
        inner = tensor_rows(dataset.dataset)
        if inner is not None and inner._order is None:
            return TensorRows(
                inner.tensors, torch.as_tensor(list(dataset.indices), dtype=torch.int64)
            )
    return None


def first_features(dataset: Dataset[Any], count: int = 4) -> Tensor | None:
    """The features of a few rows, for probing a module; None where a row is not (features,
    label).
    """
    rows = [dataset[index] for index in range(min(count, len(dataset)))]  # type: ignore[arg-type]
    if not all(
        isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[0], Tensor)
        for row in rows
    ):
        return None
    return (
        torch.stack([row[0] for row in rows]) if len({row[0].shape for row in rows}) == 1 else None
    )


def steps_for(epochs: int, data_loader: DataLoader[Any]) -> int:
    """Steps that ``epochs`` passes over the loader take."""
    if epochs < 1 or not math.isfinite(epochs):
        raise PrivacyError(f"epochs={epochs} is not >= 1; give the number of passes over the data")
    return math.ceil(epochs * len(data_loader))


def _as_is(batch: Any) -> Any:
    return batch


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()
