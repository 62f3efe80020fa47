"""Poisson batches for an Opacus training loop: row numbers from the secure source, rows by index-select.

Opacus' loader collates a batch row by row in Python; a table that is a tensor gives the same batch in one call.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from opacus.data_loader import wrap_collate_with_empty
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

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.privacy.training.batches_and_noise import PoissonBatches


def poisson_sampler(data_loader: DataLoader[Any]) -> PoissonSampler:
    """The sampler whose expected batch is the loader's batch: q = batch_size / rows, not 1 / number of batches.

    >>> poisson_sampler(DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=4)).sample_rate
    0.4
    """
    if isinstance(data_loader.dataset, IterableDataset):
        raise PrivacyError(
            "an IterableDataset cannot be Poisson sampled; give a map-style dataset or tensors"
        )
    rows = len(data_loader.dataset)  # type: ignore[arg-type]
    if rows < 1:
        raise PrivacyError("the dataset has 0 rows; give at least one")
    known = getattr(data_loader.batch_sampler, "sample_rate", None)
    if known is not None:
        return PoissonSampler(rows, float(known))
    batch_size = data_loader.batch_size or getattr(data_loader.batch_sampler, "batch_size", None)
    if batch_size is None:
        raise PrivacyError(
            "the data loader has no batch_size; give one, it is the expected size of a Poisson batch"
        )
    return PoissonSampler(rows, min(1.0, batch_size / rows))


def poisson_loader(
    data_loader: DataLoader[Any],
    sampler: PoissonSampler,
    noise: NoiseSource,
    *,
    batch_first: bool = True,
) -> DataLoader[Any]:
    """A loader over the same data and as many steps an epoch, with Poisson batches; empty batches come as empty.

    Guarantees:
        - rows are drawn by ``sampler`` from ``noise``, nothing else decides who is in a batch.
    """
    steps = len(data_loader)
    batches = PoissonBatchSampler(sampler, noise, steps)
    rows = (
        tensor_rows(data_loader.dataset)
        if data_loader.collate_fn in (default_collate, _as_is)
        else None
    )
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


class PoissonBatchSampler(UniformWithReplacementSampler):  # type: ignore[misc]
    """Batches of row numbers of one epoch; a subclass of Opacus' sampler, so that its memory manager accepts it."""

    def __init__(self, sampler: PoissonSampler, noise: NoiseSource, steps: int) -> None:
        super().__init__(
            num_samples=sampler.population, sample_rate=sampler.sample_rate, steps=steps
        )
        self._batches = PoissonBatches(sampler, noise)

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self.batches())

    def batches(self) -> Iterator[Tensor]:
        """The same as tensors, which need not become lists of Python numbers and tensors again."""
        return (self._batches.next() for _ in range(self.steps))


class TensorRows(Dataset[tuple[Tensor, ...]]):
    """Tensors with one row a record, read by index-select; ``order`` maps row numbers for a subset."""

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
        if self._order is not None:
            rows = self._order[rows]
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors)


class RowsLoader(DataLoader[Any]):
    """Poisson batches of a table that is a tensor, without the steps by which torch's loader gets to a batch."""

    def __init__(self, rows: TensorRows, batches: PoissonBatchSampler) -> None:
        super().__init__(rows, batch_sampler=batches, collate_fn=_as_is)
        self._rows, self._batches = rows, batches

    def __iter__(self) -> Any:
        return (self._rows.take(rows) for rows in self._batches.batches())


def tensor_rows(dataset: Dataset[Any]) -> TensorRows | None:
    """The dataset as tensors, without a copy, where it is nothing more; None where rows are made by code."""
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
    """The features of a few rows, for probing a module; None where a row is not (features, label)."""
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
