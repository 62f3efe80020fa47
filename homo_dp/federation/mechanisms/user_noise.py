"""All numbers of user-level noise, solved once before the first round: who is sampled, how much
noise, which events.

z is the noise on the sum of a round over the clip norm, of update and clip bit together. Two
observers: the model reader sees the noisy sum of a cohort that he does not know; the aggregator
sees, where parties add the noise, every update with that party's share of it, and knows the cohort,
so nothing is amplified towards it. Under masks it sees no update and knows no cohort, only the sum:
then it is one more reader of the model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from homo_dp.config.base import Conflict
from homo_dp.config.privacy import UserKeys
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import Observer
from homo_dp.privacy.accounting.accountants import calibrate, check_delta
from homo_dp.privacy.accounting.dp_event import DpEvent, GaussianDpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.adaptive_clipping import (
    BITS_PER_NOISE,
    smallest_cohort,
    update_multiplier,
)
from homo_dp.privacy.private_sum import NoiseShare
from homo_dp.privacy.sampling.samplers import (
    EveryoneSampler,
    FixedSizeSampler,
    PoissonSampler,
    Sampler,
)


@dataclass(frozen=True)
class UserNoise:
    """Sampler, noise and events of every round of a run.

    Guarantees:
        - ``events`` are those of the noise that ``sum_sigma`` (or ``share_sigma`` of at least
          ``shares`` parties) and ``bit_noise`` name: the pair of update and bit costs exactly
          ``noise_multiplier``;
        - without trust in the aggregator, the target epsilon holds against the aggregator, all
          rounds of a party.
    """

    sampler: Sampler
    noise_multiplier: float  # z
    bit_noise: float | None  # sigma_b on the sum of the bits; None: there are no bits
    # m - t, the parties whose noise together is the noise of the sum; None: noise at the aggregator
    shares: int | None
    # who shares the noise under masks; None: updates are seen one by one
    masked: NoiseShare | None = None

    @property
    def cohort_size(self) -> float:
        """The fixed denominator: m, or q * N for Poisson cohorts; never the number of replies."""
        return self.sampler.expected_size

    @property
    def update_multiplier(self) -> float:
        """z_delta: noise on the sum of the updates over the clip norm."""
        if self.bit_noise is None:
            return self.noise_multiplier
        return update_multiplier(self.noise_multiplier, self.bit_noise)

    def sum_sigma(self, clip_norm: float) -> float:
        """Standard deviation on the sum of the updates."""
        return self.update_multiplier * clip_norm

    def share_sigma(self, clip_norm: float) -> float:
        """Standard deviation of one party's part of it."""
        return self.sum_sigma(clip_norm) / math.sqrt(self._shares)

    @property
    def share_of_bit_noise(self) -> float:
        """Standard deviation of one party's part of the noise on the bits."""
        if self.bit_noise is None:
            raise PrivacyError(
                "privacy.clipping=fixed: has no clip bits; set privacy.clipping: adaptive"
            )
        return self.bit_noise / math.sqrt(self._shares)

    @property
    def event(self) -> DpEvent:
        """One round as the reader of the model sees it."""
        return self.sampler.event(self.noise_multiplier)

    @property
    def share_event(self) -> DpEvent:
        """One round of one party as the aggregator sees it, which knows that the party took
        part.
        """
        local = self.noise_multiplier / math.sqrt(self._shares)
        return GaussianDpEvent(local / self.sampler.sensitivity(1.0))

    @property
    def events(self) -> Mapping[Observer, DpEvent]:
        """By observer; the aggregator is missing where it adds the noise itself."""
        if self.shares is None:
            return {"model_reader": self.event}
        if self.masked is not None:
            return {"aggregator": self.event, "model_reader": self.event}
        return {"aggregator": self.share_event, "model_reader": self.event}

    @property
    def _shares(self) -> int:
        if self.shares is None:
            raise PrivacyError("privacy.noise_at=server: parties add no noise; the aggregator does")
        return self.shares


