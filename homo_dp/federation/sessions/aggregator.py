"""The aggregator: checks updates, combines them, and moves the global weights; it knows no
transport.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Combined, Mechanism, PartyPlan, Update, Weights
from homo_dp.federation.mechanisms.charges import Account, check_within_plan
from homo_dp.federation.mechanisms.server_optimizers import ServerOptimizer
from homo_dp.federation.mechanisms.train_hooks import active_hooks
from homo_dp.federation.protocol.messages import AGGREGATOR, Message, check_tensors, largest_number
from homo_dp.federation.protocol.round_sums import SUM, UPDATE, RoundSum
from homo_dp.federation.sessions.party import PartyLimits, stage_rounds
from homo_dp.federation.sessions.secure_rounds import AggregatorSums
from homo_dp.models.averaging import WeightAverage
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.privacy.ledger.outbox import charge_kept

log = logging.getLogger(__name__)
BeforeCharge = Callable[[Weights, object, float], None]


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round, for progress, indicators and MLflow."""

    round: int
    replied: tuple[str, ...]
    missing: tuple[str, ...]
    weights: Weights
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    asked: str = UPDATE  # the name of the sum that the round asked
    curves: Mapping[str, Any] = field(default_factory=dict)  # of released metrics
    # the same, of each party alone
    by_party: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def released(self) -> dict[str, Any]:
        """What was released in this round beside plain numbers."""
        found = {"released_curves": self.curves, "released_parties": self.by_party}
        return {name: dict(value) for name, value in found.items() if value}


@dataclass(frozen=True)
class AggregatorSettings:
    """Who takes part, with which public weight, and what an update may look like."""

    run: str
    party_weights: Mapping[str, float]
    rounds: int
    name: str = AGGREGATOR
    dataset: str = ""
    budget: Budget = field(default_factory=lambda: Budget(None, None, None))
    max_update_norm: float | None = None
    not_private: bool = False
    limits: PartyLimits | None = None  # those of parties elsewhere: they refuse weights beyond them
    # what the first rounds have privately estimated, by which this stage of the run was made
    found: Mapping[str, Any] | None = None


