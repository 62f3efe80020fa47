"""What private training draws ahead of need: batches of row numbers and vectors of noise, each handed out once.

Drawing for many steps at a time spreads the cost of a call over those steps. It changes no law: Poisson sampling takes
every row of every step independently, so one draw over ``steps * rows`` virtual rows is exactly ``steps`` draws.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from homo_dp.privacy.noise.gaussian import draw_in_background
from homo_dp.privacy.noise.keystream import forks
from homo_dp.privacy.noise.source import BackgroundNormals, NoiseSource
from homo_dp.privacy.sampling.samplers import PoissonSampler

_BLOCK = 8192  # row numbers (or normals) drawn in one call where a step needs fewer
_AHEAD = 16384  # noise vectors at least this long are drawn by a background thread
_TOGETHER = (
    1 << 20
)  # normals that the thread draws in one go: threads that meet less often disturb each other less
_TASK = 1 << 18  # the same where several threads share a vector
_LONG = 1 << 20  # vectors from this length on have no thread beside a trainer that uses all cores


class PoissonBatches:
    """An endless supply of Poisson batches of row numbers.

    Guarantees:
        - each row is in each batch with probability ``sampler.sample_rate``, independently;
        - a batch is handed out once, and never to both sides of a fork; empty batches are batches.
    """

    def __init__(self, sampler: PoissonSampler, noise: NoiseSource) -> None:
        self._noise = noise
        self._population = sampler.population
        self._steps = max(1, min(64, int(_BLOCK / max(1.0, sampler.expected_size))))
        self._block = PoissonSampler(
            sampler.population * self._steps, sampler.sample_rate, sampler.declared
        )
        self._ready: list[Tensor] = []
        self._forks = forks()

    def next(self) -> Tensor:
        """The row numbers of the next batch, ascending, int64."""
        if not self._ready or self._forks != forks():
            self._draw_block()
        return self._ready.pop()

    def _draw_block(self) -> None:
        drawn = self._block.draw(self._noise)  # ascending, so each step's rows lie together
        rows = (
            drawn.numpy()
        )  # torch's threads do not live through a fork, and a child would wait for them for ever
        starts = np.arange(self._steps + 1) * self._population
        sizes = np.diff(np.searchsorted(rows, starts))
        rows -= np.repeat(starts[:-1], sizes)
        self._ready = list(torch.split(drawn, sizes.tolist()))
        self._forks = forks()


class NoiseVectors:
    """Vectors of ``size`` float64 standard normals for the steps of a run, each handed out once; close it after that.

    Long vectors come from a background thread while the trainer computes; short ones are drawn in blocks. Where torch
    has all cores, a thread beside it would stop one of its threads and make the others wait for that one: then very
    long vectors are drawn when they are needed, piece by piece, by as many threads. A seeded source stays in the
    calling thread, so that a test can be repeated.
    """

    def __init__(self, noise: NoiseSource, size: int, steps: int) -> None:
        self._noise, self._size = noise, size
        self._left = steps
        self._ready: list[Tensor] = []
        self._forks = forks()
        self._ahead: BackgroundNormals | None = None
        self._pool_seconds = 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._pool_forks = forks()
        threads = torch.get_num_threads()
        if noise.private and size >= _LONG and 1 < threads >= _cores():
            self._pool = ThreadPoolExecutor(
                threads, "homo_dp noise", initializer=draw_in_background
            )
        elif noise.private and size >= _AHEAD and steps > 2:
            self._together = max(1, min(steps // 4, _TOGETHER // size))
            self._ahead = BackgroundNormals(
                noise, size * self._together, depth=1 if self._together > 1 else 2
            )

    def next(self) -> Tensor:
        """A fresh vector of independent normals with standard deviation 1."""
        if not self._ready or self._forks != forks():
            self._ready = list(self._draw_block())
            self._forks = forks()
        self._left -= 1
        return self._ready.pop()

    def each(self, work: Callable[[int, Tensor], None]) -> None:
        """Hand the pieces of a fresh vector to ``work``, each with its place; several threads may call it at a time."""
        if (
            self._pool is None or self._pool_forks != forks()
        ):  # a forked child has none of the threads
            work(0, self.next())
        else:
            self._pool_seconds += sum(
                self._pool.map(self._piece_for(work), range(0, self._size, _TASK))
            )

    def _piece_for(self, work: Callable[[int, Tensor], None]) -> Callable[[int], float]:
        def drawn(start: int) -> float:
            before = time.thread_time()
            noise = self._noise.normal([min(_TASK, self._size - start)], 1.0, torch.float64)
            spent = time.thread_time() - before
            work(start, noise)
            return spent

        return drawn

    def _draw_block(self) -> Tensor:
        if self._ahead is not None:
            more = max(0, -(-self._left // self._together) - 1)
            return self._ahead.take(more).view(self._together, self._size)
        if self._pool is not None and self._pool_forks == forks():
            parts: dict[int, Tensor] = {}
            self.each(parts.__setitem__)
            return torch.cat([parts[start] for start in sorted(parts)]).view(1, self._size)
        count = max(1, min(self._left, _BLOCK // self._size))
        return self._noise.normal((count, self._size), 1.0, torch.float64)

    @property
    def producer_cpu_seconds(self) -> float:
        """CPU time of drawing in other threads so far."""
        return self._pool_seconds if self._ahead is None else float(self._ahead.cpu_seconds)

    def close(self) -> None:
        """Drop what was not used and end the background thread."""
        self._ready = []
        if self._ahead is not None:
            self._ahead.close()
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> "NoiseVectors":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
