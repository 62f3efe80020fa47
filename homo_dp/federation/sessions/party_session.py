"""A party's side of a run: join, agree to the plan or refuse it, answer rounds, keep the result.

``Party`` answers a round: check, fit, keep, charge. ``PartySession`` talks: a transport or a
simulation hands each message to ``take``.

On disk (where the run has a folder), in this order: the plan that was agreed to; for each round the
optimiser, the update in the outbox, the charge in the ledger, and only then the update on its way;
after the rounds of private estimates what was found; at the end the final weights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import (
    ConfigError,
    InputError,
    MessageError,
    TableChanged,
    TransportError,
)
from homo_dp.core.event_log import about
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan, Release, Weights
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import Json, Message, check, check_tensors, signature
from homo_dp.federation.protocol.round_sums import UPDATE
from homo_dp.federation.protocol.transport import Transport
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory, forget_before
from homo_dp.federation.sessions.fit_state import FitState
from homo_dp.federation.sessions.members import MOST_ROWS, ROWS, STOPPED
from homo_dp.federation.sessions.outbox_answers import packed, unpacked
from homo_dp.federation.sessions.party import (
    SKIPPED,
    PartySettings,
    check_party,
    check_question,
    check_release,
    stage_rounds,
)
from homo_dp.federation.sessions.party_messages import PartyMessages, refusal_word
from homo_dp.federation.sessions.plan import change, release_names
from homo_dp.federation.sessions.plan_schema import PlanJson
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.privacy.accounting.dp_event import NoOpDpEvent
from homo_dp.privacy.errors import LedgerError, PrivacyError
from homo_dp.privacy.ledger import Charge, Ledger
from homo_dp.privacy.ledger.outbox import MemoryOutbox, Outbox, Releasing, charge_kept, releasing
from homo_dp.privacy.ledger.rows import SIGNED

log = logging.getLogger(__name__)
_EVERY = 1 << 60  # a round after all rounds
JOIN_AGAIN = 20.0  # seconds of silence after which a party joins again
WONDER_AGAIN = 60.0  # seconds between warnings that nobody answers
JOIN_IN_DOUBT = 2.0  # the same, while the aggregator says that this party's ledger has lost rows
AFTER_STOP = 600.0  # seconds that a party waits for an aggregator that has stopped
DOUBT = 10.0  # seconds after which such a refusal cannot be the answer to an old message any more


class Party:
    """One party of a run: answers weights with a release.

    Guarantees:
        - a message with tensors is charged to the ledger before it is returned;
        - a round that would pass the budget is refused before a row is touched, and so is all that
          an aggregator can make fail: the wrong round, weights and numbers that are not finite or
          too large, another message for a round that was answered;
        - a fit that fails after that is charged as planned and answered with a constant word that
          depends on no row;
        - no fit goes on from one that was not charged, or failed: fit and mechanism are made anew,
          from the state before it, and without ``renew`` the party answers nothing more;
        - a release never costs more than its plan, and a message carries nothing but what its kind
          allows;
        - a release without event or noise never leaves, unless the run is marked NOT PRIVATE or the
          party itself trusts the aggregator with the noise;
        - where parties share noise, an update is masked before it is kept, and never exists outside
          without masks.
    """

    def __init__(
        self,
        settings: PartySettings,
        fit: LocalFit,
        mechanism: Mechanism,
        ledger: Ledger | None,
        outbox: Outbox | MemoryOutbox | None = None,
        renew: Callable[[], tuple[LocalFit, Mechanism]] | None = None,
        sums: PartySums | None = None,
        keep: Callable[[int, FitState], None] | None = None,
    ) -> None:
        """Plan the run, and refuse what this party or this mechanism cannot do.

        Args:
            settings: the party's own part.
            fit: its local training.
            mechanism: what is released, and at what price.
            ledger: what pays; None where nothing is private.
            outbox: where answers are kept until they are sent; None: in memory.
            renew: makes fit and mechanism anew, after a fit that failed.
            sums: masks the updates, where parties share noise.
            keep: stores the state after a round, before its charge.
        """
        self.settings = settings
        self.fit = fit
        self.mechanism = mechanism
        self.plan: PartyPlan = mechanism.run.planned(fit.facts)
        self.ledger = ledger
        self.outbox = MemoryOutbox() if outbox is None else outbox
        self.renew = renew
        self.sums = sums  # where updates leave masked
        self.final_weights: Weights | None = None
        self.applied_sigma: float | None = None
        self.rounds_done = 0
        # of the last fit, for the operator; its round is charged, and answered
        self.failure: Exception | None = None
        self.keep = keep
        # while a fit is not charged, and after one that failed
        self._go_back_to: FitState | None = None
        check_party(settings, mechanism, self.plan, fit)
        mechanism.check_model(fit.model)
        self._check_masks()

    def handle(self, message: Message) -> Message | None:
        """Answer one message; the same message twice gets the same answer without a second charge.

        A fit that fails raises what it failed with, as ``failure``, once its round is charged:
        asked again, the party returns the message that says so.
        """
        if message.run != self.settings.run:
            raise MessageError(
                f"run={message.run}: this party takes part in run {self.settings.run}"
            )
        if message.kind == "finished":
            if self.estimating:
                raise MessageError("the run cannot end before what it estimates is there; refused")
            check_tensors(message.tensors, signature(self.fit.model.state_dict()))
            self.final_weights = dict(message.tensors)
            return None
        if message.kind != "weights":
            raise MessageError(f"kind={message.kind}: a party answers 'weights' and 'finished'")
        broadcast, asked = self._check_question(message), self.plan.sums.get(message.round)
        with self._releasing(message) as release:
            if release.kept is None:
                self._begin()
                try:
                    if self.plan.is_noise_alone(message.round):
                        made = self.mechanism.noise_alone()
                    elif asked is None:
                        number = self.mechanism.run.training_round(message.round)
                        made = self.fit.fit(
                            self.mechanism, dict(message.tensors), number, broadcast
                        )
                    else:
                        self.fit.begin(dict(message.tensors))
                        made = self.mechanism.run.answer(self.fit, asked)
                    answer, release.charge = self._answer(message, made)
                except Exception as error:
                    # of any kind, because the kind of an error may depend on rows
                    self.failure = error
                    answer = self.skipped(message)
                if self.charges_itself or self.failure is None:
                    self._keep(message.round)
                durable = self.charges_itself and self.outbox.durable
                release.message = packed(message, answer, self.mechanism.kinds, durable=durable)
        if release.kept is not None:
            return unpacked(message, release.kept, self.mechanism.kinds)
        if self.charges_itself or self.failure is None:
            self._commit(
                message.round,
                self.plan.sigma_of(message.round) if self.failure is not None else made.sigma,
            )
        if self.failure is not None:
            raise self.failure
        return answer

    def _check_question(self, message: Message) -> dict[str, float]:
        """All that can be refused before a row is touched; the numbers that came with the
        weights.
        """
        self.failure = None
        broadcast = check_question(message, self.settings, self.mechanism, self.plan, self.fit)
        if self.sums is not None and not self.sums.ready:
            raise MessageError(
                f"round={message.round}: this party has not met its peers, and cannot mask yet; "
                "refused"
            )
        return broadcast

    def _releasing(self, message: Message) -> AbstractContextManager[Releasing]:
        """``releasing`` if this party is charged for the round; a context that does nothing if
        it is not.
        """
        if not self.charges_itself:
            return nullcontext(Releasing())
        if self.ledger is None:
            raise PrivacyError(
                "ledger=None: a private party needs a ledger; set privacy.ledger to a writable path"
            )
        key = f"{self.settings.run}/{message.round}/{self.plan.kind_of(message.round)}"
        return releasing(
            self.outbox, self.ledger, self.planned_charge(message.round), self.settings.budget, key
        )

    def _answer(self, message: Message, release: Release) -> tuple[Message, Charge | None]:
        """The message of a release, and what it costs."""
        if not isinstance(release, Release):
            raise PrivacyError(
                f"mechanism={self.mechanism.name}: after_fit returned {type(release).__name__}; "
                "return a Release"
            )
        name, info = self.settings.name, dict(release.info)
        sums = self.sums if self._is_masked(message.round) else None
        tensors = release.tensors if sums is None else sums.masked(message.round, release.tensors)
        answer = Message(message.run, message.round, name, message.sender, "update", tensors, info)
        if not self.charges_itself:
            return answer, None
        event = check_release(release, self.mechanism, self.plan, message.round)
        if sums is None:  # which has checked what it masked
            asked = self.plan.sums.get(message.round)
            check_tensors(
                release.tensors, self.mechanism.signature_of(self.fit.model.state_dict(), asked)
            )
        check(answer, self.mechanism.kinds)
        account = self.settings.account
        return answer, account.charge(
            self.mechanism, self.plan, "aggregator", message.round, event, release.sigma
        )

    def _begin(self) -> None:
        """Make sure that no fit goes on from one that was not charged or failed, and remember
        where this one began.
        """
        if self._go_back_to is not None:
            if self.renew is None:
                raise PrivacyError(
                    f"party={self.settings.name}: a fit failed or was not charged, and nothing may "
                    "go on from it; make a new Party"
                )
            self.fit, self.mechanism = self.renew()
            self._go_back_to.put(self.fit, self.mechanism)
        self._go_back_to = FitState.of(self.fit, self.mechanism)

    def _keep(self, number: int) -> None:
        """Store the state after a round; after a fit that failed, the state before it."""
        if self.keep is not None:
            before = self._go_back_to if self.failure is not None else None
            self.keep(number, before or FitState.of(self.fit, self.mechanism))

    def _commit(self, number: int, sigma: float) -> None:
        """The round is paid for (or free): its state is now the party's, unless the fit failed."""
        if number not in self.plan.sums:
            self.applied_sigma = sigma
        self.rounds_done = max(self.rounds_done, number)
        if self.failure is None:
            self._go_back_to = None

    def _is_masked(self, number: int) -> bool:
        """Whether the answer of a round leaves under masks: a list of names cannot."""
        return number not in self.plan.sums or self.plan.sums[number].maskable

    @property
    def stage(self) -> range:
        """The rounds of the stage that this party is built for."""
        return stage_rounds(self.mechanism, self.plan.all_rounds)

    @property
    def estimating(self) -> bool:
        """Whether the run is still to estimate what its training goes by."""
        return self.stage.stop <= self.plan.all_rounds

    def _check_masks(self) -> None:
        if (self.mechanism.masked_sum is None) != (self.sums is None):
            raise PrivacyError(
                "privacy.secure_aggregation=true: a part of shared noise leaves a party only under "
                "masks, and this party was built without; give it masks, or set "
                "privacy.secure_aggregation: false"
            )

    def planned_charge(self, round_number: int) -> Charge:
        """What a round will cost by the plan."""
        return self.settings.account.planned(self.mechanism, self.plan, "aggregator", round_number)

    def planned_charges(self) -> list[tuple[Charge, int]]:
        """What the whole run will cost by the plan."""
        return self.settings.account.all_planned(self.mechanism, self.plan, "aggregator")

    def skipped(self, message: Message) -> Message:
        """The answer to a round whose fit failed: always the same, so that it tells nothing of
        what went wrong.
        """
        info = {"reason": SKIPPED}
        return Message(
            message.run, message.round, self.settings.name, message.sender, "refused", info=info
        )

    @property
    def charges_itself(self) -> bool:
        """Whether this party's ledger pays for the round (not where the run is unprotected or
        the aggregator pays).
        """
        return self._private and self.mechanism.ledger_keeper == "party"

    @property
    def _private(self) -> bool:
        return self.mechanism.capabilities.private and not self.settings.not_private


