"""What a party's part in a run will release and cost, from public facts and before a row is
touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from homo_dp.config.capabilities import Observer as Observer
from homo_dp.federation.protocol.round_sums import UPDATE, RoundSums, events_of
from homo_dp.privacy.accounting.dp_event import DpEvent, NoOpDpEvent
from homo_dp.privacy.ledger.rows import NOISE_ALONE

Levels = Mapping[int, float]
"""Encoded columns that are 0 or 1, with the share of rows that each has if all levels of its
column are as frequent.
"""


@dataclass(frozen=True)
class PartyFacts:
    """The public facts of one party's part in a run, known before its rows are touched."""

    name: str
    rows: int
    rounds: int
    steps_per_round: int
    sample_rate: float


@dataclass(frozen=True)
class FederationFacts:
    """The public facts of a run that mechanisms calibrate against.

    ``rounds`` are those that train. ``estimates`` are the first rounds of the run, by number, in
    which bounds, categories and row counts are privately estimated.
    """

    parties: Mapping[str, PartyFacts]
    rounds: int
    parameters: int
    estimates: RoundSums = field(default_factory=dict)
    outputs: int = 1  # of the model: numbers that it gives for a record
    levels: Levels = field(default_factory=dict)  # an aggregator knows them, parties need not

    @property
    def smallest_rows(self) -> int:
        return min(facts.rows for facts in self.parties.values())


@dataclass(frozen=True)
class PartyPlan:
    """What a party will release in each round and what every observer learns from it.

    ``rounds`` are those that train; where ``schedule`` names some of them, the party's rows take
    part in no others. It refuses those, or answers them with noise alone under masks where
    ``noise_between``, which costs nothing. ``events`` maps an observer to the event of one such
    round; an observer who is missing gets no guarantee. Where ``trusts_aggregator``, the target is
    kept against the readers of the model, and theirs is the figure to quote. ``sums`` are rounds of
    the run that ask another sum; they are put in by ``RunRounds.planned``.
    """

    noise_multiplier: float
    sigma: float
    clip_norm: float
    relation: str
    delta: float
    rounds: int
    events: Mapping[Observer, DpEvent]
    releases: tuple[str, ...]
    noise_to_signal: float
    notes: tuple[str, ...] = ()
    extra: Mapping[str, float | str | None] = field(default_factory=dict)
    trusts_aggregator: bool = False
    schedule: tuple[int, ...] | None = None
    noise_between: bool = False
    sums: RoundSums = field(default_factory=dict)

    @property
    def all_rounds(self) -> int:
        """The rounds of the run: those that train, and those that ask another sum."""
        return self.rounds + len(self.sums)

    def trained_by(self, round_number: int) -> int:
        """How many of the rounds up to this one were of training, this party taking part."""
        if self.schedule is None:
            return round_number - sum(number <= round_number for number in self.sums)
        return sum(number <= round_number for number in self.schedule)

    def releases_by(self, round_number: int) -> int:
        """How many times the party has released something once this round of the run is over."""
        return self.trained_by(round_number) + sum(number <= round_number for number in self.sums)

    def kind_of(self, round_number: int) -> str:
        """The name of the sum that a round asks, or that of noise alone."""
        if self.is_noise_alone(round_number):
            return NOISE_ALONE
        return self.sums[round_number].name if round_number in self.sums else UPDATE

    def is_noise_alone(self, round_number: int) -> bool:
        """Whether the party answers a round without its rows, because others need its noise."""
        return (
            self.noise_between and self.schedule is not None and round_number not in self.schedule
        )

    def events_of(self, round_number: int) -> Mapping[Observer, DpEvent]:
        """What every observer learns from one round."""
        if self.is_noise_alone(round_number):
            return {"aggregator": NoOpDpEvent(), "model_reader": NoOpDpEvent()}
        if round_number not in self.sums:
            return self.events
        event = self.sums[round_number].event
        return {"aggregator": event, "model_reader": event}

    def sigma_of(self, round_number: int) -> float:
        """The noise that the party adds in one round."""
        return self.sums[round_number].sum.party_sigma if round_number in self.sums else self.sigma

    def beside(self, round_number: int) -> DpEvent | None:
        """All that was released beside training once this round is over; None if nothing."""
        return events_of(self.sums, round_number)

    def round_of(self, releases: int) -> int:
        """The round of the run in which a party that missed none of its own makes its n-th release;
        0 before the first.

        >>> plan = PartyPlan(1.0, 1.0, 1.0, "replace_one", 1e-5, 4, {}, (), 1.0, schedule=(3, 4))
        >>> plan.round_of(1), plan.releases_by(plan.round_of(2)), plan.releases_by(2)
        (3, 2, 0)
        """
        return self.schedule[releases - 1] if self.schedule and releases else releases