def user_noise(privacy: UserKeys, rounds: int, holders: int) -> UserNoise:
    """The numbers that a config asks for, with users at so many holders; refuses what cannot
    hold.
    """
    if privacy.population is None:
        raise ConfigError(
            "privacy.population: is not declared; give the number of users that cohorts are drawn "
            "from"
        )
    check_delta(privacy.users_delta, privacy.population)
    try:
        # not checked before if the population was counted or the mechanism is the user's own
        privacy.check_users()
    except Conflict as error:
        raise ConfigError(str(error)) from None
    population = privacy.population
    sampler = _sampler(privacy, population)
    multiplier = _noise_multiplier(privacy, sampler, rounds)
    bit_noise = None
    if privacy.clipping == "adaptive":
        bit_noise = privacy.adaptive.bit_noise or sampler.expected_size / BITS_PER_NOISE
        if multiplier >= 2 * bit_noise and privacy.adaptive.bit_noise is None:
            raise PrivacyError(_too_small(privacy, population, sampler, multiplier, rounds))
        update_multiplier(multiplier, bit_noise)
    if not privacy.secure_aggregation:
        return UserNoise(sampler, multiplier, bit_noise, _shares(privacy, sampler))
    masked = NoiseShare(holders, privacy.tolerated_dropouts, privacy.tolerated_colluders)
    return UserNoise(sampler, multiplier, bit_noise, masked.sharers, masked)


def _sampler(privacy: UserKeys, population: int) -> Sampler:
    if privacy.sampling == "everyone":
        return EveryoneSampler(population)
    if privacy.sampling == "fixed":
        return FixedSizeSampler(population, privacy.cohort_size or 0)
    rate = privacy.sample_rate or (privacy.cohort_size or 0) / population
    return PoissonSampler(population, rate)


def _shares(privacy: UserKeys, sampler: Sampler) -> int | None:
    if privacy.noise_at == "server":
        return None
    shares = round(sampler.expected_size) - privacy.tolerated_dropouts
    if shares < 1:
        raise PrivacyError(
            f"privacy.tolerated_dropouts={privacy.tolerated_dropouts}: must be below the cohort of "
            f"{sampler.expected_size:g}; lower it"
        )
    return shares


def _noise_multiplier(privacy: UserKeys, sampler: Sampler, rounds: int) -> float:
    """z as given, or solved for the target against the strongest observer that the config does
    not trust.
    """
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if privacy.target_epsilon is None:
        raise ConfigError(
            "privacy.target_epsilon, privacy.noise_multiplier: both are missing; give one of them"
        )
    # who sees sums alone is a reader of the model
    if privacy.trust_aggregator or privacy.secure_aggregation:
        return _solved(sampler, rounds, privacy.target_epsilon, privacy.users_delta)
    # What the aggregator sees of a party: its own share of the noise, in every round in the worst
    # case.
    alone = EveryoneSampler(sampler.population, sampler.relation)
    local = _solved(alone, rounds, privacy.target_epsilon, privacy.users_delta)
    return local * math.sqrt(_shares(privacy, sampler) or 1)


@functools.lru_cache(maxsize=64)  # every party of a simulation asks for the same
def _solved(sampler: Sampler, rounds: int, target_epsilon: float, delta: float) -> float:
    """The smallest noise multiplier whose rounds stay within the target."""
    return calibrate(lambda z: sampler.event(z, rounds), target_epsilon, delta)


def _too_small(
    privacy: UserKeys, population: int, sampler: Sampler, multiplier: float, rounds: int
) -> str:
    """The refusal of z >= 2 sigma_b, with the smallest cohort that works."""
    everyone = privacy.sampling == "everyone"

    def multiplier_of(cohort: int) -> float:
        size = {"population": cohort} if everyone else {"cohort_size": cohort, "sample_rate": None}
        changed = privacy.model_copy(update=size)
        return _noise_multiplier(changed, _sampler(changed, changed.population or 0), rounds)

    most = 10**9 if everyone else population
    start = math.floor(BITS_PER_NOISE / 2 * multiplier) + 1
    found = smallest_cohort(multiplier_of, start, most)
    cohort = sampler.expected_size
    said = (
        f"privacy.adaptive: noise_multiplier={multiplier:.4g} must be below 2 * bit_noise = "
        f"{cohort / 10:.4g} for a cohort of {cohort:g}"
    )
    if found is None:
        return (
            f"{said}; no cohort of privacy.population={population} is large enough: raise "
            f"target_epsilon, or give privacy.adaptive.bit_noise above {multiplier / 2:.4g}"
        )
    key = "privacy.population" if everyone else "privacy.cohort_size"
    return f"{said}; the smallest {key} that works is {found}"
