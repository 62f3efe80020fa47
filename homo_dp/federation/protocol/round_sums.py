"""Rounds that ask another sum than training's: a second moment, metrics, statistics.

Every round asks one private sum. Most ask for the training update; a mechanism may name rounds of
the run that ask another one, with its own dimension, bound and noise. Parties, aggregator, masks,
ledger and statement then go by the sum of the round, and noise of the training is solved so that
all of them together stay within the target.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from homo_dp.config.schema import Config
from homo_dp.privacy.accounting.accountants import calibrate, epsilon
from homo_dp.privacy.accounting.dp_event import DpEvent, GaussianDpEvent
from homo_dp.privacy.accounting.events import compose, from_json, to_json
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler

UPDATE: Final = "update"
METRICS: Final = "metrics"
STATISTICS: Final = (
    *("rows", "classes", "means", "variances", "second_moments"),
    *("octaves", "magnitudes", "spreads", "histograms", "levels", "missing", "level_names"),
)
SUMS: Final = (
    UPDATE,
    "columns",
    "second_moment",
    METRICS,
    *STATISTICS,
)  # closed: kinds of rows of a ledger
NAMES: Final = "level_names"  # a list of each party, which nothing adds up
SUM: Final = "sum"  # the name of the one tensor that answers such a round


@dataclass(frozen=True)
class ExactSum:
    """A sum without noise, for runs that are marked NOT PRIVATE; it has no event, so no private
    run can ask it.
    """

    dimension: int
    # a norm that no party's answer reaches: a longer one is refused, since it could end the run of
    # all
    longest: float
    share: None = None
    sample_rate: float = 1.0
    party_sigma: float = 0.0


@dataclass(frozen=True)
class RoundSum:
    """The sum that a round asks instead of the training update: every row has a part in it, each
    party adds noise.

    Guarantees:
        - its name is one of ``SUMS``, under which it stands in the ledger;
        - no row is sampled: the event is that of the Gaussian mechanism on all rows;
        - a sum without noise has no event, and whoever asks for one is refused.

    >>> RoundSum("second_moment", PrivateSum(6, clip_norm=1.0, noise_multiplier=4.0, rows=100), "X^T X").dimension
    6
    """

    name: str
    sum: PrivateSum | ExactSum
    release: str  # what the privacy statement says about it

    def __post_init__(self) -> None:
        if self.name not in SUMS or self.name == UPDATE:
            raise PrivacyError(f"sum={self.name!r}: must be one of {', '.join(SUMS[1:])}")
        if self.sum.sample_rate != 1:
            raise PrivacyError(f"sum={self.name} sample_rate={self.sum.sample_rate}: must be 1")

    @property
    def dimension(self) -> int:
        """How many numbers are asked."""
        return self.sum.dimension

    @property
    def maskable(self) -> bool:
        """Whether it is added up over parties; a list of names is not."""
        return self.name != NAMES

    @property
    def private_sum(self) -> PrivateSum:
        """The sum as one with noise; refused where it has none."""
        if isinstance(self.sum, ExactSum):
            raise PrivacyError(
                f"sum={self.name}: has no noise; only a run marked NOT PRIVATE may ask it"
            )
        return self.sum

    @property
    def event(self) -> DpEvent:
        """What one answer costs, towards everybody: parties add the noise."""
        return GaussianDpEvent(self.private_sum.noise_multiplier)  # rate 1: nothing is sampled


RoundSums = Mapping[int, RoundSum]
"""By the number of the round in the run; rounds that are not in it train."""


def events_of(sums: RoundSums, until: int | None = None) -> DpEvent | None:
    """All rounds up to one that ask another sum, as one event; None where there are none.

    >>> events_of({}) is None
    True
    """
    asked = [
        asked.event for number, asked in sorted(sums.items()) if until is None or number <= until
    ]
    return compose(*asked) if asked else None


def releases_of(rounds: int, every: int | None) -> int:
    """How many times metrics are released: after every so many rounds of training, and the last.

    >>> releases_of(10, None), releases_of(10, 4), releases_of(8, 4)
    (1, 3, 2)
    """
    return 1 if every is None else -(-rounds // every)


def interleaved(own: RoundSums, rounds: int, asked: RoundSum, every: int | None) -> RoundSums:
    """The rounds of a run that ask another sum, once metrics are released between its rounds of
    training.

    >>> first = RoundSum("second_moment", PrivateSum(1, 1.0, 1.0, 10), "")
    >>> metrics = RoundSum("metrics", PrivateSum(1, 1.0, 1.0, 10), "")
    >>> {number: each.name for number, each in interleaved({1: first}, 4, metrics, 2).items()}
    {1: 'second_moment', 4: 'metrics', 7: 'metrics'}
    """
    found: dict[int, RoundSum] = {}
    number = trained = 0
    for place in range(1, rounds + len(own) + 1):
        number += 1
        if place in own:
            found[number] = own[place]
            continue
        trained += 1
        if trained == rounds or (every is not None and trained % every == 0):
            number += 1
            found[number] = asked
    return found


@functools.lru_cache(maxsize=4096)
def calibrated_noise(
    sample_rate: float,
    steps: int,
    target_epsilon: float,
    delta: float,
    beside: str | None = None,
) -> float:
    """The noise multiplier of sampled steps that, with what is released ``beside`` them, meet a
    target.

    The result knows no other facts of a party, so equal parties share it.

    Args:
        sample_rate: of each step.
        steps: of the run.
        target_epsilon: what all of it may cost.
        delta: its delta.
        beside: the text of the event of what else is released.

    >>> alone, less = calibrated_noise(0.1, 10, 1.0, 1e-5), calibrated_noise(0.1, 10, 1.0, 1e-5, text_of(
    ...     GaussianDpEvent(8.0)))
    >>> less > alone
    True
    """
    sampler = PoissonSampler(1, sample_rate)
    # then no noise at all would do, and looking for the least takes minutes
    if sample_rate * steps <= delta:
        raise PrivacyError(
            f"sample rate {sample_rate:g} in {steps} steps: a row is drawn with a probability "
            f"below delta={delta:g}, which alone would let it be published; draw more rows or "
            "lower delta"
        )
    if beside is None:
        return calibrate(lambda z: sampler.event(z, steps), target_epsilon, delta)
    others = from_json(beside)
    spent = epsilon(others, delta).quoted
    if spent >= target_epsilon:
        raise PrivacyError(
            f"privacy.target_epsilon={target_epsilon:g}: what the run releases beside training "
            f"costs {spent:.4g} already; raise the target or lower its share"
        )
    return calibrate(lambda z: compose(sampler.event(z, steps), others), target_epsilon, delta)


def text_of(event: DpEvent | None) -> str | None:
    """An event as canonical text, which can be looked up; None of none."""
    return None if event is None else to_json(event)


@functools.lru_cache(maxsize=1024)
def noise_of_share(share: float, target_epsilon: float, delta: float) -> float:
    """The noise multiplier of one sum that takes a share of the budget, by mu^2.

    A Gaussian sum with noise multiplier z is mu-GDP with mu = 1/z, and mu^2 of releases adds up: a
    sum with share s of the mu^2 of the whole target gets z / sqrt(s), with z the noise of one
    Gaussian release that takes all of it.

    >>> round(noise_of_share(0.25, 1.0, 1e-5) / noise_of_share(1.0, 1.0, 1e-5), 6)
    2.0
    """
    if not 0 < share <= 1:
        raise PrivacyError(f"share={share}: must be above 0 and at most 1")
    return _noise_of_all(target_epsilon, delta) / math.sqrt(share)


def share_noise(config: Config, rounds: int, share: float) -> float:
    """The noise multiplier of one sum of a training that takes a share of what all of its sums
    cost, by mu^2.

    Where the noise of the rounds is given and no target, they are 1 - moment_share - column_share
    of it.
    """
    privacy, train = config.privacy, config.train
    if privacy.noise_multiplier is not None:
        left = 1 - train.moment_share - train.column_share
        return privacy.noise_multiplier * math.sqrt(left / (share * rounds))
    if privacy.target_epsilon is None:
        raise ValueError(
            "privacy.target_epsilon and privacy.noise_multiplier are both missing: give one"
        )
    return noise_of_share(share, privacy.target_epsilon, config.delta)


@functools.lru_cache(maxsize=256)
def _noise_of_all(target_epsilon: float, delta: float) -> float:
    return calibrate(GaussianDpEvent, target_epsilon, delta)
