"""What noise and samples must satisfy, as functions that raise: the same ones judge our sources and
the broken ones.

Forked children, and code that draws in another order, get other noise, so every check is made at a
false-alarm rate of FALSE_ALARM (exact tests, but for those of Kolmogorov-Smirnov and of
correlation, which are within a factor of ten): with a few hundred checks, a good build fails less
than once in a hundred thousand times that they are made anew.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from homo_dp.privacy.engine import drawn_ahead
from homo_dp.privacy.sampling.samplers import Sampler

FALSE_ALARM = 1e-9


class CheckFailed(AssertionError):
    """A check that did not hold."""


def check_variance(values: Tensor, std: float) -> None:
    """The sum of squares over the variance is chi-square with one degree of freedom a value
    (two-sided).
    """
    statistic = float((values.double() ** 2).sum()) / std**2
    _judge(
        "variance",
        2
        * min(stats.chi2.cdf(statistic, values.numel()), stats.chi2.sf(statistic, values.numel())),
    )


def check_normality(values: Tensor, std: float) -> None:
    """Kolmogorov-Smirnov over the whole line, and a binomial test of how many lie beyond three
    standard deviations.
    """
    standard = values.double().flatten().numpy() / std
    _judge("Kolmogorov-Smirnov", stats.kstest(standard, "norm").pvalue)
    beyond = int((np.abs(standard) > 3).sum())
    _judge("tail", stats.binomtest(beyond, standard.size, 2 * stats.norm.sf(3)).pvalue)


def check_independent(*streams: Tensor) -> None:
    """No value occurs in two streams (float64: by chance below 1e-8), and no two are correlated."""
    for i, one in enumerate(streams):
        for other in streams[i + 1 :]:
            shared = set(one.tolist()) & set(other.tolist())
            if shared:
                raise CheckFailed(f"{len(shared)} values occur in two streams")
            size = min(len(one), len(other))
            z = float(torch.corrcoef(torch.stack([one[:size], other[:size]]))[0, 1]) * size**0.5
            _judge("correlation", 2 * stats.norm.sf(abs(z)))


def check_frequencies(
    counts: NDArray[np.int64], probabilities: NDArray[np.float64] | list[float]
) -> None:
    """Each count is binomial: exact two-sided tests of all cells, with Bonferroni's correction
    for their number.
    """
    _judge_cells("frequencies", counts, int(counts.sum()), np.asarray(probabilities))


def check_poisson(sampler: Sampler, draws: list[Tensor]) -> None:
    """The draws follow the Poisson event that the sampler names: rate of each index, law of the
    sizes, no repeats.
    """
    rate = sampler.event(1.0).event.sampling_probability
    population, count = sampler.population, len(draws)
    if any(len(set(draw.tolist())) != len(draw) for draw in draws):
        raise CheckFailed("an index occurs twice in one draw")
    included = torch.bincount(torch.cat(draws), minlength=population).numpy()
    _judge("total", stats.binomtest(int(included.sum()), population * count, rate).pvalue)
    _judge_cells("inclusion", included, count, np.full(population, rate))
    sizes = np.bincount([len(draw) for draw in draws], minlength=population + 1)
    _judge_cells(
        "sizes", sizes, count, stats.binom.pmf(np.arange(population + 1), population, rate)
    )


def in_forked_child(draw: Callable[[], Tensor], fork: Callable[[], int] = os.fork) -> Tensor:
    """What a fork of this process draws, as float64."""
    read_end, write_end = os.pipe()
    child = fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            with os.fdopen(write_end, "wb") as pipe:
                pipe.write(draw().double().numpy().tobytes())
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        drawn = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise CheckFailed("the forked child could not draw")
    return torch.frombuffer(bytearray(drawn), dtype=torch.float64)


def in_copied_process(draw: Callable[[], Tensor]) -> Tensor:
    """What a copy of this process draws, as a restored snapshot has it: no hook of Python tells the
    copy what it is, and its process number is that of the original; only the operating system's
    entropy is its own. A snapshot has the threads too, which a fork does not: one is started anew.
    """
    number = os.getpid()

    def with_a_thread() -> Tensor:
        drawn_ahead._background.cache_clear()
        return draw()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "getpid", lambda: number)
        patched.setattr(os, "urandom", os.getrandom)
        return in_forked_child(with_a_thread, ctypes.PyDLL(None).fork)


def _judge_cells(
    name: str, counts: NDArray[np.int64], total: int, probabilities: NDArray[np.float64]
) -> None:
    below, above = (
        stats.binom.cdf(counts, total, probabilities),
        stats.binom.sf(counts - 1, total, probabilities),
    )
    _judge(name, 2 * float(np.minimum(below, above).min()) * len(counts))


def _judge(name: str, p_value: float) -> None:
    if not p_value >= FALSE_ALARM:
        raise CheckFailed(f"{name}: p={p_value:.3g} is below {FALSE_ALARM}")
