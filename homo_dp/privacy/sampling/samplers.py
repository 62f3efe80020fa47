"""Who takes part in a step: the draw, and the event, relation and sensitivity that go with
exactly that draw.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from homo_dp.privacy.accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource

ADD_OR_REMOVE_ONE = "add_or_remove_one"
REPLACE_ONE = "replace_one"


class Sampler(ABC):
    """Draws the records (or users) of one step out of ``population`` and names what that costs.

    Guarantees:
        - ``event`` describes the distribution that ``draw`` draws from: both read the same fields;
        - ``noise_multiplier`` is always noise over clip norm as applied; a sensitivity of twice the
          clip norm is divided out here and nowhere else, and the event is meant for an
          add-or-remove accountant;
        - an empty draw is returned like any other.
    """

    population: int
    sample_rate: float  # the probability that one record is in a draw
    relation: str  # the neighbouring relation of the event

    @abstractmethod
    def draw(self, noise: NoiseSource) -> Tensor:
        """The int64 indices of one step, in ascending order."""

    @property
    def expected_size(self) -> float:
        """What sums are divided by, whatever size was drawn."""
        return self.population * self.sample_rate

    def sensitivity(self, clip_norm: float) -> float:
        """How far one record can move a sum of vectors clipped to ``clip_norm``."""
        return _positive("clip_norm", clip_norm) * (2 if self.relation == REPLACE_ONE else 1)

    def event(self, noise_multiplier: float, steps: int = 1) -> DpEvent:
        """``steps`` draws, each followed by a sum with noise of ``noise_multiplier`` times the
        clip norm.
        """
        steps = _whole("steps", steps, "the number of draws")
        gaussian = GaussianDpEvent(
            _positive("noise_multiplier", noise_multiplier) / self.sensitivity(1.0)
        )
        return SelfComposedDpEvent(self._sampled(gaussian), steps)

    @abstractmethod
    def _sampled(self, event: DpEvent) -> DpEvent:
        """``event`` as seen through one draw."""


@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Each record is in with probability ``sample_rate``, independently; the cost of a draw grows
    with its size.

    >>> from homo_dp.privacy.noise.source import secure_noise
    >>> sampler = PoissonSampler(population=10_000, sample_rate=0.01)
    >>> sampler.draw(secure_noise()).dtype, sampler.expected_size
    (torch.int64, 100.0)

    Where the number of records is itself private, ``declared`` is the public figure that sums are
    divided by: dividing by the true one would release it without noise.

    >>> PoissonSampler(population=9_973, sample_rate=0.01, declared=10_000).expected_size
    100.0
    >>> sampler.event(noise_multiplier=1.1, steps=5).event.sampling_probability
    0.01

    With a declared figure there may be no records at all: every draw is then empty, and who sees
    the steps cannot tell.
    """

    population: int
    sample_rate: float
    declared: int | None = None
    relation = ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        if self.declared is not None:
            _population(self.declared)
        if self.declared is None or self.population != 0:
            _population(self.population)
        if not 0 < self.sample_rate <= 1:
            raise PrivacyError(
                f"sample_rate={self.sample_rate} is outside (0, 1]; give expected batch over "
                "population"
            )

    @property
    def expected_size(self) -> float:
        return (self.population if self.declared is None else self.declared) * self.sample_rate

    def draw(self, noise: NoiseSource) -> Tensor:
        """Independent coins for all records at once: their number is binomial, and given it all
        sets are alike.
        """
        return noise.choice(self.population, noise.binomial(self.population, self.sample_rate))

    def _sampled(self, event: DpEvent) -> DpEvent:
        # everybody in every draw is no sample
        return event if self.sample_rate == 1 else PoissonSampledDpEvent(self.sample_rate, event)


@dataclass(frozen=True)
class FixedSizeSampler(Sampler):
    """``size`` records out of ``population`` without replacement; replacing one moves a clipped sum
    by twice the norm.

    >>> FixedSizeSampler(population=100, size=10).event(noise_multiplier=1.0).event.event
    GaussianDpEvent(noise_multiplier=0.5)
    """

    population: int
    size: int
    sample_rate: float = field(init=False)
    relation = REPLACE_ONE

    def __post_init__(self) -> None:
        _population(self.population)
        if not 1 <= self.size <= self.population:
            raise PrivacyError(
                f"size={self.size} is outside [1, population={self.population}]; give a cohort size"
            )
        _whole("size", self.size, "a cohort size")
        object.__setattr__(self, "sample_rate", self.size / self.population)

    @property
    def expected_size(self) -> float:
        return float(self.size)

    def draw(self, noise: NoiseSource) -> Tensor:
        return noise.choice(self.population, self.size)

    def _sampled(self, event: DpEvent) -> DpEvent:
        return SampledWithoutReplacementDpEvent(self.population, self.size, event)


@dataclass(frozen=True)
class EveryoneSampler(Sampler):
    """Everybody takes part in every step, so nothing is amplified.

    >>> EveryoneSampler(population=3).draw(None).tolist()
    [0, 1, 2]
    """

    population: int
    relation: str = ADD_OR_REMOVE_ONE
    sample_rate = 1.0

    def __post_init__(self) -> None:
        _population(self.population)
        if self.relation not in (ADD_OR_REMOVE_ONE, REPLACE_ONE):
            raise PrivacyError(
                f"relation={self.relation!r} is unknown; give {ADD_OR_REMOVE_ONE} or {REPLACE_ONE}"
            )

    def draw(self, noise: NoiseSource | None) -> Tensor:
        return torch.arange(self.population)

    def _sampled(self, event: DpEvent) -> DpEvent:
        return event


def _population(value: int) -> None:
    _whole("population", value, "the number of records or users")


def _whole(name: str, value: int, what: str) -> int:
    if isinstance(value, bool) or not (value >= 1 and value // 1 == value):
        raise PrivacyError(f"{name}={value} is not a whole number of 1 or more; give {what}")
    return int(value)


def _positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise PrivacyError(f"{name}={value} is not a positive finite number; give one")
    return value
