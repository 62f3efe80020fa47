"""What private training draws ahead of need: batches of row numbers and vectors of noise, each
handed out once.

Drawing for many steps at a time spreads the cost of a call over those steps. It changes no law:
Poisson sampling takes every row of every step independently, so one draw over ``steps * rows``
virtual rows is exactly ``steps`` draws.

What is drawn ahead is in every copy of this process (a restored snapshot of a machine, CRIU). Two
copies that add one vector of noise to different sums would release the difference of the sums. So
noise is never drawn before the batch that it is added to: copies with the same noise then have the
same batch, and take the same step.
"""

import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from homo_dp.privacy.noise.gaussian import draw_in_background
from homo_dp.privacy.noise.keystream import forks
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.sampling.samplers import PoissonSampler

_BLOCK = 32768  # row numbers (or normals) drawn in one call where a step needs fewer
_AHEAD = 16384  # noise vectors at least this long are drawn by a background thread
_TASK = 1 << 18  # the same where several threads share a vector
_LONG = 1 << 20  # vectors from this length on have no thread beside a trainer that uses all cores


class PoissonBatches:
    """An endless supply of Poisson batches of row numbers.

    Guarantees:
        - each row is in each batch with probability ``sampler.sample_rate``, independently;
        - a batch is handed out once, and never to both sides of a fork; empty batches are batches.
    """

    def __init__(self, sampler: PoissonSampler, noise: NoiseSource) -> None:
        self._noise, self._sampler = noise, sampler
        self._most = max(1, min(128, int(_BLOCK / max(1.0, sampler.expected_size))))
        self._wanted = 1 << 62
        self._ready: list[Tensor] = []
        self._forks = forks()
        self.blocks = 0  # drawn so far: a batch of an older block is never handed out again

    def start(self, steps: int) -> None:
        """Drop what is ready, so that the next batch is drawn afresh, and draw ahead ``steps``
        batches at most.
        """
        self._ready, self._wanted = [], steps

    @property
    def left(self) -> int:
        """Batches that are ready."""
        return len(self._ready)

    def next(self) -> Tensor:
        """The row numbers of the next batch, ascending, int64."""
        if not self._ready or self._forks != forks():
            self._draw_block()
        return self._ready.pop()

    def _draw_block(self) -> None:
        steps, population = max(1, min(self._most, self._wanted)), self._sampler.population
        block = PoissonSampler(
            population * steps, self._sampler.sample_rate, self._sampler.declared
        )
        drawn = block.draw(self._noise)  # ascending, so each step's rows lie together
        # torch's threads do not live through a fork, and a child would wait for them for ever
        rows = drawn.numpy()
        starts = np.arange(steps + 1) * population
        sizes = np.diff(np.searchsorted(rows, starts))
        rows -= np.repeat(starts[:-1], sizes)
        self._ready = list(torch.split(drawn, sizes.tolist()))
        self._wanted -= steps
        self._forks = forks()
        self.blocks += 1


class NoiseVectors:
    """Vectors of ``size`` float64 standard normals, each handed out once.

    A long vector is drawn by a background thread while the gradients of its step are computed, from
    ``begin`` on; short ones are drawn in blocks where it is known which batches they are for. Where
    torch has all cores, a thread beside it would stop one of its threads and make the others wait
    for that one: then very long vectors are drawn when they are needed, piece by piece, by as many
    threads. A seeded source stays in the calling thread, so that a test can be repeated.

    Guarantees:
        - a vector is drawn after the batch of its step: from ``begin`` on, or while ``batches``
          hands out the block in which that batch is.
    """

    def __init__(
        self, noise: NoiseSource, size: int, batches: PoissonBatches | None = None
    ) -> None:
        """Prepare the noise of a training.

        Args:
            noise: The source of all vectors.
            size: Numbers in a vector.
            batches: The batches that they are for, one a vector. Without it nothing is drawn
                before its step.
        """
        self._noise, self._size, self._batches = noise, size, batches
        self._ready: list[Tensor] = []
        self._drawn_for = (-1, forks())
        self._pool_seconds = 0.0
        self._begun: Future[tuple[Tensor, float]] | None = None
        threads = torch.get_num_threads()
        # how many draw one vector together; 0: one thread alone
        by_threads = noise.private and size >= _LONG and 1 < threads >= _cores()
        self.threads = threads if by_threads else 0
        self._in_background = noise.private and size >= _AHEAD and not by_threads

    def begin(self) -> None:
        """Start to draw the vector of a step whose batch is known; nothing if it has begun."""
        if self._in_background:
            self._begun = self._started()

    def next(self) -> Tensor:
        """A fresh vector of independent normals with standard deviation 1."""
        if self._in_background:
            begun, self._begun = self._started(), None
            vector, seconds = begun.result()
            self._pool_seconds += seconds
            return vector
        if self.threads:
            parts: dict[int, Tensor] = {}
            self.each(parts.__setitem__)
            return torch.cat([parts[start] for start in sorted(parts)])
        now = (-1 if self._batches is None else self._batches.blocks, forks())
        if not self._ready or self._drawn_for != now:
            self._ready, self._drawn_for = list(self._draw_block()), now
        return self._ready.pop()

    def each(self, work: Callable[[int, Tensor], None]) -> None:
        """Hand the pieces of a fresh vector to ``work``, each with the position of its first
        number; several threads may call it at a time.
        """
        if self.threads:
            pool = _pool(forks(), self.threads)
            self._pool_seconds += sum(pool.map(self._piece_for(work), range(0, self._size, _TASK)))
        else:
            work(0, self.next())

    def _piece_for(self, work: Callable[[int, Tensor], None]) -> Callable[[int], float]:
        def drawn(start: int) -> float:
            before = time.thread_time()
            noise = self._noise.normal([min(_TASK, self._size - start)], 1.0, torch.float64)
            spent = time.thread_time() - before
            work(start, noise)
            return spent

        return drawn

    def _draw_block(self) -> Tensor:
        count = 1
        if self._batches is not None:
            count = max(1, min(self._batches.left + 1, _BLOCK // self._size))
        return self._noise.normal((count, self._size), 1.0, torch.float64)

    def _started(self) -> Future[tuple[Tensor, float]]:
        """The vector that is being drawn, in this process; a forked child has not its parent's."""
        if self._begun is None or self._drawn_for[1] != forks():
            self._drawn_for = (-1, forks())
            return _background(forks()).submit(_draw, self._noise, self._size)
        return self._begun

    @property
    def producer_cpu_seconds(self) -> float:
        """CPU time of drawing in other threads so far."""
        return self._pool_seconds


@functools.cache
def _background(process: int) -> ThreadPoolExecutor:
    """The one thread of this process (a count of forks) that draws beside trainers."""
    return ThreadPoolExecutor(1, "homo_dp noise beside", initializer=draw_in_background)


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process (a count of forks) that draw one vector together."""
    return ThreadPoolExecutor(threads, "homo_dp noise", initializer=draw_in_background)


def _draw(noise: NoiseSource, size: int) -> tuple[Tensor, float]:
    """A vector, and the CPU time that it took this thread."""
    started = time.thread_time()
    vector = noise.normal([size], 1.0, torch.float64)
    return vector, time.thread_time() - started


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
