"""A party: answers the aggregator's messages with releases that its own ledger has charged.

``Party.handle(message)`` knows no transport: simulation, shared folder and queue all call this one method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from dp_accounting import DpEvent

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan, Release, Weights, check_within_plan, round_charge
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import Message, check, check_tensors, decode, encode, pack, signature
from homo_dp.federation.sessions.fit_state import FitState
from homo_dp.federation.sessions.secure_rounds import PartySums
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.accounting.events import check_releases
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.privacy.ledger.outbox import Outbox, release_once

SKIPPED = "skipped"  # the word of a round that was charged and gave no update
_ASKED = b"ASKED"  # ends a message in the outbox, with the digest of the message that it answers
_STABLE = 2.0  # SGD multiplies weights by 1 - rate * decay: above this they grow in every step, whatever the rows are


@dataclass(frozen=True)
class PartyLimits:
    """How large a number of the aggregator may be; a larger one is refused before a row is touched.

    Near the end of what a float32 holds, which rows overflow, and so what a party says, would depend on its rows.
    """

    max_weight: float = 1e6
    max_rate: float = 1e3


@dataclass(frozen=True)
class PartySettings:
    """What a party decides for itself, whatever the aggregator asks for."""

    name: str
    run: str
    dataset: str
    budget: Budget
    trust_aggregator: bool = False
    not_private: bool = False
    limits: PartyLimits = PartyLimits()


class Party:
    """One party of a run.

    Guarantees:
        - a message with tensors is charged to the ledger before it is returned;
        - a round that would pass the budget is refused before a row is touched, and so is all that an aggregator can
          make fail: the wrong round, weights and numbers that are not finite or too large, another message for a round
          that was answered;
        - a fit that fails after that is charged as planned and answered with one word that no row has a part in;
        - no fit goes on from one that was not charged, or failed: fit and mechanism are made anew, from the state
          before it, and without ``renew`` the party answers nothing more;
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
        renew: Callable[[], tuple[LocalFit, Mechanism]] | None = None,
        sums: PartySums | None = None,
    ) -> None:
        self.settings = settings
        self.fit = fit
        self.mechanism = mechanism
        self.plan: PartyPlan = mechanism.plan(fit.facts)
        self.ledger = ledger
        self.outbox = outbox
        self.renew = renew
        self.sums = sums
        self.final_weights: Weights | None = None
        self.applied_sigma: float | None = None
        self.rounds_done = 0
        self.failure: Exception | None = None  # of the last fit, for the operator; its round is charged, and answered
        self.keep: Callable[[int, FitState], None] | None = None  # where a process keeps its state, before the charge
        self._go_back_to: FitState | None = None  # while a fit is not charged, and after one that failed
        self._sent: tuple[Message, Message] | None = None  # the last question and its answer
        self._check_trust()
        self._check_masks()
        self._check_plan()

    def handle(self, message: Message) -> Message | None:
        """Answer one message; the same message twice gets the same answer without a second charge.

        A fit that fails raises what it failed with, as ``failure``, once its round is charged: asked again, the party
        returns the message that says so.
        """
        if message.run != self.settings.run:
            raise MessageError(f"run={message.run}: this party takes part in run {self.settings.run}")
        if message.kind == "weights":
            return self._answer_weights(message)
        if message.kind == "finished":
            self._check_weights(message.tensors)
            self.final_weights = dict(message.tensors)
            return None
        if self.sums is not None and message.kind in PartySums.KINDS:
            return self.sums.handle(message)
        raise MessageError(f"kind={message.kind}: a party answers 'weights' and 'finished'")

    def _answer_weights(self, message: Message) -> Message:
        self.failure = None
        self._check_round(message.round)
        self._check_weights(message.tensors)
        broadcast = _numbers(message)
        if self._private:
            self._check_sizes(message.tensors, broadcast)
        self.mechanism.check_broadcast(broadcast)
        answer = self._charged_answer(message) if self.charges_itself else self._free_answer(message)
        if self.failure is not None:
            raise self.failure
        return answer

    def _check_round(self, number: int) -> None:
        if number < 1:
            raise MessageError(f"round={number}: rounds are 1 to {self.plan.rounds}; refused")
        if number > self.plan.rounds:
            raise BudgetExceeded(
                f"round={number}: party {self.settings.name} planned {self.plan.rounds} rounds; refused"
            )
        if self.plan.schedule is not None and number not in self.plan.schedule:
            raise BudgetExceeded(
                f"round={number}: party {self.settings.name} takes part only in rounds "
                f"{', '.join(map(str, self.plan.schedule))}; refused"
            )

    def _check_sizes(self, tensors: Mapping[str, torch.Tensor], broadcast: Mapping[str, float]) -> None:
        most = self.settings.limits.max_weight
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            low, high = tensor.aminmax()
            if max(-low, high) > most:
                raise MessageError(f"tensor {name}: holds a weight above party.caps.max_weight={most:g}")
        for name, value in broadcast.items():
            if abs(value) > most and name != "rounds":
                raise MessageError(f"{name}={value:g}: is above party.caps.max_weight={most:g}")

    def _charged_answer(self, message: Message) -> Message:
        ledger = self._required_ledger()
        planned = self.planned_charge(message.round)
        if self.outbox is None:
            return self._answer_from_memory(message, planned, ledger)
        made: list[Charge] = []
        asked = _ASKED + bytes.fromhex(pack(message, self.mechanism.kinds).digest)

        def make() -> bytes:
            answer, charge = self._fitted(message, planned)
            made.append(charge)
            return encode(answer, self.mechanism.kinds) + asked

        key = f"{self.settings.run}/{message.round}/update"
        budget = self.settings.budget
        sent = release_once(self.outbox, ledger, planned, budget, key, make, applied=lambda: made[-1])
        if made:
            self._commit(message.round, made[-1].sigma)
        place = len(sent) - len(asked)
        if sent[place:].startswith(_ASKED):  # an outbox of before has no digest, and one answer for whatever is asked
            if sent[place:] != asked:
                raise _another(message)
            sent = sent[:place]
        return decode(sent, kinds=self.mechanism.kinds)

    def _answer_from_memory(self, message: Message, planned: Charge, ledger: Ledger) -> Message:
        """The order of the outbox for a party that lives as long as its run: what was sent is kept in memory."""
        if self._sent is not None and self._sent[0].round == message.round:
            if not _same(self._sent[0], message):
                raise _another(message)
            return self._sent[1]
        if ledger.charged(*planned.key) is not None:
            raise PrivacyError(f"round={message.round}: was charged before and its message is gone; start a new run")
        refusal = ledger.would_exceed([planned], self.settings.budget)
        if refusal:
            raise BudgetExceeded(refusal)
        answer, charge = self._fitted(message, planned)
        ledger.charge(charge, self.settings.budget)
        self._commit(message.round, charge.sigma)
        self._sent = message, answer
        return answer

    def _fitted(self, message: Message, planned: Charge) -> tuple[Message, Charge]:
        """One fit on a state that is thrown away unless its charge is committed: the answer, and what it costs.

        From here on rows are touched: whatever fails costs as much as the plan says, and its answer is always the same.
        """
        self._begin()
        try:
            release = self._checked_fit(message)
            answer, charge = self._message(message, release), self._charge_of(message, release)
            check(answer, self.mechanism.kinds)
        except Exception as error:  # of any kind: which one it is may depend on rows
            self.failure = error
            answer, charge = self.skipped(message), planned
        self._keep(message.round)
        return answer, charge

    def _free_answer(self, message: Message) -> Message:
        """The answer of a party that does not pay: the aggregator does, or nobody is protected."""
        if self._private and not self.settings.trust_aggregator:
            raise PrivacyError(
                f"privacy.trust_aggregator=false: party {self.settings.name} sends no update without its own noise"
            )
        self._begin()
        try:
            release = self._fit(message)
        except Exception as error:
            self.failure = error
            return self.skipped(message)
        self._keep(message.round)
        self._commit(message.round, release.sigma)
        return self._message(message, release)

    def _begin(self) -> None:
        """Make sure that no fit goes on from one that was not charged or failed, and remember where this one began."""
        if self._go_back_to is not None:
            if self.renew is None:
                raise PrivacyError(
                    f"party={self.settings.name}: a fit failed or was not charged, and nothing may go on from it; "
                    "make a new Party"
                )
            self.fit, self.mechanism = self.renew()
            self._go_back_to.put(self.fit, self.mechanism)
        self._go_back_to = FitState.of(self.fit, self.mechanism)

    def _keep(self, number: int) -> None:
        """Hand the state after a round to whoever stores it: after a fit that failed, the one before it."""
        if self.keep is not None:
            before = self._go_back_to if self.failure is not None else None
            self.keep(number, before or FitState.of(self.fit, self.mechanism))

    def _commit(self, number: int, sigma: float) -> None:
        """The round is paid for (or free): its state is now the party's, unless the fit failed."""
        self.applied_sigma = sigma
        self.rounds_done = max(self.rounds_done, number)
        if self.failure is None:
            self._go_back_to = None

    def _fit(self, message: Message) -> Release:
        release = self.fit.fit(self.mechanism, dict(message.tensors), message.round, _numbers(message))
        if not isinstance(release, Release):
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: after_fit returned {type(release).__name__}; return a Release"
            )
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
        if self.sums is None:
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
        tensors = release.tensors if self.sums is None else self.sums.masked(message.round, release.tensors)
        return Message(
            run=message.run,
            round=message.round,
            sender=self.settings.name,
            recipient=message.sender,
            kind="update",
            tensors=tensors,
            info=dict(release.info),
        )

    def skipped(self, message: Message) -> Message:
        """The answer to a round whose fit failed: always the same, so that it tells nothing of what went wrong."""
        info = {"reason": SKIPPED}
        return Message(message.run, message.round, self.settings.name, message.sender, "refused", info=info)

    @property
    def charges_itself(self) -> bool:
        """Whether this party's ledger pays for the round (not where the run is unprotected or the aggregator pays)."""
        return self._private and self.mechanism.ledger_keeper == "party"

    @property
    def _private(self) -> bool:
        return self.mechanism.private and not self.settings.not_private

    def _required_ledger(self) -> Ledger:
        if self.ledger is None:
            raise PrivacyError("ledger=None: a private party needs a ledger; set privacy.ledger to a writable path")
        return self.ledger

    def _check_plan(self) -> None:
        if not self._private:
            return
        self._check_rates()
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

    def _check_rates(self) -> None:
        """Refuse a plan whose steps alone, whatever the rows are, could take weights out of range."""
        limits, train = self.settings.limits, self.fit.train
        steps = self.plan.rounds * self.fit.facts.steps_per_round
        first = train.schedule.rate(train.learning_rate, 0, steps, train.weight_decay)  # no schedule raises it later
        pulls = {"weight decay": train.weight_decay, "the proximal pull": self.mechanism.proximal_mu}
        for name, value in {"the first learning rate": first, **pulls}.items():
            if not value <= limits.max_rate:
                raise PrivacyError(f"{name}={value:g}: is above party.caps.max_rate={limits.max_rate:g}; refused")
        for name, value in {"clip norm": self.plan.clip_norm, "sigma": self.plan.sigma}.items():
            if not value <= limits.max_weight:
                raise PrivacyError(f"{name}={value:g}: is above party.caps.max_weight={limits.max_weight:g}; refused")
        if train.optimizer == "sgd" and not first * sum(pulls.values()) <= _STABLE:
            raise PrivacyError(
                f"learning rate {first:g} times ({' + '.join(pulls)}): is above {_STABLE:g}, and would make weights "
                "grow in every step whatever the rows are; refused"
            )

    def _check_masks(self) -> None:
        if (self.mechanism.masked_sum is None) != (self.sums is None):
            raise PrivacyError(
                "privacy.secure_aggregation=true: a part of shared noise leaves a party only under masks, and this "
                "session has none; it runs in simulation, or set privacy.secure_aggregation: false"
            )

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


def _numbers(message: Message) -> dict[str, float]:
    return {name: float(value) for name, value in message.info.items() if isinstance(value, (int, float))}


def _same(one: Message, other: Message) -> bool:
    return one.info == other.info and all(tensor.equal(other.tensors[name]) for name, tensor in one.tensors.items())


def _another(message: Message) -> MessageError:
    return MessageError(f"round={message.round}: another message was answered in this round; one a round, refused")
