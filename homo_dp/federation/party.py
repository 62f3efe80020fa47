"""A party: answers the aggregator's messages with releases that its own ledger has charged.

``Party.handle(message)`` knows no transport: simulation, shared folder and queue all call this one method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from dp_accounting import DpEvent

from homo_dp.errors import MessageError
from homo_dp.federation.local_fit import LocalFit
from homo_dp.federation.mechanism import Mechanism, PartyPlan, Release, Weights, check_within_plan, round_charge
from homo_dp.federation.messages import Message, check, check_tensors, decode, encode, signature
from homo_dp.privacy.accounting import check_delta
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.events import check_releases
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.privacy.outbox import Outbox, release_once


@dataclass(frozen=True)
class PartySettings:
    """What a party decides for itself, whatever the aggregator asks for."""

    name: str
    run: str
    dataset: str
    budget: Budget
    trust_aggregator: bool = False
    not_private: bool = False


class Party:
    """One party of a run.

    Guarantees:
        - a message with tensors is charged to the ledger before it is returned;
        - a round that would pass the budget is refused before a row is touched;
        - a release never costs more than its plan, and a message carries nothing but what its kind allows;
        - a release without event or noise never leaves, unless the run is marked NOT PRIVATE or the party itself
          trusts the aggregator with the noise.
    """

    def __init__(
        self,
        settings: PartySettings,
        fit: LocalFit,
        mechanism: Mechanism,
        ledger: Ledger | None,
        outbox: Outbox | None = None,
    ) -> None:
        self.settings = settings
        self.fit = fit
        self.mechanism = mechanism
        self.plan: PartyPlan = mechanism.plan(fit.facts)
        self.ledger = ledger
        self.outbox = outbox
        self.final_weights: Weights | None = None
        self.applied_sigma: float | None = None
        self.rounds_done = 0
        self.after_fit: Callable[[int], None] | None = None  # where a process keeps its optimiser, before the charge
        self._sent: Message | None = None
        self._check_trust()
        self._check_plan()

    def handle(self, message: Message) -> Message | None:
        """Answer one message; the same message twice gets the same answer without a second charge."""
        if message.run != self.settings.run:
            raise MessageError(f"run={message.run}: this party takes part in run {self.settings.run}")
        if message.kind == "weights":
            return self._answer_weights(message)
        if message.kind == "finished":
            self._check_weights(message.tensors)
            self.final_weights = dict(message.tensors)
            return None
        raise MessageError(f"kind={message.kind}: a party answers 'weights' and 'finished'")

    def _answer_weights(self, message: Message) -> Message:
        if message.round > self.plan.rounds:
            raise BudgetExceeded(
                f"round={message.round}: party {self.settings.name} planned {self.plan.rounds} rounds; refused"
            )
        if self.plan.schedule is not None and message.round not in self.plan.schedule:
            raise BudgetExceeded(
                f"round={message.round}: party {self.settings.name} takes part only in rounds "
                f"{', '.join(map(str, self.plan.schedule))}; refused"
            )
        self._check_weights(message.tensors)
        if self.charges_itself:
            return self._charged_answer(message)
        release = self._fit(message)
        if self.mechanism.private and not self.settings.not_private and not self.settings.trust_aggregator:
            raise PrivacyError(
                f"privacy.trust_aggregator=false: party {self.settings.name} sends no update without its own noise"
            )
        return self._message(message, release)

    def _charged_answer(self, message: Message) -> Message:
        ledger = self._required_ledger()
        planned = self.planned_charge(message.round)
        if self.outbox is None:
            return self._answer_from_memory(message, planned, ledger)
        made: list[Charge] = []

        def make() -> bytes:
            release = self._checked_fit(message)
            made.append(self._charge_of(message, release))
            return encode(self._message(message, release), self.mechanism.kinds)

        key = f"{self.settings.run}/{message.round}/update"
        budget = self.settings.budget
        sent = release_once(self.outbox, ledger, planned, budget, key, make, applied=lambda: made[-1])
        return decode(sent, kinds=self.mechanism.kinds)

    def _answer_from_memory(self, message: Message, planned: Charge, ledger: Ledger) -> Message:
        """The order of the outbox for a party that lives as long as its run: what was sent is kept in memory."""
        if self._sent is not None and self._sent.round == message.round:
            return self._sent
        if ledger.charged(*planned.key) is not None:
            raise PrivacyError(f"round={message.round}: was charged before and its message is gone; start a new run")
        refusal = ledger.would_exceed([planned], self.settings.budget)
        if refusal:
            raise BudgetExceeded(refusal)
        release = self._checked_fit(message)
        answer = self._message(message, release)
        check(answer, self.mechanism.kinds)
        ledger.charge(self._charge_of(message, release), self.settings.budget)
        self._sent = answer
        return answer

    def _fit(self, message: Message) -> Release:
        broadcast = {name: float(value) for name, value in message.info.items() if isinstance(value, (int, float))}
        release = self.fit.fit(self.mechanism, dict(message.tensors), message.round, broadcast)
        if not isinstance(release, Release):
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: after_fit returned {type(release).__name__}; return a Release"
            )
        self.applied_sigma = release.sigma
        self.rounds_done = max(self.rounds_done, message.round)
        if self.after_fit is not None:
            self.after_fit(message.round)
        return release

    def _checked_fit(self, message: Message) -> Release:
        release = self._fit(message)
        if release.event is None:
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: its release names no event; name one, or set privacy.not_private"
            )
        if not release.sigma > 0:
            raise PrivacyError(f"sigma={release.sigma}: a private release needs noise above zero")
        self._check_price(release)
        self._check_weights(release.tensors)
        return release

    def _check_price(self, release: Release) -> None:
        if release.relation != self.plan.relation:
            raise PrivacyError(
                f"relation={release.relation}: the plan of {self.mechanism.name} says {self.plan.relation}"
            )
        if release.event is not None:
            check_within_plan(self.mechanism, release.event, self.plan.events["aggregator"], self.plan.delta)

    def planned_charge(self, round_number: int) -> Charge:
        """What a round will cost by the plan."""
        return self._charge(round_number, self.plan.events["aggregator"], self.plan.sigma, self.plan.relation)

    def _charge_of(self, message: Message, release: Release) -> Charge:
        if release.event is None:
            raise PrivacyError(f"mechanism={self.mechanism.name}: a release without an event cannot be charged")
        return self._charge(message.round, release.event, release.sigma, release.relation)

    def _charge(self, round_number: int, event: DpEvent, sigma: float, relation: str) -> Charge:
        return round_charge(
            self.mechanism,
            self.plan,
            "aggregator",
            event,
            sigma,
            run=self.settings.run,
            dataset=self.settings.dataset,
            party=self.settings.name,
            round_number=round_number,
            relation=relation,
        )

    def _message(self, message: Message, release: Release) -> Message:
        return Message(
            run=message.run,
            round=message.round,
            sender=self.settings.name,
            recipient=message.sender,
            kind="update",
            tensors=release.tensors,
            info=dict(release.info),
        )

    @property
    def charges_itself(self) -> bool:
        """Whether this party's ledger pays for the round (not where the run is unprotected or the aggregator pays)."""
        private = self.mechanism.private and not self.settings.not_private
        return private and self.mechanism.ledger_keeper == "party"

    def _required_ledger(self) -> Ledger:
        if self.ledger is None:
            raise PrivacyError("ledger=None: a private party needs a ledger; set privacy.ledger to a writable path")
        return self.ledger

    def _check_plan(self) -> None:
        if not self.mechanism.private or self.settings.not_private:
            return
        if self.charges_itself and "aggregator" not in self.plan.events:
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: its plan names no event; name one, or set privacy.not_private"
            )
        for event in self.plan.events.values():
            check_releases(event)
        if self.plan.trusts_aggregator and not self.settings.trust_aggregator:
            raise PrivacyError(
                f"privacy.trust_aggregator=false: the plan of {self.mechanism.name} trusts the aggregator, which only "
                "this party's own config can; set it to true, or keep the target against the aggregator, too"
            )
        if self.mechanism.unit == "record":  # how many users there are, the mechanism knows
            check_delta(self.plan.delta, self.fit.facts.rows)

    def _check_trust(self) -> None:
        trusted = self.settings.trust_aggregator or self.settings.not_private or not self.mechanism.private
        if self.mechanism.ledger_keeper == "aggregator" and not trusted:
            raise PrivacyError(
                "privacy.trust_aggregator=false: the noise is added at the aggregator, which protects only against "
                "readers of the model; set privacy.trust_aggregator: true in this party's own config, or add noise at "
                "parties"
            )

    def _check_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        check_tensors(tensors, signature(self.fit.model.state_dict()))
