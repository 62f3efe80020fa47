"""Noise of releases against torch.randn, one thread, sizes 1e3 to 1e7: one JSON line a size, then a
Poisson draw.

`python benchmarks/noise.py`; bars: ratio <= 6 at 100,000 and <= 8 at 1,000,000; exits 1 above them.
`secure` is a sum with its noise on the grid, `share` the same with the integers of a sum over
parties, `normals` the float64 noise alone. Seconds are CPU seconds of the one thread that draws,
which neighbours on a busy machine disturb little; `wall_ratio` is by the clock.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from arguments import parser_for

from homo_dp.privacy.noise.grid import noised, noised_share
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.privacy.sampling.samplers import PoissonSampler

BARS = {100_000: 6.0, 1_000_000: 8.0}


class Timing(NamedTuple):
    """The median CPU and wall seconds of one call."""

    cpu: float
    wall: float


def timings(*works: Callable[[], object], repeats: int, inner: int) -> list[Timing]:
    """One timing a work; the works take turns, so that all of them see the same machine."""
    taken: list[list[Timing]] = [[] for _ in works]
    for _ in range(repeats):
        for work, seen in zip(works, taken, strict=True):
            work()
            wall, cpu = time.perf_counter(), time.thread_time()
            for _ in range(inner):
                work()
            seen.append(
                Timing((time.thread_time() - cpu) / inner, (time.perf_counter() - wall) / inner)
            )
    return [
        Timing(*(statistics.median(column) for column in zip(*seen, strict=True))) for seen in taken
    ]


def normals(size: int) -> dict[str, float | str | None]:
    """One size: a release, a share of one, and normals alone."""
    source, total = secure_noise(), torch.zeros(size, dtype=torch.float64)
    secure, share, double, plain = timings(
        lambda: noised(total, 1.0, source),
        lambda: noised_share(total, 1.0, source),
        lambda: source.normal([size], 1.0, torch.float64),
        lambda: torch.randn(size),
        repeats=15 if size <= 1_000_000 else 5,
        inner=max(1, 200_000 // size),
    )
    return {
        "benchmark": "noise",
        "size": size,
        "secure_seconds": secure.cpu,
        "randn_seconds": plain.cpu,
        "ratio": secure.cpu / plain.cpu,
        "wall_ratio": secure.wall / plain.wall,
        "bar": BARS.get(size),
        "share_ratio": share.cpu / plain.cpu,
        "normals_ratio": double.cpu / plain.cpu,
    }


def poisson(population: int, batch_size: int) -> dict[str, float | str]:
    """One Poisson draw of row numbers, against independent torch.rand coins for all rows."""
    sampler, source = PoissonSampler(population, batch_size / population), secure_noise()
    secure, coins = timings(
        lambda: sampler.draw(source),
        lambda: (torch.rand(population) < sampler.sample_rate).nonzero(),
        repeats=15,
        inner=200,
    )
    return {
        "benchmark": "poisson_draw",
        "population": population,
        "batch_size": batch_size,
        "secure_seconds": secure.cpu,
        "coins_seconds": coins.cpu,
        "ratio": secure.cpu / coins.cpu,
        "wall_ratio": secure.wall / coins.wall,
    }


def main() -> int:
    parser_for(__doc__).parse_args()
    torch.set_num_threads(1)
    passed = True
    for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000):
        line = normals(size)
        print(json.dumps(line), flush=True)
        slowest = max(float(line["ratio"] or 0), float(line["share_ratio"] or 0))
        passed &= slowest <= BARS.get(size, float("inf"))
    print(json.dumps(poisson(10_000, 256)), flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