class Aggregator:
    """Holds the global weights and the round number; everything else is the mechanism's.

    Guarantees:
        - an update is used only if names, shapes, dtypes and finiteness match the model;
        - one update per party and round: a replay is ignored;
        - where there are ``limits``, no party can move the weights to where the others refuse them;
          weights that are not finite are never sent, as all refuse them;
        - noise that the aggregator adds is charged to its ledger before the weights can be sent;
        - where the noise is the aggregator's, weights without event or noise are never published,
          unless the run is marked NOT PRIVATE.
    """

    def __init__(
        self,
        settings: AggregatorSettings,
        weights: Weights,
        mechanism: Mechanism,
        server_optimizer: ServerOptimizer,
        average: WeightAverage,
        ledger: Ledger | None = None,
        sums: AggregatorSums | None = None,
    ) -> None:
        self.sums = sums  # where updates come masked
        self.settings = settings
        self.weights = weights
        self.mechanism = mechanism
        self.server_optimizer = server_optimizer
        self.average = average
        self.ledger = ledger
        # of the round that is published, where that is not the last
        self.best: Weights | None = None
        self.applied_sigma: float | None = None
        self.round = 0
        self.cohort: tuple[str, ...] = ()
        self._updates: dict[str, Update] = {}
        self._started = 0.0

    def start_round(self) -> None:
        """Open the next round; a round that would pass the aggregator's own budget is refused
        here.
        """
        self.check_budget(1)
        self.round += 1
        parties = tuple(self.settings.party_weights)
        self.cohort = (
            parties
            if self.asked or self.mechanism.one_party_holds_all  # which draws the cohort itself
            else self.mechanism.cohort(parties, self.training_round)
        )
        if self.is_masked or self.sums is not None:  # who was missing when they met has no masks
            met = self._sums.roster.identities
            self.cohort = tuple(party for party in self.cohort if party in met)
        self._updates = {}
        self._started = time.perf_counter()

    @property
    def asked(self) -> RoundSum | None:
        """The sum that this round asks instead of the training update; None where it trains."""
        return self.mechanism.run.sums.get(self.round)

    @property
    def stage(self) -> range:
        """The rounds of the stage that this aggregator is for."""
        return stage_rounds(self.mechanism, self.settings.rounds)

    @property
    def stage_is_over(self) -> bool:
        """Whether what this run estimates is there, and its training can be made."""
        return self.stage.stop <= self.settings.rounds and self.round >= self.stage.stop - 1

    @property
    def training_round(self) -> int:
        """The number of this round among those that train."""
        return self.mechanism.run.training_round(self.round)

    def broadcast(self) -> list[Message]:
        """The current weights, one message for each party of the round."""
        weights = self._current
        tensors = {**weights, **self.mechanism.broadcast_tensors(self.round, weights)}
        return [
            self._message(party, "weights", tensors, self.mechanism.broadcast_info())
            for party in self.cohort
        ]

    def finished(self) -> list[Message]:
        """The final weights, one message for each party of the run."""
        return [
            self._message(party, "finished", self.final_weights, {})
            for party in self.settings.party_weights
        ]

    @property
    def final_weights(self) -> Weights:
        """The published model: of the best round where that was kept, else of the last."""
        return self.averaged if self.best is None else self.best

    @property
    def _current(self) -> Weights:
        """The weights that this round asks about, and moves."""
        return self.averaged if self.mechanism.run.starts_from_mean(self.round) else self.weights

    @property
    def averaged(self) -> Weights:
        """The model after this round: the weights, or their average over rounds where that is
        configured.
        """
        return self.average.value(self.weights)

    def receive(self, message: Message) -> None:
        """Take one update in; raises MessageError on anything that is not a proper update of
        this round.
        """
        if message.run != self.settings.run or message.kind != "update":
            raise MessageError(
                f"kind={message.kind} run={message.run} from {message.sender}: not an update of "
                "this run"
            )
        if message.sender not in self.cohort:
            raise MessageError(
                f"sender={message.sender}: not a party of round {self.round} of this run"
            )
        if message.round != self.round:
            raise MessageError(
                f"round={message.round} from {message.sender}: the run is in round {self.round}"
            )
        if message.sender in self._updates:
            return
        if self.is_masked:
            self._sums.take(message)
        else:
            expected, asked = self.mechanism.signature_of(self.weights, self.asked), self.asked
            if asked is None:
                check_tensors(message.tensors, expected, self.settings.max_update_norm)
                self._check_size(message)
            else:
                check_tensors(message.tensors, expected, asked.sum.longest, "the sum of any table")
        info = {
            name: float(value)
            for name, value in message.info.items()
            if isinstance(value, (int, float))
        }
        weight = self.settings.party_weights[message.sender]
        self._updates[message.sender] = Update(message.sender, dict(message.tensors), weight, info)

    def _check_size(self, message: Message) -> None:
        """Refuse an update that is out of the range of weights, or of the sum of any table where
        sums are sent.
        """
        limits, most = self.settings.limits, self.mechanism.longest_update(self.weights)
        if most is None and limits is not None:
            most = limits.max_weight
        if most is None or self.mechanism.one_party_holds_all:
            return
        for name, tensor in message.tensors.items():
            if largest_number(tensor) > most:
                raise MessageError(
                    f"tensor {name} from {message.sender}: holds a number above {most:g}"
                )

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Parties whose update of this round has not come."""
        return tuple(party for party in self.cohort if party not in self._updates)

    @property
    def complete(self) -> bool:
        """Whether every update of this round has come; cheap to ask after each of many."""
        return len(self._updates) == len(self.cohort)

    def has_update_of(self, party: str) -> bool:
        """Whether the update of a party has come in this round."""
        return party in self._updates

    def finish_round(self, before_charge: BeforeCharge | None = None) -> RoundReport:
        """Combine what came, charge what the aggregator itself noised, and move the weights.

        Args:
            before_charge: keeps weights, event and sigma before they are charged, so that a crash
                loses none of them.
        """
        updates = [self._updates[party] for party in self.cohort if party in self._updates]
        missing = self.waiting_for
        combined = Combined(self.weights, discarded=True)
        if self.is_masked:
            combined = self._combined_total()
        elif updates and self.asked is not None:
            parts = {update.party: update.tensors[SUM] for update in updates}
            combined = self.mechanism.run.take_sum(self.asked, parts, self.weights, self.round)
        elif updates or self.mechanism.capabilities.answers_empty_rounds:
            combined = self.mechanism.on_receive(updates, self._current, self.training_round)
        replied = tuple(update.party for update in updates)
        return self.apply(combined, replied, missing, before_charge)

    @property
    def _sums(self) -> AggregatorSums:
        if self.sums is None:
            raise PrivacyError(
                "privacy.secure_aggregation=true: this aggregator was built without masked sums; "
                "give it some, or set privacy.secure_aggregation: false"
            )
        return self.sums

    def _combined_total(self) -> Combined:
        """The step on the unmasked total; a sum that could not be opened is discarded, and
        charged.
        """
        total, self._sums.total = self._sums.total, None
        if total is None:
            return Combined(self.weights, metrics={"discarded": 1.0}, discarded=True)
        if self.asked is not None:
            return self.mechanism.run.take_sum(self.asked, {SUM: total}, self.weights, self.round)
        return self.mechanism.on_total(
            total, self._sums.survivors, self._current, self.training_round
        )

    @property
    def is_masked(self) -> bool:
        """Whether the answers of this round come under masks."""
        asked = self.asked
        share = None if asked is None else asked.sum.share
        return self.mechanism.masked_sum is not None if asked is None else share is not None

    def apply(
        self,
        combined: Combined,
        replied: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        before_charge: BeforeCharge | None = None,
    ) -> RoundReport:
        """Charge the outcome of this round where the aggregator pays, and move the weights
        unless it is discarded.
        """
        self._check_noise(combined)
        moved, before = self.weights, self.server_optimizer.state()
        moves = not (
            combined.discarded or (self.asked is not None and combined.weights is self.weights)
        )
        if moves and self.asked is not None:
            # starting weights are not a step, so momentum does not see them
            moved = combined.weights
        elif moves:
            # Whole weights are no step either.
            moved = (
                combined.weights
                if combined.whole
                else self.server_optimizer.step(self.weights, combined.weights)
            )
            moved = self.mechanism.before_broadcast(moved, self.training_round)
            if (
                hooks := active_hooks()
            ) is not None:  # of a run made in Python: they see noised weights, and only those
                moved = hooks.injected(self.round, moved)
        if moves and not all(math.isfinite(largest_number(tensor)) for tensor in moved.values()):
            log.warning(
                "round %d: weights would not be finite, which parties refuse; it moves nothing",
                self.round,
            )
            self.server_optimizer.restore(before)  # or its momentum would spoil all later rounds
            moves, moved = False, self.weights
            combined = replace(combined, metrics={**combined.metrics, "discarded": 1.0})
        moved = self._within_limits(moved)
        if combined.event is not None:
            if before_charge is not None:
                before_charge(moved, combined.event, combined.sigma)
            self.charge(combined.event, combined.sigma)
        if moves:
            self.publish(moved, whole=combined.whole)
        return RoundReport(
            round=self.round,
            replied=replied,
            missing=missing,
            weights=self.weights,
            seconds=time.perf_counter() - self._started,
            metrics=dict(combined.metrics),
            curves=dict(combined.curves),
            by_party=dict(combined.by_party),
            asked=UPDATE if self.asked is None else self.asked.name,
        )

    def _within_limits(self, weights: Weights) -> Weights:
        """Weights that no party refuses: a larger one is cut, since updates of one party must
        not stop all others.
        """
        if self.settings.limits is None:
            return weights
        key, most = self.settings.limits.model_weight
        if all(largest_number(tensor) <= most for tensor in weights.values()):
            return weights
        log.warning(
            "round %d: a weight passed party.caps.%s=%g and is cut to it, since parties refuse "
            "larger ones; training diverges, or a party sends wrong updates: lower "
            "train.learning_rate, or set federation.max_update_norm",
            self.round,
            key,
            most,
        )
        return {
            name: tensor.clamp(-most, most) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }

    def publish(self, weights: Weights, *, whole: bool = False) -> None:
        """Make charged weights the global ones; ``whole`` ones are the model, without those
        before them.
        """
        self.weights = weights
        if whole:
            self.average.forget()
        elif self.asked is None:
            self.average.add(weights)

    def charge(self, event: object, sigma: float) -> None:
        """Put the noise of this round on the aggregator's ledger; the same again changes
        nothing.
        """
        if self.ledger is None:
            raise PrivacyError(
                "ledger=None: noise at the aggregator is charged to its ledger; set privacy.ledger"
            )
        charge_kept(self.ledger, self._charges(self.round, event, sigma), self.settings.budget)
        self.applied_sigma = sigma

    def planned_charges(self, round_number: int) -> list[Charge]:
        """What a round will cost on the aggregator's ledger, by the plan."""
        return self._charges(round_number)

    def check_budget(self, rounds: int) -> None:
        """Refuse the next rounds if they would pass the aggregator's own budget, before any data
        is touched.
        """
        if self.ledger is None or self.mechanism.ledger_keeper != "aggregator":
            return
        planned = [self.planned_charges(self.round + number) for number in range(1, rounds + 1)]
        refusal = self.ledger.would_exceed(
            [charge for charges in planned for charge in charges], self.settings.budget
        )
        if refusal:
            raise BudgetExceeded(refusal)

    def _charges(
        self, round_number: int, event: DpEvent | None = None, sigma: float | None = None
    ) -> list[Charge]:
        """One for all where users are protected; for records one for each party of the round."""
        parties = self.mechanism.facts.parties
        if self.mechanism.capabilities.unit == "user":
            return [
                self._charge_of(
                    round_number, self.mechanism.plan(next(iter(parties.values()))), event, sigma
                )
            ]
        plans = {name: self.mechanism.run.planned(facts) for name, facts in parties.items()}
        due = {
            name: plan
            for name, plan in plans.items()
            if plan.schedule is None or round_number in plan.schedule
        }
        return [
            self._charge_of(round_number, plan, event, sigma, name) for name, plan in due.items()
        ]

    def _charge_of(
        self,
        round_number: int,
        plan: PartyPlan,
        event: DpEvent | None,
        sigma: float | None,
        party: str | None = None,
    ) -> Charge:
        if "model_reader" not in plan.events:
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: its plan names no event for readers of the model"
            )
        account = Account(
            self.settings.run,
            self.settings.dataset,
            self.settings.name if party is None else party,
        )
        event = plan.events["model_reader"] if event is None else event
        sigma = plan.sigma if sigma is None else sigma
        return account.charge(self.mechanism, plan, "model_reader", round_number, event, sigma)

    def _check_noise(self, combined: Combined) -> None:
        """Refuse weights that the aggregator should have noised and did not, whatever the
        mechanism.
        """
        own = self.mechanism.capabilities.private and self.mechanism.ledger_keeper == "aggregator"
        if not own or self.settings.not_private or combined.discarded:
            return
        if combined.event is None:
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: its round names no event; name one, or set "
                "privacy.not_private"
            )
        if not combined.sigma > 0:
            raise PrivacyError(f"sigma={combined.sigma}: a private round needs noise above zero")
        for planned in self.planned_charges(self.round):
            check_within_plan(self.mechanism, combined.event, planned.event, planned.delta)

    def _message(
        self, party: str, kind: str, tensors: Weights, info: Mapping[str, float]
    ) -> Message:
        return Message(
            run=self.settings.run,
            round=self.round,
            sender=self.settings.name,
            recipient=party,
            kind=kind,
            tensors=tensors,
            info=dict(info),
        )