@dataclass
class PartyDuty:
    """What a session is about: who, in which run, with which ledger, and how a plan, with what was
    privately estimated once it is there, becomes a Party.
    """

    name: str
    run: str
    ledger: Ledger | None
    declared_rows: int | None
    build: Callable[[PlanJson, Json, PartyFiles | PartyMemory], Party]
    measure: Callable[[int, Weights], dict[str, Any]] | None
    say: Callable[[str], None]
    patience: float = 3600.0
    max_refusals: int = 1000
    keys: str = ""  # which fingerprints to compare where nobody answers
    rows: list[dict[str, Any]] = field(default_factory=list)  # one a round, LOCAL


class PartySession:
    """Runs a party over a transport and keeps its state.

    Guarantees:
        - a plan is agreed to once: another plan under the same run is refused;
        - a round is answered once: asked again, the party sends the charged update again, byte for
          byte;
        - what was fitted but never charged is discarded at a start and can reach no later update.
    """

    def __init__(
        self, duty: PartyDuty, transport: Transport, state: PartyFiles | PartyMemory
    ) -> None:
        self.duty = duty
        self.transport = transport
        self.state = state
        self.party: Party | None = None
        # What the aggregator tells, by kind; any other message is a question to the party.
        self._news: dict[str, Callable[[Message], None]] = {
            "plan": self._take_plan,
            "findings": self._take_findings,
            "status": self._take_status,
            "finished": self._take_final,
            **dict.fromkeys(PartySums.KINDS, self._take_sums),
        }
        self._plan: PlanJson | None = None
        self._found: Json = None  # what the first rounds have privately estimated
        self._answer: Message | None = None  # the last one, for a party that charges nothing
        self._early: Message | None = None
        self._fitted = 0  # the round whose optimiser is in memory
        self._final: Weights | None = None
        self._wonder_at = 0.0  # seconds of silence after which to warn the next time
        self._stopped = False  # whether the aggregator has said that it stops
        # since when the aggregator says that this party's ledger has lost rows
        self._doubt: float | None = None

    def run(self) -> Weights:
        """Take part until the final weights are here."""
        plan, final = self.state.plan(), self.state.final()
        if plan is not None:
            self._agree(plan, self.state.found())
        if final is not None:
            return final
        self.duty.say(f"run {self.duty.run}: {self.duty.name} waits for the aggregator")
        self.join()
        started = heard = time.monotonic()
        while self._final is None:
            message = self.transport.receive(
                timeout=JOIN_AGAIN if self._doubt is None else JOIN_IN_DOUBT
            )
            if message is not None:
                heard = time.monotonic()
                self.take(message)
            elif time.monotonic() - heard > self._patience:
                reason = "it has stopped the run" if self._stopped else "party.patience"
                raise TransportError(
                    f"run={self.duty.run}: no message from the aggregator for {self._patience:g} s "
                    f"({reason}); start the same command again once it runs"
                )
            else:
                if heard == started:
                    self._wonder(time.monotonic() - started)
                self.join()
        return self._final

    def _wonder(self, silence: float) -> None:
        """Warn every minute while no answer comes, with what to check: an aggregator ignores
        parties that it does not list, and a message under another key cannot be read.
        """
        if silence < self._wonder_at:
            return
        self._wonder_at = silence + WONDER_AGAIN
        self.duty.say(
            f"run {self.duty.run}: no answer for {silence:.0f} s; does the aggregator run, with "
            "the same federation.run and transport, and with this party's public line in its "
            f"federation.parties? {self.duty.keys}".rstrip()
        )

    @property
    def _patience(self) -> float:
        """Seconds without a message after which the party gives up; fewer once the aggregator has
        said that it stops.
        """
        return min(self.duty.patience, AFTER_STOP) if self._stopped else self.duty.patience

    @property
    def rounds_answered(self) -> int:
        """How many rounds this party has answered."""
        if self.party is None:
            return 0
        if self.duty.ledger is not None and self.party.charges_itself:
            kinds = {UPDATE, *(asked.name for asked in self.party.plan.sums.values())}
            return sum(
                row.kind in kinds for row in self.duty.ledger.rows(self.duty.run, self.duty.name)
            )
        return self.party.plan.releases_by(self.party.rounds_done)

    def take(self, message: Message) -> None:
        """Deal with one message: news is noted, a question is answered with a release."""
        crash_point("party.received")
        about(round=message.round)
        if self._must_wait(message):
            self._early = message
            return
        try:
            if message.kind in self._news:
                self._news[message.kind](message)
            elif not self._is_over(message):
                crash_point("party.before_handle")
                try:
                    answer = self._answer_again(message) or self._required().handle(message)
                except Exception as error:
                    self._fail(message, error)
                    raise
                self._finish(message, answer)
        except MessageError as refusal:
            log.warning("refused a message of %s: %s", message.sender, refusal)
        self.transport.done(message)
        crash_point("party.after_done")
        if self._early is not None and not self._must_wait(self._early):
            early, self._early = self._early, None
            self.take(early)

    def _must_wait(self, message: Message) -> bool:
        """Whether a message comes before its time: the plan is on its way, or our ledger may
        have lost rows.
        """
        if self.party is None:
            return message.kind not in ("plan", "status")
        if message.kind in self._news:
            return False
        ahead = self.party.estimating and message.round >= self.party.stage.stop
        return self._doubt is not None or (ahead and message.round <= self.party.plan.all_rounds)

    def _take_plan(self, message: Message) -> None:
        plan = message.info.get("plan")
        if not isinstance(plan, dict):
            raise MessageError("plan is not an object")
        if self._plan is not None:
            changed = change(self._plan, plan)
            if changed is not None:
                self._messages.refuse(self._fitted, "plan_changed")
                raise MessageError(
                    f"the plan of run {self.duty.run} changed ({changed}): a new plan needs a "
                    "new run"
                )
            return
        self._agree(plan)
        crash_point("party.before_plan")
        self.state.keep_plan(plan, self._required().plan.all_rounds)
        crash_point("party.after_plan")

    def _take_findings(self, message: Message) -> None:
        """Go on from the estimates to the training; what was found is taken once."""
        found, party = message.info.get("found"), self._required()
        if not isinstance(found, dict) or self._plan is None:
            raise MessageError("findings are not an object")
        if not party.estimating:
            if found != self._found:
                self._messages.refuse(self._fitted, "plan_changed")
                raise MessageError(f"what run {self.duty.run} has found changed; start a new run")
            return
        self._agree(self._plan, found)
        crash_point("party.before_findings")
        self.state.keep_found(found)
        crash_point("party.after_findings")

    def _agree(self, plan: PlanJson, found: Json = None) -> None:
        """Start with a plan, or tell the aggregator in one word why not, and stop."""
        try:
            self._start(plan, found)
        except TableChanged:
            raise  # a refusal would tell others about rows
        except (PrivacyError, InputError) as refusal:
            self._messages.refuse_plan(refusal)
            raise

    def _start(self, plan: PlanJson, found: Json = None) -> None:
        """Build the party of a plan, and put it where it was when it was killed."""
        party = self.duty.build(plan, found, self.state)
        if party.charges_itself and self.duty.ledger is not None:
            for number in self.state.fits.rounds():
                if (
                    self.duty.ledger.charged(
                        self.duty.run, self.duty.name, number, party.plan.kind_of(number)
                    )
                    is None
                ):
                    self.state.fits.discard(number)
        for number in self.state.fits.rounds():
            if number < party.stage.start:  # of another stage: nothing of the training
                self.state.fits.discard(number)
        self.party, self._plan, self._found = party, plan, found
        self._load(_EVERY)
        self.duty.rows[:] = self.state.rows.load(_EVERY)

    def _is_over(self, message: Message) -> bool:
        """Whether a question is of a round that this party has left behind; it is then refused."""
        if message.round < self._fitted:
            log.info("round %d is over for this party", message.round)
            self._messages.refuse(message.round, "round_over")
        return message.round < self._fitted

    def _take_sums(self, message: Message) -> None:
        """A message of secure sums: the answer comes from what is kept, the same bytes however
        often it is asked.

        Guarantees:
            - nothing is signed or opened of a round in which this party has paid for no update;
            - the set of survivors that a round is signed for is on the ledger before it is signed:
              a folder that was put back from a copy has forgotten it, and the ledger lets in no
              other; nor any once a later round was paid for.
        """
        party = self._required()
        try:
            if party.sums is None:
                raise MessageError(f"kind={message.kind}: this run has no masked sums")
            if (
                message.kind == "survivors"
                and self._has_left(message.round)
                and not party.sums.signed(message.round)
            ):
                raise MessageError(
                    f"round={message.round}: a later round was paid for and no set of this one is "
                    "known"
                )
            if message.round and party.charges_itself and not self._is_charged(message.round):
                raise MessageError(
                    f"kind={message.kind} round={message.round}: this party sent no update in it"
                )
            if message.kind == "survivors":
                self._mark_signed(party, message, party.sums.survivors_digest(message))
            answer = party.sums.handle(message)
        except MessageError:
            self._messages.refuse(message.round, "sums")
            raise
        crash_point("party.before_sums")
        self.transport.send(answer)
        crash_point("party.after_sums")

    def _mark_signed(self, party: Party, message: Message, digest: str) -> None:
        """Put a set of survivors on the ledger, where it costs nothing; MessageError if there is
        another.
        """
        if self.duty.ledger is None or not (party.charges_itself and party.outbox.durable):
            return
        planned = party.planned_charge(message.round)
        mark = replace(planned, kind=SIGNED, event=NoOpDpEvent(), message_sha256=digest)
        known = self.duty.ledger.charged(*mark.key)
        if known is not None and known.message_sha256 != digest:
            raise MessageError(
                f"round={message.round}: the ledger has another set of survivors of this round"
            )
        charge_kept(self.duty.ledger, [mark], party.settings.budget)

    def _has_left(self, number: int) -> bool:
        """Whether this party has paid for a round after this one."""
        return number < self._fitted or (
            number < self._required().plan.all_rounds and self._is_charged(number + 1)
        )

    def _answer_again(self, message: Message) -> Message | None:
        """The last answer, asked for again; else the state is put before the round of this
        question.
        """
        if self._answer is not None and self._answer.round == message.round:
            return self._answer
        if self._fitted >= message.round and not self._is_charged(message.round):
            self._load(message.round)
        return None

    def _fail(self, message: Message, error: Exception) -> None:
        party = self._required()
        if error is party.failure:
            self._answer_failure(party, message)
        elif isinstance(error, PrivacyError | MessageError):
            self._messages.refuse(message.round, refusal_word(error))

    def _finish(self, message: Message, answer: Message | None) -> None:
        party = self._required()
        if answer is None:
            raise MessageError(f"kind={message.kind}: nothing to answer")
        self._fitted = message.round
        self._answer = None if party.charges_itself else answer
        crash_point("party.after_handle")
        self._publish(party, answer)
        forget_before(self.state, self.duty.run, message.round)
        self._measure(message.round - 1, message.tensors)

    def _answer_failure(self, party: Party, message: Message) -> None:
        """Answer a round that failed after rows were touched: charged, and always the same; the
        error stays here.
        """
        if party.charges_itself:
            answer = party.handle(message)  # the round is charged by now, so it is not fitted again
        else:
            answer = self._answer = party.skipped(message)
        self._fitted = message.round
        if answer is not None:
            self._publish(party, answer)

    def _publish(self, party: Party, answer: Message) -> None:
        releases: list[Json] | None = None
        if answer.kind == "update":
            releases = list(release_names(party.mechanism, party.plan.sums.get(answer.round)))
        self._messages.publish(answer, releases)
        log.info("replied")

    def _take_final(self, message: Message) -> None:
        self._required().handle(message)
        self._measure(message.round, message.tensors)
        crash_point("party.before_final")
        self.state.keep_final(message.tensors)
        crash_point("party.after_final")
        forget_before(self.state, self.duty.run, _EVERY)
        self._final = dict(message.tensors)

    def _take_status(self, message: Message) -> None:
        state, reason = message.info.get("state"), message.info.get("reason")
        if state == "refused":
            self._refused(str(reason))
            return
        self._doubt = None
        self._stopped = state == STOPPED
        if self._stopped:
            self.duty.say(
                f"run {self.duty.run}: the aggregator has stopped the run; it goes on if the "
                f"aggregator is started again within {self._patience:g} s"
            )
            return
        rounds = message.info.get("rounds")
        if rounds is None and self.party is not None:
            return  # from before the plan
        where = f"round {message.round} of {rounds}" if rounds else "the others are awaited"
        self.duty.say(f"run {self.duty.run}: {state}, {where}")

    def _refused(self, reason: str) -> None:
        if reason != ROWS:
            self._doubted(reason)
        elif self.party is None:
            raise ConfigError(
                f"data.rows.{self.duty.name}={self.duty.declared_rows}: the aggregator takes no "
                f"such count; it must be 1 to {MOST_ROWS}, and below 1 / privacy.delta of the "
                "plan: agree on a smaller delta with its operator"
            )

    def _doubted(self, reason: str) -> None:
        """The aggregator has seen more rows of our ledger. It may have read an old message of
        ours: join again.
        """
        if self._doubt is None:
            self._doubt = time.monotonic()
            self.join()
        elif time.monotonic() - self._doubt > DOUBT:
            raise LedgerError(
                f"ledger={self.duty.ledger.path if self.duty.ledger else None}: the aggregator "
                f"refused this party ({reason}): it has seen more rows of this ledger than there "
                "are now; restore the newest copy"
            )

    def _load(self, before: int) -> None:
        """Put optimiser and mechanism where they were after the last kept round before
        ``before``.
        """
        party = self._required()
        kept = self.state.fits.load(before, party.fit, party.mechanism)
        self._fitted = party.rounds_done = max(kept, party.stage.start - 1)

    def _measure(self, number: int, weights: Mapping[str, Tensor]) -> None:
        if self.duty.measure is None:
            return
        known = {row["round"] for row in self.duty.rows}
        if number > 0 and number not in known:
            self.duty.rows.append({"round": number, **self.duty.measure(number, dict(weights))})
            self.state.rows.append(self.duty.rows[-1])

    def _is_charged(self, number: int) -> bool:
        ledger, kind = self.duty.ledger, self._required().plan.kind_of(number)
        return (
            ledger is not None
            and ledger.charged(self.duty.run, self.duty.name, number, kind) is not None
        )

    def join(self) -> None:
        """Tell the aggregator that this party is there, and where it is."""
        self._messages.join(self._fitted + 1 if self._fitted else 0, self.duty.declared_rows)

    @property
    def _messages(self) -> PartyMessages:
        duty = self.duty
        return PartyMessages(
            duty.run, duty.name, duty.ledger, self.transport, self.state, duty.max_refusals
        )

    def _required(self) -> Party:
        if self.party is None:
            raise MessageError("the plan has not come yet")
        return self.party
