"""A party's side of a run between processes: join, agree to the plan or refuse it, answer rounds, keep the result.

On disk, in this order: the plan that was agreed to; for each round the optimiser, the update in the outbox, the charge
in the ledger, and only then the update on its way; at the end the final weights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from homo_dp.core.crash import crash_point
from homo_dp.core.errors import InputError, MessageError, TransportError
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.messages import AGGREGATOR, Json, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.federation.sessions.crash_state import FitStates, RowLog, RunFolder, read_state, write_state
from homo_dp.federation.sessions.fit_state import FitState
from homo_dp.federation.sessions.party import Party
from homo_dp.federation.sessions.plan import difference, release_names
from homo_dp.federation.sessions.plan_schema import Plan, PlanRefused, check_sizes
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.outbox import Outbox

log = logging.getLogger(__name__)
_EVERY = 1 << 60  # a round after all rounds
JOIN_AGAIN = 20.0  # seconds of silence after which a party says once more that it is there
JOIN_IN_DOUBT = 2.0  # the same, while the aggregator says that our ledger is behind
DOUBT = 10.0  # seconds after which that is no late message but the truth


@dataclass
class PartyDuty:
    """What a session is about: who, in which run, with which ledger, and how a plan becomes a Party."""

    name: str
    run: str
    ledger: Ledger | None
    declared_rows: int | None
    build: Callable[[Plan, Outbox], Party]
    measure: Callable[[int, Weights], dict[str, Any]]
    say: Callable[[str], None]
    patience: float = 3600.0
    max_refusals: int = 1000
    rows: list[dict[str, Any]] = field(default_factory=list)  # one a round, LOCAL


class PartySession:
    """Runs a party over a transport and keeps its state.

    Guarantees:
        - a plan is agreed to once: another plan under the same run is refused;
        - a round is answered once: asked again, the party sends the charged update again, byte for byte;
        - what was fitted but never charged is discarded at a start and can reach no later update;
        - at most ``max_refusals`` messages of a run are refused in words, restarts included.
    """

    def __init__(self, duty: PartyDuty, transport: Transport, folder: RunFolder) -> None:
        self.duty = duty
        self.transport = transport
        self.outbox = Outbox(folder.path / "outbox")
        self.states = FitStates(folder.path)
        self._rows = RowLog(folder.path / "rounds.jsonl")
        self.party: Party | None = None
        self._plan_file = folder.path / "plan.safetensors"
        self._final_file = folder.path / "final.safetensors"
        self._plan: Plan | None = None
        self._answer: Message | None = None  # the last one, for a party that charges nothing
        self._early: Message | None = None
        self._fitted = 0  # the round whose optimiser is in memory
        self._final: Weights | None = None
        self._refusals_file = folder.path / "refusals.safetensors"
        self._refusals = _count_of(read_state(self._refusals_file))
        self._wondered = False
        self._doubt: float | None = None  # since when the aggregator calls our ledger behind

    def run(self) -> Weights:
        """Take part until the final weights are here."""
        kept, final = read_state(self._plan_file), read_state(self._final_file)
        if kept is not None:
            self._agree(kept[1]["plan"])
        if final is not None:
            return final[0]
        self.duty.say(f"run {self.duty.run}: {self.duty.name} waits for the aggregator")
        self._join()
        started = heard = time.monotonic()
        while self._final is None:
            message = self.transport.receive(timeout=JOIN_AGAIN if self._doubt is None else JOIN_IN_DOUBT)
            if message is not None:
                heard = time.monotonic()
                self._take(message)
            elif time.monotonic() - heard > self.duty.patience:
                raise TransportError(
                    f"run={self.duty.run}: no word from the aggregator for party.patience={self.duty.patience:g} s; "
                    "start the same command again once it runs"
                )
            else:
                if heard == started:
                    self._wonder()
                self._join()
        return self._final

    def _wonder(self) -> None:
        """Say once, when nobody answers, what an operator can look at; a stranger gets no answer."""
        if not self._wondered:
            self._wondered = True
            self.duty.say(
                f"run {self.duty.run}: no answer yet; does the aggregator run, with the same federation.run and "
                "transport, and with this party's public line in its federation.parties?"
            )

    @property
    def rounds_answered(self) -> int:
        """How many rounds this party has answered."""
        if self.party is None:
            return 0
        if self.duty.ledger is not None and self.party.charges_itself:
            return len(self.duty.ledger.rows(self.duty.run, self.duty.name))
        return self.party.plan.releases_by(self.party.rounds_done)

    def _take(self, message: Message) -> None:
        crash_point("party.received")
        if self._must_wait(message):
            self._early = message
            return
        try:
            if message.kind == "plan":
                self._take_plan(message)
            elif message.kind == "status":
                self._take_status(message)
            elif message.kind == "weights":
                self._take_weights(message)
            else:
                self._take_final(message)
        except MessageError as refusal:
            log.warning("refused a message of %s: %s", message.sender, refusal)
        self.transport.done(message)
        crash_point("party.after_done")
        if self._early is not None and not self._must_wait(self._early):
            early, self._early = self._early, None
            self._take(early)

    def _must_wait(self, message: Message) -> bool:
        """Whether a message comes before its time: the plan is on its way, or our ledger may have lost rows."""
        if self.party is None:
            return message.kind in ("weights", "finished")
        return message.kind == "weights" and self._doubt is not None

    def _take_plan(self, message: Message) -> None:
        plan = message.info.get("plan")
        if not isinstance(plan, dict):
            raise MessageError("plan is no object")
        if self._plan is not None:
            changed = _changed(self._plan, plan)
            if changed is not None:
                self._refuse(self._fitted, "plan_changed")
                raise MessageError(f"the plan of run {self.duty.run} changed ({changed}): a new plan needs a new run")
            return
        self._agree(plan)
        crash_point("party.before_plan")
        write_state(self._plan_file, {}, {"plan": plan}, point="party_plan")
        crash_point("party.after_plan")

    def _agree(self, plan: Plan) -> None:
        """Start with a plan, or tell the aggregator in one word why not, and stop."""
        try:
            self._start(plan)
        except (PrivacyError, InputError) as refusal:
            self._send("refused", 0, {"reason": _reason(refusal)})
            raise

    def _start(self, plan: Plan) -> None:
        """Build the party of a plan, and put it where it was when it was killed."""
        party = self.duty.build(plan, self.outbox)
        party.keep = self._keep_fit
        if party.charges_itself and self.duty.ledger is not None:
            for number in self.states.rounds():
                if self.duty.ledger.charged(self.duty.run, self.duty.name, number, "update") is None:
                    self.states.discard(number)
        self.party, self._plan = party, plan
        self._load(_EVERY)
        self.duty.rows[:] = self._rows.load(_EVERY)

    def _take_weights(self, message: Message) -> None:
        party = self._required()
        if message.round < self._fitted:
            log.info("round %d is over for this party", message.round)
            self._refuse(message.round, "round_over")
            return
        crash_point("party.before_handle")
        try:
            answer = self._answered(party, message)
        except Exception as error:
            if error is party.failure:
                self._answer_failure(party, message)
            elif isinstance(error, PrivacyError | MessageError):
                self._refuse(message.round, _reason(error))
            raise
        crash_point("party.after_handle")
        self._publish(party, answer)
        self._tidy(message.round)
        self._measure(message.round - 1, dict(message.tensors))

    def _answer_failure(self, party: Party, message: Message) -> None:
        """Rows were touched: what the aggregator is told is charged and always the same. The rest is the operator's."""
        if party.charges_itself:
            answer = party.handle(message)  # it is charged by now, so nothing is fitted a second time
        else:
            answer = self._answer = party.skipped(message)
        self._fitted = message.round
        if answer is not None:
            self._publish(party, answer)

    def _publish(self, party: Party, answer: Message) -> None:
        info = {**answer.info, "ledger_head": self._head()}
        if answer.kind == "update":
            info["releases"] = list(release_names(party.mechanism))
        self.transport.send(replace(answer, info=info))
        crash_point("party.after_send")

    def _answered(self, party: Party, message: Message) -> Message:
        if self._answer is not None and self._answer.round == message.round:
            return self._answer
        if self._fitted >= message.round and not self._is_charged(message.round):
            self._load(message.round)
        answer = party.handle(message)
        if answer is None:
            raise MessageError(f"kind={message.kind}: nothing to answer")
        self._fitted = message.round
        self._answer = None if party.charges_itself else answer
        return answer

    def _take_final(self, message: Message) -> None:
        self._required().handle(message)
        self._measure(message.round, dict(message.tensors))
        crash_point("party.before_final")
        write_state(self._final_file, message.tensors, {}, point="party_final")
        crash_point("party.after_final")
        self._tidy(_EVERY)
        self._final = dict(message.tensors)

    def _take_status(self, message: Message) -> None:
        state, reason = message.info.get("state"), message.info.get("reason")
        if state == "refused":
            self._doubted(str(reason))
            return
        self._doubt = None
        rounds = message.info.get("rounds")
        if rounds is None and self.party is not None:
            return  # from before the plan
        where = f"round {message.round} of {rounds}" if rounds else "the others are awaited"
        self.duty.say(f"run {self.duty.run}: {state}, {where}")

    def _doubted(self, reason: str) -> None:
        """The aggregator has seen more of our ledger. An old message of ours may have come late: say where we are."""
        if self._doubt is None:
            self._doubt = time.monotonic()
            self._join()
        elif time.monotonic() - self._doubt > DOUBT:
            raise LedgerError(
                f"ledger={self.duty.ledger.path if self.duty.ledger else None}: the aggregator refused this party "
                f"({reason}): it has seen more rows of this ledger than there are now; restore the newest copy"
            )

    def _keep_fit(self, number: int, state: FitState) -> None:
        crash_point("party.before_fit_state")
        self.states.save(number, state)

    def _load(self, before: int) -> None:
        """Put optimiser and mechanism where they were after the last kept round before ``before``."""
        party = self._required()
        self._fitted = self.states.load(before, party.fit, party.mechanism)
        party.rounds_done = self._fitted

    def _tidy(self, number: int) -> None:
        """Forget messages and states of rounds that the aggregator has left behind."""
        for key in self.outbox.pending():
            run, of_round, _ = key.split("/")
            if run == self.duty.run and int(of_round) < number:
                self.outbox.remove(key)
        for kept in self.states.rounds():
            if kept < number - 1:
                self.states.discard(kept)

    def _measure(self, number: int, weights: Weights) -> None:
        known = {row["round"] for row in self.duty.rows}
        if number > 0 and number not in known:
            self.duty.rows.append({"round": number, **self.duty.measure(number, weights)})
            self._rows.append(self.duty.rows[-1])

    def _is_charged(self, number: int) -> bool:
        ledger = self.duty.ledger
        return ledger is not None and ledger.charged(self.duty.run, self.duty.name, number, "update") is not None

    def _join(self) -> None:
        rows = self.duty.declared_rows
        self._send("join", self._fitted + 1 if self._fitted else 0, {"rows": rows})
        crash_point("party.joined")

    def _refuse(self, number: int, word: str) -> None:
        """Refuse a message in one word; an aggregator that is refused again and again is one for the operator."""
        self._refusals += 1
        write_state(self._refusals_file, {}, {"refusals": self._refusals}, point="party_refusals", sync=False)
        if self._refusals > self.duty.max_refusals:
            raise PrivacyError(
                f"party.caps.max_refusals={self.duty.max_refusals}: that many messages of run {self.duty.run} were "
                f"refused, the last as '{word}'; ask the aggregator's operator, and raise it to go on"
            )
        self._send("refused", number, {"reason": word})

    def _send(self, kind: str, number: int, info: dict[str, Json]) -> None:
        info = {**info, "ledger_head": self._head()}
        self.transport.send(Message(self.duty.run, number, self.duty.name, AGGREGATOR, kind, {}, info))

    def _head(self) -> Json:
        if self.duty.ledger is None:
            return None
        head = self.duty.ledger.head()
        return {"count": head.count, "hash": head.hash}

    def _required(self) -> Party:
        if self.party is None:
            raise MessageError("the plan has not come yet")
        return self.party


def _count_of(found: tuple[Weights, dict[str, Any]] | None) -> int:
    return 0 if found is None else int(found[1]["refusals"])


def _changed(kept: Plan, plan: Plan) -> str | None:
    try:
        check_sizes(plan)
    except PlanRefused as refusal:
        return str(refusal)
    return difference(kept, plan)


def _reason(refusal: Exception) -> str:
    """The word that the aggregator is told; the sentence stays here.

    Guarantees:
        - it is no function of a row: what the party's rows do to its own config is the word of a bad plan.
    """
    if isinstance(refusal, PlanRefused):
        return refusal.reason
    kinds = {BudgetExceeded: "budget", LedgerError: "ledger", PrivacyError: "privacy", MessageError: "weights"}
    return next((word for kind, word in kinds.items() if isinstance(refusal, kind)), "plan")
