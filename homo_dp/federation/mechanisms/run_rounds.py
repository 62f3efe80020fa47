"""The rounds of a run with a mechanism: those that train, those that ask another sum, and what all
of them cost together.

A mechanism says which sums it asks; released metrics come between its rounds of training. Parties
and the aggregator go by the numbers that are given here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from homo_dp.federation.mechanisms.metrics_round import MetricsRound
from homo_dp.federation.mechanisms.outcomes import Combined, Release
from homo_dp.federation.protocol.party_plan import PartyFacts, PartyPlan
from homo_dp.federation.protocol.round_sums import (
    METRICS,
    RoundSum,
    RoundSums,
    calibrated_noise,
    events_of,
    interleaved,
    text_of,
)
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from homo_dp.federation.mechanisms.base import Mechanism
    from homo_dp.federation.mechanisms.local_fit import LocalFit


class RunRounds:
    """All rounds of a run, by their numbers."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._with_metrics: RoundSums | None = None

    @functools.cached_property
    def metrics(self) -> MetricsRound:
        """The rounds that release metrics with noise."""
        found = self._mechanism
        if not found.capabilities.metrics:
            raise PrivacyError(
                "metrics.release=noised: needs a mechanism whose noise is solved together with "
                f"metrics, not {found.name}"
            )
        return MetricsRound(found.config, found.facts, found.noise_share)

    def sums_of(self, party: PartyFacts) -> RoundSums:
        """All rounds that ask another sum, by their number in the run: private estimates, then the
        mechanism's own, and between rounds of training those of released metrics.
        """
        found = self._mechanism
        first, metrics, rounds = found.facts.estimates, found.config.metrics, found.facts.rounds
        asked = {len(first) + number: each for number, each in found.other_sums(party).items()}
        own = {**first, **asked}
        if metrics.release != "noised" or not rounds:
            return own
        if self._with_metrics is None:
            self._with_metrics = interleaved(own, rounds, self.metrics.asked, metrics.every)
        return self._with_metrics

    @property
    def sums(self) -> RoundSums:
        """The rounds that ask another sum, as an aggregator needs them: any party's, which
        differ only in rows.
        """
        return self.sums_of(next(iter(self._mechanism.facts.parties.values())))

    @property
    def count(self) -> int:
        """How many rounds there are."""
        return self._mechanism.facts.rounds + len(self.sums)

    def training_round(self, round_number: int) -> int:
        """The number of a round among those that train; for another sum, of the last one before
        it.
        """
        return round_number - sum(number <= round_number for number in self.sums)

    def trains(self, round_number: int) -> int | None:
        """The number of a round among those that train; None where it asks another sum."""
        return None if round_number in self.sums else self.training_round(round_number)

    def starts_from_mean(self, round_number: int) -> bool:
        """Whether a round goes on from the mean of the models before it, where there is one;
        metrics are of that mean.
        """
        trains = self.trains(round_number)
        if trains is None:
            return self.sums[round_number].name == METRICS
        return self._mechanism.starts_from_mean(trains)

    # --- what it costs ---

    def beside(self, party: PartyFacts) -> DpEvent | None:
        """All that the run releases beside training, which its noise is solved together with;
        None if nothing.
        """
        return events_of(self.sums_of(party))

    def noise_multiplier(self, party: PartyFacts, steps: int) -> float:
        """The noise of sampled steps: as it is set, or solved for the target together with all
        else that the run releases.
        """
        config = self._mechanism.config
        if config.privacy.noise_multiplier is not None:
            return config.privacy.noise_multiplier
        if config.privacy.target_epsilon is None:
            raise ValueError(
                "privacy.target_epsilon and privacy.noise_multiplier are both missing: give one"
            )
        return calibrated_noise(
            party.sample_rate,
            steps,
            config.privacy.target_epsilon,
            config.delta,
            text_of(self.beside(party)),
        )

    def planned(self, party: PartyFacts) -> PartyPlan:
        """The plan of the whole run: training, and the rounds that ask another sum."""
        found = self._mechanism
        plan, sums = found.plan(party), self.sums_of(party)
        if not sums:
            return plan
        if plan.schedule is not None or found.ledger_keeper != "party":
            raise PrivacyError(
                f"mechanism={found.name}: rounds that ask other sums need noise at parties that "
                "take part in every round"
            )
        if any(
            asked.maskable and (asked.sum.share is None) != (found.masked_sum is None)
            for asked in sums.values()
        ):
            raise PrivacyError(
                f"mechanism={found.name}: all sums of a run are under masks, or none is"
            )
        texts = dict.fromkeys(asked.release for asked in sums.values())
        return replace(plan, sums=sums, releases=(*plan.releases, *texts))

    # --- rounds that ask another sum ---

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        """A party's bounded and noised part of another sum."""
        if asked.name != METRICS:
            return self._mechanism.answer(fit, asked)
        parts = fit.metric_parts(self.metrics.metrics)
        return Release.of_sum(asked, asked.private_sum.of_chunks(parts, self._mechanism.noise))

    def take_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        """What follows from another sum at the aggregator.

        Args:
            asked: The sum.
            parts: Its values by party; of all under masks.
            current: The global weights.
            round_number: The number of the round in the run.
        """
        if asked.name != METRICS:
            return self._mechanism.on_sum(asked, parts, current, round_number)
        read = self.metrics.read(asked, parts)
        return Combined(current, metrics=read.figures, curves=read.curves, by_party=read.by_party)
