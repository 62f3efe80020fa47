"""Noise has the law it claims, is never repeated, and the checks that say so can fail (rates:
see noise_checks).
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.keystream import RepeatableKeystream
from homo_dp.privacy.noise.source import (
    NoiseSource,
    OrdinaryNoise,
    SecureNoise,
    SeededNoise,
    _binomial_table,
    secure_noise,
)
from tests.privacy.broken_noise import HalfNoise, NoNoise, ReusedStream, SharedSeed, UniformNoise
from tests.privacy.noise_checks import (
    CheckFailed,
    check_frequencies,
    check_independent,
    check_normality,
    check_variance,
    in_copied_process,
    in_forked_child,
)


def draw(source: NoiseSource, size: int = 4096) -> Tensor:
    return source.normal([size], 1.0, torch.float64)


# The law of the normals


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "std"), [([200_001], 1.0), ([300, 700], 0.01), ([17, 11, 1000], 250.0)]
)
def test_normals_have_the_asked_variance_and_law(
    dtype: torch.dtype, shape: list[int], std: float
) -> None:
    values = secure_noise().normal(shape, std, dtype)
    assert values.dtype == dtype
    assert list(values.shape) == shape
    check_variance(values, std)
    check_normality(values, std)


def test_many_small_draws_have_the_same_law() -> None:
    values = torch.cat([secure_noise().normal([size], 2.0) for size in range(1, 600)])
    check_variance(values, 2.0)
    check_normality(values, 2.0)


def test_neighbours_within_a_draw_are_independent() -> None:
    values = draw(secure_noise(), 100_000)
    half = len(values) // 2
    check_independent(values[:half], values[half:])
    check_independent(values[0::2], values[1::2])
    check_independent(values[:half] ** 2 - 1, values[half:] ** 2 - 1)


@pytest.mark.parametrize("broken", [HalfNoise, NoNoise])
def test_the_variance_check_sees_too_little_noise(broken: type[SecureNoise]) -> None:
    with pytest.raises(CheckFailed, match="variance"):
        check_variance(broken().normal([1000], 1.0), 1.0)


def test_the_normality_check_sees_another_law() -> None:
    with pytest.raises(CheckFailed, match="Kolmogorov"):
        check_normality(UniformNoise().normal([200_000], 1.0), 1.0)


@pytest.mark.parametrize(("shape", "count"), [([], 1), ([0], 0), ([3, 0, 2], 0), ([1, 1], 1)])
def test_odd_shapes(shape: list[int], count: int) -> None:
    values = secure_noise().normal(shape, 1.0)
    assert list(values.shape) == shape
    assert values.numel() == count


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-40, 1e38])
def test_noise_that_would_vanish_or_overflow_is_refused(std: float) -> None:
    with pytest.raises(PrivacyError, match="std="):
        secure_noise().normal([3], std)


def test_types_without_secure_normals_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"dtype=torch\.float16.*convert"):
        secure_noise().normal([3], 1.0, torch.float16)


@pytest.mark.parametrize("source", [secure_noise(), SecureNoise()])
def test_forked_processes_draw_apart(source: SecureNoise) -> None:
    source.normal([10], 1.0)
    children = [in_forked_child(lambda: draw(source)) for _ in range(3)]
    grandchild = in_forked_child(lambda: in_forked_child(lambda: draw(source)))
    check_independent(draw(source), *children, grandchild)


def test_forked_processes_sample_apart() -> None:
    children = [in_forked_child(lambda: secure_noise().uniform(2000)) for _ in range(2)]
    check_independent(secure_noise().uniform(2000), *children)


@pytest.mark.parametrize("broken", [ReusedStream, SharedSeed])
def test_the_fork_check_sees_a_reused_stream(broken: type[SecureNoise]) -> None:
    source = broken()
    with pytest.raises(CheckFailed):
        check_independent(
            in_forked_child(lambda: draw(source)), in_forked_child(lambda: draw(source))
        )


def test_a_fork_while_other_threads_draw_neither_hangs_nor_repeats() -> None:
    source = SecureNoise()
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(draw, source, 1_000_000) for _ in range(2)]
        children = [in_forked_child(lambda: draw(source)) for _ in range(5)]
        check_independent(*children, *(work.result()[:4096] for work in busy))


def test_threads_of_one_source_never_share_a_value() -> None:
    source = SecureNoise()
    with ThreadPoolExecutor(4) as pool:
        streams = list(
            pool.map(lambda _: torch.cat([draw(source, 500) for _ in range(8)]), range(8))
        )
    check_independent(*streams)
    check_variance(torch.cat(streams), 1.0)
    check_normality(torch.cat(streams), 1.0)


def test_the_thread_check_sees_a_shared_seed() -> None:
    with ThreadPoolExecutor(2) as pool, pytest.raises(CheckFailed):
        check_independent(*pool.map(lambda _: draw(SharedSeed()), range(2)))


def test_two_sources_of_one_process_draw_apart() -> None:
    check_independent(draw(SecureNoise()), draw(SecureNoise()), draw(secure_noise()))


# The draws that sampling needs


def test_uniforms_fill_the_unit_interval_without_zero() -> None:
    values = secure_noise().uniform(200_000)
    assert values.dtype == torch.float64
    assert float(values.min()) > 0
    assert float(values.max()) <= 1
    assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-9
    assert ((values * 2**53) % 1 == 0).all()
    assert ((values * 2**52) % 1 != 0).any()  # all 53 bits are used: by chance not in 2**-200000


@pytest.mark.parametrize("high", [2, 3, 10, 1000])
def test_integers_are_uniform(high: int) -> None:
    values = secure_noise().integers(high, 50_000)
    assert values.dtype == torch.int64
    check_frequencies(torch.bincount(values, minlength=high).numpy(), [1 / high] * high)


def test_integers_are_uniform_where_a_plain_remainder_is_not() -> None:
    high = 2**65 // 9  # words would wrap around four times and a half
    values = secure_noise().integers(high, 100_000).double() / high
    assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-9
    biased = (secure_noise()._stream.words(100_000) % np.uint64(high)) / high
    assert stats.kstest(biased, "uniform").pvalue < 1e-9


@pytest.mark.parametrize(
    ("n", "p"), [(1, 0.3), (20, 0.5), (200, 0.01), (10_000, 0.0256), (1000, 0.999), (50, 1e-3)]
)
def test_binomials_have_their_law(n: int, p: float) -> None:
    draws = np.bincount([secure_noise().binomial(n, p) for _ in range(20_000)], minlength=n + 1)
    check_frequencies(draws, stats.binom.pmf(np.arange(n + 1), n, p))


@pytest.mark.parametrize(("n", "p"), [(5, 0.3), (12, 0.5), (40, 0.9), (3, 1e-300), (9, 1 - 2**-53)])
def test_the_binomial_table_is_the_exact_distribution(n: int, p: float) -> None:
    exact, cumulative = Fraction(p), Fraction(0)
    first, thresholds = _binomial_table(n, p)
    for k in range(n + 1):
        cumulative += math.comb(n, k) * exact**k * (1 - exact) ** (n - k)
        place = k - first
        got = (
            Fraction(0)
            if place < 0
            else Fraction(thresholds[place], 2**128)
            if place < len(thresholds)
            else 1
        )
        assert abs(got - cumulative) < Fraction(1, 2**120)


def test_binomials_of_large_variance_are_sums_of_halves() -> None:
    n, p = 10**9, 0.25
    z = np.array(
        [(secure_noise().binomial(n, p) - n * p) / math.sqrt(n * p * (1 - p)) for _ in range(400)]
    )
    check_variance(torch.from_numpy(z), 1.0)
    check_normality(torch.from_numpy(z), 1.0)


@pytest.mark.parametrize(
    ("n", "p", "only"), [(0, 0.5, 0), (10, 0.0, 0), (10, 1.0, 10), (10**12, 1.0, 10**12)]
)
def test_binomials_without_chance(n: int, p: float, only: int) -> None:
    assert secure_noise().binomial(n, p) == only


@pytest.mark.parametrize(("population", "size"), [(5, 1), (5, 2), (5, 3), (5, 4), (7, 3)])
def test_every_choice_is_equally_likely(population: int, size: int) -> None:
    places = {chosen: i for i, chosen in enumerate(combinations(range(population), size))}
    counts = np.zeros(len(places), np.int64)
    for _ in range(10_000):
        counts[places[tuple(secure_noise().choice(population, size).tolist())]] += 1
    check_frequencies(counts, [1 / len(places)] * len(places))


@pytest.mark.parametrize(
    ("population", "size"),
    [(0, 0), (1, 1), (10, 0), (10, 10), (10**6, 256), (1000, 999), (1000, 500)],
)
def test_choices_are_distinct_ascending_and_in_range(population: int, size: int) -> None:
    chosen = secure_noise().choice(population, size)
    assert chosen.dtype == torch.int64
    assert len(chosen) == size
    assert (chosen.diff() > 0).all()
    assert size == 0 or (int(chosen[0]) >= 0 and int(chosen[-1]) < population)


def test_choosing_few_of_very_many_needs_no_room_for_the_many() -> None:
    assert len(secure_noise().choice(2**61, 1000)) == 1000


def test_impossible_draws_are_refused() -> None:
    source = secure_noise()
    with pytest.raises(PrivacyError, match=r"high=0 .*\[1, "):
        source.integers(0, 3)
    with pytest.raises(PrivacyError, match=r"size=-1 "):
        source.uniform(-1)
    with pytest.raises(PrivacyError, match=r"size=4 .*population=3"):
        source.choice(3, 4)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(PrivacyError, match=r"p=.* outside \[0, 1\]"):
            source.binomial(3, p)


# A copy of a running process


class KeptKey(SecureNoise):
    """Asks the operating system for a key once a process, as the source did until a copy of the
    process was found to draw the same noise.
    """

    def __init__(self) -> None:
        self._stream = RepeatableKeystream(self._new_seed)


@pytest.mark.parametrize("kind", [SecureNoise, OrdinaryNoise])
def test_a_copy_of_the_process_draws_other_noise(kind: type[NoiseSource]) -> None:
    source = kind()
    source.normal([10], 1.0)
    copies = [in_copied_process(lambda: draw(source)) for _ in range(2)]
    check_independent(draw(source), *copies)
    picked = [in_copied_process(lambda: source.choice(10**6, 100)) for _ in range(2)]
    assert not torch.equal(*picked)


def test_the_copy_check_sees_a_key_that_is_kept() -> None:
    source = KeptKey()
    with pytest.raises(CheckFailed, match="two streams"):
        check_independent(in_copied_process(lambda: draw(source)), draw(source))


# Seeded noise says what it is


def test_seeded_noise_repeats_itself_and_says_so() -> None:
    one, other = SeededNoise(1), SeededNoise(1)
    assert torch.equal(one.normal([100], 1.0), other.normal([100], 1.0))
    assert torch.equal(one.choice(1000, 10), other.choice(1000, 10))
    assert not torch.equal(SeededNoise(1).normal([100], 1.0), SeededNoise(2).normal([100], 1.0))
    assert not one.private
    assert "NOT PRIVATE" in repr(one)
    assert "NOT PRIVATE" in one.label


def test_seeded_noise_has_the_same_law() -> None:
    values = SeededNoise(5).normal([100_000], 1.0)
    check_variance(values, 1.0)
    check_normality(values, 1.0)


def test_the_default_is_private_and_a_new_kind_of_source_is_not_until_it_says_so() -> None:
    assert secure_noise().private
    assert secure_noise() is secure_noise()
    assert "NOT PRIVATE" not in repr(secure_noise())
    assert NoiseSource.private is False


def test_ordinary_noise_has_the_right_law_and_says_that_secure_mode_is_off() -> None:
    source = OrdinaryNoise()
    assert (source.private, source.secure) == (True, False)
    assert "secure mode is off" in repr(source)
    values = source.normal([200_000], 2.5)
    check_variance(values, 2.5)
    check_normality(values, 2.5)
    check_independent(draw(source), draw(source), in_forked_child(lambda: draw(source)))
