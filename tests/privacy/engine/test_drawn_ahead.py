"""What is drawn for many steps at once has the law of single draws, and nothing is handed out
twice.
"""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.engine import drawn_ahead
from homo_dp.privacy.engine.drawn_ahead import NoiseVectors, PoissonBatches
from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.noise.grid import on_grid
from homo_dp.privacy.noise.source import SeededNoise, secure_noise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.noise_checks import check_independent, in_copied_process
from tests.privacy.training_parts import PrivateLoop


def test_every_row_is_drawn_at_the_rate_in_every_step() -> None:
    """2,000 batches of 50 rows at q = 0.2: the rate of one row has sigma 0.009; 6 sigma of 50
    rows once in 1e7.
    """
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
    """Overlap of two batches of 1,000 rows at q = 0.5: mean 250, sigma 13.7; 7 sigma once in
    4e11.
    """
    batches = PoissonBatches(PoissonSampler(1000, 0.5), secure_noise())
    one, other = batches.next(), batches.next()
    shared = len(set(one.tolist()) & set(other.tolist()))
    assert abs(shared - 250) < 7 * 13.7


def test_vectors_are_fresh_and_as_many_as_asked() -> None:
    for size in (5, 20_000):  # drawn in blocks, and by the background thread
        vectors = NoiseVectors(secure_noise(), size)
        drawn = torch.stack([vectors.next() for _ in range(6)])
        assert drawn.shape == (6, size)
        assert len({tuple(row[:4].tolist()) for row in drawn}) == 6


def test_seeded_noise_is_repeated_by_its_seed() -> None:
    def drawn() -> torch.Tensor:
        vectors = NoiseVectors(SeededNoise(3), 7)
        return torch.stack([vectors.next() for _ in range(4)])

    assert torch.equal(drawn(), drawn())


@pytest.fixture
def all_cores_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a trainer with as many threads as cores has it, for vectors of a few thousand numbers."""
    for name, value in (("_LONG", 1000), ("_TASK", 700), ("_cores", lambda: 2)):
        monkeypatch.setattr(drawn_ahead, name, value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.usefixtures("all_cores_train")
def test_several_threads_draw_every_number_once() -> None:
    seen = torch.zeros(5000, dtype=torch.float64)
    names = set()

    def work(start: int, noise: Tensor) -> None:
        names.add(threading.current_thread().name)
        seen[start : start + len(noise)] += noise

    vectors = NoiseVectors(secure_noise(), 5000)
    vectors.each(work)
    again = vectors.next()
    assert vectors.producer_cpu_seconds > 0
    assert all(name.startswith("homo_dp noise") for name in names)
    for drawn in (seen, again):
        assert len(set(drawn.tolist())) == 5000
        assert abs(float(drawn.std()) - 1) < 0.08  # 8 sigma: a false alarm once in 1e15
    assert not set(seen.tolist()) & set(again.tolist())


@pytest.mark.usefixtures("all_cores_train")
def test_a_forked_child_draws_without_the_threads_of_its_parent() -> None:
    vectors = NoiseVectors(secure_noise(), 5000)
    before = vectors.next()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found: list[Tensor] = []
        vectors.each(lambda _, noise: found.append(noise))
        own = torch.cat(found).tolist() + vectors.next().tolist()
        os.write(write, b"fresh" if len(set(own) | set(before.tolist())) == 15_000 else b"again")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"fresh"


@pytest.mark.usefixtures("all_cores_train")
def test_what_threads_release_is_the_sum_with_all_of_its_noise() -> None:
    """Rows of zeros: what is released is noise alone, 5 steps of 3,010 numbers; 8 sigma of its
    spread is 0.046.
    """
    module = nn.Linear(300, 10)
    training = PrivateLoop(
        module,
        torch.optim.SGD(module.parameters(), lr=0.0),
        squared_error,
        torch.zeros(16, 300),
        torch.zeros(16, 10),
        sampler=PoissonSampler(16, 0.5),
        noise_multiplier=3.0,
        max_grad_norm=1e-6,
    )
    released = []
    training.run(
        5,
        lambda: released.append(
            torch.cat([p.grad.flatten() for p in module.parameters()])  # type: ignore[union-attr]
        ),
    )
    drawn = torch.stack(released).double() * 8 / 3e-6
    assert abs(float(drawn.std()) - 1) < 0.046
    assert all(on_grid(values.double() * 8, 3e-6) for values in released)
    assert float(drawn[0].dot(drawn[1]).abs()) / 3010 < 8 / 3010**0.5


def test_a_seeded_source_stays_in_its_thread(all_cores_train: None) -> None:
    vectors = NoiseVectors(SeededNoise(3), 5000)
    threads = []
    vectors.each(lambda *_: threads.append(threading.current_thread()))
    assert threads == [threading.main_thread()]


# A copy of a running process


@pytest.mark.parametrize("size", [50, 20_000])
def test_a_copy_of_the_process_has_no_noise_that_was_drawn_ahead(size: int) -> None:
    vectors = NoiseVectors(secure_noise(), size)
    vectors.next()
    copies = [in_copied_process(vectors.next) for _ in range(2)]
    check_independent(vectors.next(), *copies)


@pytest.mark.parametrize("size", [50, 20_000])
def test_copies_share_the_noise_of_a_step_only_with_its_batch(size: int) -> None:
    """Other sums under one noise would differ by what rows are in them: nothing hides that."""
    batches = PoissonBatches(PoissonSampler(1000, 0.3), secure_noise())
    vectors = NoiseVectors(secure_noise(), size, batches)

    def steps() -> Tensor:
        taken = []
        for _ in range(100):
            rows = batches.next()
            vectors.begin()
            first = vectors.next()[:1]
            taken.append(torch.cat([first, rows.double().square().sum().reshape(1)]))
        return torch.stack(taken)

    steps()
    copy, own = in_copied_process(steps).reshape(-1, 2), steps()
    noise, batch = (copy == own).T
    assert bool((batch | ~noise).all())
    assert not bool(noise[-1])


class NoiseOfOlderBatches(PoissonBatches):
    """Does not tell that its batches are new."""

    def _draw_block(self) -> None:
        super()._draw_block()
        self.blocks = 0


def test_the_check_of_copies_sees_noise_that_is_older_than_its_batch() -> None:
    batches = NoiseOfOlderBatches(PoissonSampler(1000, 0.3), secure_noise())
    vectors = NoiseVectors(secure_noise(), 5, batches)

    def step() -> Tensor:
        rows = batches.next()
        return torch.cat([vectors.next()[:1], rows.double().square().sum().reshape(1)])

    step()
    batches.start(50)
    copy, own = in_copied_process(step), step()
    assert (copy == own).tolist() == [True, False]


def test_nothing_drawn_in_one_run_is_used_in_the_next() -> None:
    module = nn.Linear(5, 1)
    training = PrivateLoop(
        module,
        torch.optim.SGD(module.parameters(), lr=0.0),
        squared_error,
        torch.zeros(400, 5),
        torch.zeros(400, 1),
        sampler=PoissonSampler(400, 0.3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    drawn: list[Tensor] = []
    batches = training.loader.batch_sampler.drawn
    real = batches.next
    batches.next = lambda: drawn.append(real()) or drawn[-1]  # type: ignore[func-returns-value]

    def answer() -> Tensor:
        training.run(1)
        noise = torch.cat([p.grad.flatten() for p in module.parameters()])  # type: ignore[union-attr]
        return torch.cat([noise.double(), drawn[-1].double().square().sum().reshape(1)])

    answer()
    copy, own = in_copied_process(answer), answer()
    assert not bool((copy == own).any())
