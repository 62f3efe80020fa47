"""What is drawn for many steps at once has the law of single draws, and nothing is handed out twice."""

from __future__ import annotations

import torch

from homo_dp.privacy.noise.source import SeededNoise, secure_noise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.privacy.training.batches_and_noise import NoiseVectors, PoissonBatches


def test_every_row_is_drawn_at_the_rate_in_every_step() -> None:
    """2,000 batches of 50 rows at q = 0.2: the rate of one row has sigma 0.009; 6 sigma of 50 rows once in 1e7."""
    batches = PoissonBatches(PoissonSampler(50, 0.2), secure_noise())
    counts = torch.zeros(50)
    sizes = set()
    for _ in range(2000):
        rows = batches.next()
        assert rows.tolist() == sorted(set(rows.tolist()))
        counts[rows] += 1
        sizes.add(len(rows))
    assert float((counts / 2000 - 0.2).abs().max()) < 6 * (0.16 / 2000) ** 0.5
    assert len(sizes) > 3


def test_neighbouring_steps_of_one_block_are_independent() -> None:
    """Overlap of two batches of 1,000 rows at q = 0.5: mean 250, sigma 13.7; 7 sigma once in 4e11."""
    batches = PoissonBatches(PoissonSampler(1000, 0.5), secure_noise())
    one, other = batches.next(), batches.next()
    shared = len(set(one.tolist()) & set(other.tolist()))
    assert abs(shared - 250) < 7 * 13.7


def test_vectors_are_fresh_and_as_many_as_asked() -> None:
    for size in (5, 20_000):  # drawn in blocks, and by the background thread
        with NoiseVectors(secure_noise(), size, steps=6) as vectors:
            drawn = torch.stack([vectors.next() for _ in range(6)])
        assert drawn.shape == (6, size)
        assert len({tuple(row[:4].tolist()) for row in drawn}) == 6


def test_seeded_noise_is_repeated_by_its_seed() -> None:
    def drawn() -> torch.Tensor:
        with NoiseVectors(SeededNoise(3), 7, steps=4) as vectors:
            return torch.stack([vectors.next() for _ in range(4)])

    assert torch.equal(drawn(), drawn())
