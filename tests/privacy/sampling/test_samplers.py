"""The rate that samples is the rate that is accounted, and every draw counts (false-alarm rates:
see noise_checks).
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise, secure_noise
from homo_dp.privacy.sampling.samplers import (
    EveryoneSampler,
    FixedSizeSampler,
    PoissonSampler,
    Sampler,
)
from tests.privacy.broken_noise import NeverTheLast, RateOfWholeBatches, ShuffledEpoch, SkipsEmpty
from tests.privacy.noise_checks import CheckFailed, check_frequencies, check_poisson

DRAWS = 5_000


def draws_of(sampler: Sampler, count: int = DRAWS) -> list[torch.Tensor]:
    return [sampler.draw(secure_noise()) for _ in range(count)]


# Poisson


@pytest.mark.parametrize(
    ("population", "rate"), [(200, 0.03), (50, 0.5), (30, 0.97), (40, 0.025), (1, 0.2)]
)
def test_poisson_draws_at_the_rate_that_its_event_names(population: int, rate: float) -> None:
    sampler = PoissonSampler(population, rate)
    check_poisson(sampler, draws_of(sampler))


@pytest.mark.parametrize(
    ("broken", "rate", "seen_in"),
    [
        (ShuffledEpoch, 0.05, "sizes"),
        (RateOfWholeBatches, 0.4, "total"),
        (SkipsEmpty, 0.03, "total"),
        (NeverTheLast, 0.03, "inclusion"),
    ],
)
def test_the_poisson_check_sees_what_is_wrong(
    broken: type[PoissonSampler], rate: float, seen_in: str
) -> None:
    sampler = broken(40, rate)
    with pytest.raises(CheckFailed, match=seen_in):
        check_poisson(sampler, draws_of(sampler))


def test_two_records_are_drawn_independently() -> None:
    draws = draws_of(PoissonSampler(2, 0.3), 20_000)
    counts = np.bincount([sum(1 << i for i in draw.tolist()) for draw in draws], minlength=4)
    check_frequencies(counts, [0.49, 0.21, 0.21, 0.09])


def test_empty_draws_are_returned_as_empty_int64_tensors() -> None:
    draws = draws_of(PoissonSampler(10, 0.01), 1000)
    empty = [draw for draw in draws if len(draw) == 0]
    assert 700 < len(empty) < 1000  # expected 904, standard deviation 9
    assert {(draw.dtype, tuple(draw.shape)) for draw in empty} == {(torch.int64, (0,))}


def test_a_rate_of_one_draws_everybody() -> None:
    assert PoissonSampler(5, 1.0).draw(secure_noise()).tolist() == [0, 1, 2, 3, 4]


def test_a_draw_needs_memory_for_the_batch_only() -> None:
    drawn = PoissonSampler(2**60, 2.0**-50).draw(secure_noise())
    assert 700 < len(drawn) < 1400  # expected 1024, standard deviation 32


def test_seeded_sampling_repeats_itself() -> None:
    sampler = PoissonSampler(1000, 0.1)
    assert torch.equal(sampler.draw(SeededNoise(1)), sampler.draw(SeededNoise(1)))


# Fixed size


@pytest.mark.parametrize(("population", "size"), [(6, 2), (6, 4), (5, 5)])
def test_fixed_size_draws_every_set_equally_often(population: int, size: int) -> None:
    places = {chosen: i for i, chosen in enumerate(combinations(range(population), size))}
    counts = np.zeros(len(places), np.int64)
    for draw in draws_of(FixedSizeSampler(population, size)):
        counts[places[tuple(draw.tolist())]] += 1
    check_frequencies(counts, [1 / len(places)] * len(places))


# Events, as in the table of the design


def test_the_poisson_event_has_the_noise_over_the_clip_norm() -> None:
    sampler = PoissonSampler(60_000, 256 / 60_000)
    expected = SelfComposedDpEvent(
        PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(1.1)), 14_100
    )
    assert sampler.event(1.1, 14_100) == expected
    assert sampler.relation == "add_or_remove_one"
    assert sampler.sensitivity(0.5) == 0.5
    assert sampler.expected_size == pytest.approx(256, rel=1e-12)


def test_the_fixed_size_event_has_the_noise_over_twice_the_clip_norm() -> None:
    sampler = FixedSizeSampler(60_000, 256)
    inner = SampledWithoutReplacementDpEvent(60_000, 256, GaussianDpEvent(0.55))
    assert sampler.event(1.1, 7) == SelfComposedDpEvent(inner, 7)
    assert sampler.relation == "replace_one"
    assert sampler.sensitivity(0.5) == 1.0
    assert (sampler.expected_size, sampler.sample_rate) == (256, 256 / 60_000)


@pytest.mark.parametrize(
    ("relation", "effective", "sensitivity"),
    [("add_or_remove_one", 1.1, 2.0), ("replace_one", 0.55, 4.0)],
)
def test_the_event_of_everybody_follows_the_declared_relation(
    relation: str, effective: float, sensitivity: float
) -> None:
    sampler = EveryoneSampler(5, relation)
    assert sampler.event(1.1, 3) == SelfComposedDpEvent(GaussianDpEvent(effective), 3)
    assert sampler.sensitivity(2.0) == sensitivity
    assert (sampler.sample_rate, sampler.expected_size) == (1.0, 5.0)
    assert sampler.draw(secure_noise()).tolist() == [0, 1, 2, 3, 4]


# What cannot be accounted is refused


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, math.nan, math.inf])
def test_rates_outside_of_zero_to_one_are_refused(rate: float) -> None:
    with pytest.raises(PrivacyError, match=r"sample_rate=.* outside \(0, 1\]"):
        PoissonSampler(10, rate)


@pytest.mark.parametrize("size", [0, -1, 11])
def test_sizes_outside_of_the_population_are_refused(size: int) -> None:
    with pytest.raises(PrivacyError, match=r"size=.* outside \[1, population=10\]"):
        FixedSizeSampler(10, size)


def test_empty_populations_and_unknown_relations_are_refused() -> None:
    with pytest.raises(PrivacyError, match="population=0"):
        PoissonSampler(0, 0.5)
    with pytest.raises(PrivacyError, match="population=-1"):
        EveryoneSampler(-1)
    with pytest.raises(PrivacyError, match="relation='swap'"):
        EveryoneSampler(3, "swap")


@pytest.mark.parametrize(
    "sampler", [PoissonSampler(10, 0.5), FixedSizeSampler(10, 5), EveryoneSampler(10)]
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_no_event_without_noise_and_no_sensitivity_without_a_clip_norm(
    sampler: Sampler, value: float
) -> None:
    with pytest.raises(PrivacyError, match="noise_multiplier="):
        sampler.event(value)
    with pytest.raises(PrivacyError, match="clip_norm="):
        sampler.sensitivity(value)


@pytest.mark.parametrize("steps", [0, -3, 2.5, math.nan, math.inf, True])
def test_no_event_without_steps(steps: int) -> None:
    with pytest.raises(PrivacyError, match="steps="):
        PoissonSampler(10, 0.5).event(1.0, steps)


@pytest.mark.parametrize("count", [10.5, math.nan, True])
def test_nobody_counts_in_parts(count: Any) -> None:
    with pytest.raises(PrivacyError, match="population="):
        PoissonSampler(count, 0.5)
    with pytest.raises(PrivacyError, match="population="):
        EveryoneSampler(count)
    with pytest.raises(PrivacyError, match="size="):
        FixedSizeSampler(20, count)


def test_counts_may_come_from_numpy() -> None:
    population: Any = np.int64(10)
    assert len(FixedSizeSampler(population, 3).draw(secure_noise())) == 3
    assert len(PoissonSampler(population, 1.0).draw(secure_noise())) == 10


def test_samplers_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(AttributeError):
        PoissonSampler(10, 0.5).sample_rate = 0.1  # type: ignore[misc]
