"""Poisson loaders and the draws behind them: every row at the rate, every draw once, no copy of
the table.
"""

import os
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from homo_dp.privacy.engine.drawn_ahead import NoiseVectors, PoissonBatches
from homo_dp.privacy.engine.loader import (
    PoissonBatchSampler,
    TensorRows,
    poisson_loader,
    poisson_sampler,
    steps_for,
    tensor_rows,
)
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise, secure_noise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.noise_checks import check_independent, in_forked_child


def test_blocks_of_batches_are_independent_poisson_batches() -> None:
    """2,000 batches of 50 rows at q = 0.05: a row counts 100 +- 9.7, sizes have variance 2.4; 7
    sigma, once in 1e9.
    """
    batches = PoissonBatches(PoissonSampler(50, 0.05), secure_noise())
    drawn = [batches.next() for _ in range(2000)]
    assert all(bool((batch.diff() > 0).all()) for batch in drawn), (
        "rows of a batch ascend and are distinct"
    )
    counts = torch.bincount(torch.cat(drawn), minlength=50).double()
    assert float((counts - 100).abs().max()) < 7 * (2000 * 0.05 * 0.95) ** 0.5
    sizes = torch.tensor([float(len(batch)) for batch in drawn])
    assert abs(float(sizes.var()) - 2.375) < 7 * 2.375 * (2 / 2000) ** 0.5
    assert 0 in sizes, "a batch of 50 rows is empty at 8 %: none of 2,000 happens once in 1e69 runs"
    together = torch.stack([torch.isin(torch.arange(50), batch) for batch in drawn]).double()
    neighbours = torch.corrcoef(torch.stack([together[:-1].flatten(), together[1:].flatten()]))[
        0, 1
    ]
    assert abs(float(neighbours)) < 7 / (1999 * 50) ** 0.5


def test_a_rate_of_one_takes_everybody_every_time() -> None:
    batches = PoissonBatches(PoissonSampler(7, 1.0), secure_noise())
    assert all(batches.next().tolist() == list(range(7)) for _ in range(200))


@pytest.mark.parametrize("size", [3, 500, 20_000])
def test_noise_vectors_are_fresh_standard_normals(size: int) -> None:
    """At least 20,000 normals a case: 6 sigma of their variance, a false alarm once in 5e8.

    Whole vectors are compared: two of 6,666 single float32 normals are often the same.
    """
    steps = max(4, 20_000 // size)
    vectors = NoiseVectors(secure_noise(), size)
    drawn = torch.stack([vectors.next() for _ in range(steps)])
    assert drawn.shape == (steps, size)
    assert len({tuple(row) for row in drawn.tolist()}) == steps
    assert abs(float(drawn.double().square().mean()) - 1) < 6 * (2 / drawn.numel()) ** 0.5


def test_seeded_vectors_repeat() -> None:
    first, again = (NoiseVectors(SeededNoise(1), 20_000) for _ in range(2))
    assert all(torch.equal(first.next(), again.next()) for _ in range(4))


def test_the_rate_is_batch_over_rows() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(1000, 1)), batch_size=300)
    sampler = poisson_sampler(loader)
    assert (sampler.population, sampler.sample_rate, sampler.expected_size) == (1000, 0.3, 300.0)
    again = poisson_loader(loader, PoissonBatchSampler(sampler, secure_noise(), len(loader)))
    assert poisson_sampler(again) == sampler, "a loader made private twice keeps its rate"
    assert (len(again), steps_for(3, again)) == (4, 12)
    assert (
        poisson_sampler(DataLoader(TensorDataset(torch.zeros(5, 1)), batch_size=9)).sample_rate
        == 1.0
    )


def test_tensors_are_read_without_a_copy_and_subsets_through_their_order() -> None:
    table, labels = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    dataset = TensorDataset(table, labels)
    rows = tensor_rows(dataset)
    assert isinstance(rows, TensorRows)
    assert rows.tensors[0] is table
    part = tensor_rows(Subset(dataset, [9, 3, 5]))
    assert part is not None
    assert len(part) == 3
    assert part.__getitems__([0, 2])[1].tolist() == [9, 5]
    assert part[1][1].item() == 3
    assert [tensor.shape for tensor in part.__getitems__([])] == [(0, 2), (0,)]


def test_datasets_with_code_of_their_own_are_not_read_around_it() -> None:
    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            return tuple(tensor[index] * 2 for tensor in self.tensors)

    dataset = Augmented(torch.ones(6, 2), torch.ones(6))
    assert tensor_rows(dataset) is None
    batches = PoissonBatchSampler(PoissonSampler(6, 1.0), secure_noise(), 1)
    loader = poisson_loader(DataLoader(dataset, batch_size=6), batches)
    (batch,) = list(loader)
    assert batch[0].tolist() == [[2.0, 2.0]] * 6


def test_loaders_that_cannot_be_sampled_are_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

    with pytest.raises(PrivacyError, match="IterableDataset"):
        poisson_sampler(DataLoader(Stream()))
    with pytest.raises(PrivacyError, match="no batch_size"):
        poisson_sampler(DataLoader(TensorDataset(torch.zeros(3)), batch_size=None))
    with pytest.raises(PrivacyError, match="epochs=0"):
        steps_for(0, DataLoader(TensorDataset(torch.zeros(3))))


def test_what_was_drawn_ahead_is_never_used_on_both_sides_of_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where the child has its parent's process number, as the first process of two
    containers has.
    """
    number = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: number)
    batches = PoissonBatches(PoissonSampler(1000, 0.1), secure_noise())
    batches.next()
    for size in (100, 20_000):  # drawn in blocks, and several at a time by a thread
        vectors = NoiseVectors(secure_noise(), size)
        vectors.next()
        children = [in_forked_child(vectors.next) for _ in range(2)]
        check_independent(vectors.next(), *children)
    drawn = [in_forked_child(batches.next), in_forked_child(batches.next), batches.next().double()]
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2)), (
        "1,000 coins alike: once in 1e80"
    )
