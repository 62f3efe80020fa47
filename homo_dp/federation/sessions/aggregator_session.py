"""The aggregator's side of a run: let parties in, send the plan, run rounds, survive.

``AggregatorSession.rounds`` is the one loop over rounds. It yields before it waits for a message: a
process goes on at once, a simulation lets the parties of its own process answer first.

On disk (where the run has a folder) after each round and before anything of it is sent: weights,
optimiser, mechanism, the rows of all rounds. What came from parties is acknowledged only then, so a
killed aggregator finds it again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import MessageError, TransportError, one_line
from homo_dp.core.event_log import about
from homo_dp.core.untrusted_text import Schema
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.federation.protocol.round_sums import UPDATE
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.sessions.aggregator import Aggregator, RoundReport
from homo_dp.federation.sessions.best_round import BestRound, is_of_released
from homo_dp.federation.sessions.crash_state import (
    Row,
    RowLog,
    aggregator_tensors,
    read_state,
    restore_aggregator,
    state_file,
    write_state,
)
from homo_dp.federation.sessions.members import Members, SessionRules
from homo_dp.federation.sessions.party import SKIPPED
from homo_dp.federation.sessions.plan import PlanJson
from homo_dp.federation.sessions.secure_rounds import MEETING_ASKS, AggregatorSums
from homo_dp.privacy.accounting.events import from_json, to_json

log = logging.getLogger(__name__)
_ONE_ROUND = (
    "round_over",
    "weights",
    "plan_changed",
    "skipped",
    "sums",
)  # refusals after which a party goes on; others need a new join


_START_THEM = "; start them, then start the aggregator again: the run continues"


class _Charge(Schema):
    """A release that was kept and perhaps not charged yet."""

    event: str
    sigma: Annotated[float, Field(ge=0)]
    replied: tuple[str, ...]
    missing: tuple[str, ...]
    discarded: bool


class _KeptFacts(Schema):
    """What the aggregator keeps beside its tensors."""

    round: Annotated[int, Strict(), Field(ge=0, le=2**53)]
    applied_sigma: Annotated[float, Field(ge=0)] | None
    charge: _Charge | None = None
    found: dict[str, Any] | None = None  # what was privately estimated


class _KeptPlan(Schema):
    plan: dict[str, Any]
    rounds: int  # of the whole run, for those who ask how far it is


@dataclass(frozen=True)
class Saved:
    """What a killed or stopped aggregator left."""

    plan: PlanJson
    tensors: Weights
    facts: _KeptFacts
    rows: list[Row]


class RunState:
    """The files from which an aggregator goes on: the plan, its state after the last round, and
    the rows so far.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.safetensors"
        self._plan_path = folder / "plan.safetensors"
        self._rows = RowLog(folder / "rounds.jsonl")

    def load(self) -> Saved | None:
        """What was kept; None if the run has not begun."""
        plan, found = read_state(self._plan_path), read_state(self._path)
        if found is None or plan is None:
            return None
        tensors, facts = found
        kept = state_file(self._path).check(_KeptFacts, facts)
        agreed = state_file(self._plan_path).check(_KeptPlan, plan[1]).plan
        return Saved(agreed, tensors, kept, self._rows.load(kept.round))

    def begin(self, aggregator: Aggregator, plan: PlanJson) -> None:
        """Keep the plan of a new run."""
        facts = {"plan": plan, "rounds": aggregator.settings.rounds}
        write_state(self._plan_path, {}, facts, point="aggregator_plan")
        self.save(aggregator)

    def add_row(self, row: Row) -> None:
        """Keep the report of a round, just before its state."""
        self._rows.append(row)

    def save(self, aggregator: Aggregator, weights: Weights | None = None, **facts: Any) -> None:
        """Keep everything after a round (or, with ``weights`` that wait for their charge, just
        before its end).
        """
        found = aggregator.settings.found
        facts = {
            "round": aggregator.round,
            "applied_sigma": aggregator.applied_sigma,
            "found": None if found is None else dict(found),
            **facts,
        }
        write_state(
            self._path, aggregator_tensors(aggregator, weights), facts, point="aggregator_state"
        )


class RunMemory:
    """The state of an aggregator that lives as long as its run: nothing to keep beside the
    aggregator itself.
    """

    def begin(self, aggregator: Aggregator, plan: PlanJson) -> None:
        """A new run begins."""

    def add_row(self, row: Row) -> None:
        """A round is over."""

    def save(self, aggregator: Aggregator, weights: Weights | None = None, **facts: Any) -> None:
        """The weights of a round wait for their charge, or for the next round."""


class AggregatorSession:
    """Runs an aggregator's rounds and keeps its state.

    Guarantees:
        - the weights of a round are on disk, and charged where the aggregator noised them, before
          anybody gets them;
        - a party that was refused, is late or never came is named in the row of the round;
        - a bad message costs its sender the round, and no other party anything.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        plan: PlanJson,
        members: Members,
        rules: SessionRules,
        state: RunState | RunMemory,
        report: Callable[[RoundReport, Row], Row],
        best_round: BestRound | None = None,
        next_stage: Callable[[Aggregator], Aggregator] | None = None,
    ) -> None:
        if (
            aggregator.sums is not None
        ):  # with fewer the masks cannot be taken off: the round would be paid for without a result
            fewest = aggregator.sums.roster.fewest_survivors
            rules = replace(rules, min_parties=max(rules.min_parties, fewest))
        self.aggregator = aggregator
        self.plan = plan
        self.members = members
        self.rules = rules
        self.state = state
        self.report = report
        self.best_round = best_round
        self.next_stage = next_stage
        self.rows: list[Row] = []
        self._absent: set[str] = set()
        self._refused: dict[str, str] = {}
        self._held: list[Message] = []
        self._why = ""  # what the last message of this round was refused for
        # What parties send, by kind; each says whether the message must come again after a crash.
        self._handlers: dict[str, Callable[[Message], bool]] = {
            "join": self._welcome,
            "refused": self._note_refusal,
            "update": self._take_update,
            **dict.fromkeys(AggregatorSums.KINDS, self._hear_sums),
        }
        self.refusals = Refusals(members.parties)
        self._began = time.perf_counter()

    def begin(self) -> None:
        """A new run: keep the plan and send it to everybody on the list, so that who comes late
        finds it.
        """
        self._absent = set(self.members.parties) - set(self.members.rows)
        crash_point("aggregator.before_plan")
        self.state.begin(self.aggregator, self.plan)
        crash_point("aggregator.after_plan")
        self.members.opened()

    def resume(self, saved: Saved) -> None:
        """Go on from the state of a killed or stopped aggregator."""
        facts, self.rows = saved.facts, saved.rows
        restore_aggregator(self.aggregator, saved.tensors, facts.round)
        self.aggregator.applied_sigma = facts.applied_sigma
        self._absent = set(self.rows[-1].get("missing", ())) if self.rows else set()
        waiting = facts.charge
        if waiting is not None:  # killed between keeping the weights and the end of the round
            # it is written once more
            self.rows = [row for row in self.rows if row["round"] < self.aggregator.round]
            self.aggregator.charge(from_json(waiting.event), waiting.sigma)
            weights, metrics = (
                self.aggregator.weights,
                {"discarded": 1.0} if waiting.discarded else {},
            )
            if not waiting.discarded:
                self.aggregator.publish(weights)
            report = RoundReport(
                self.aggregator.round, waiting.replied, waiting.missing, weights, 0.0, metrics
            )
            self._close_round(report)

    def run(self) -> None:
        """``rounds``, with parties in other processes."""
        for _ in self.rounds():
            pass

    def rounds(self) -> Waiting[None]:
        """The rounds that are left, then the final weights to everybody; if they cannot go on, all
        parties are told so.
        """
        try:
            yield from self._rounds()
        except Exception:
            self.members.give_up(self.aggregator.round)
            raise

    def _rounds(self) -> Waiting[None]:
        sums = self.aggregator.sums
        for party in self.members.parties:
            self._send_plan(party)
        if sums is not None and self.aggregator.round < self.aggregator.settings.rounds:
            yield from sums.meeting(self._ask_to_meet)
            self._check_met(len(sums.roster.names))
        self._began = time.perf_counter()
        while self.aggregator.round < self.aggregator.settings.rounds and not self._stops_early():
            if self.aggregator.stage_is_over:
                self._enter_next_stage()
            yield from self._until_enough_are_there()
            self._check_agreement()
            yield from self._round()
        aggregator = self.aggregator
        self._settle()
        crash_point("aggregator.before_finished")
        for party in set(self.members.parties).difference(*(row["replied"] for row in self.rows)):
            # the party may have lost the plan, and cannot use the final weights without it
            self._send_plan(party)
        for message in aggregator.finished():
            self.members.deliver(message)
            crash_point("aggregator.mid_finished")
        crash_point("aggregator.after_finished")

    def _round(self) -> Waiting[None]:
        """One round: ask, listen, unmask where answers are masked, and combine."""
        aggregator, sums = self.aggregator, self.aggregator.sums
        aggregator.start_round()
        about(round=aggregator.round)
        self._refused = dict(self.members.refusals)
        self._why = ""
        yield from self._phase(aggregator.broadcast(), self._complete)
        replies = len(aggregator.cohort) - len(aggregator.waiting_for)
        if sums is not None and aggregator.is_masked and self._enough(replies):
            yield from sums.opening(aggregator.round, self._ask)
        self._finish_round()

    def _enter_next_stage(self) -> None:
        """Go on from the estimates to the training that follows from them, kept before anybody is
        told what was found.
        """
        if self.next_stage is None:
            raise TransportError("this run estimates something, and nothing was told to go on")
        crash_point("aggregator.before_findings")
        self.aggregator = self.next_stage(self.aggregator)
        self.state.save(self.aggregator)
        crash_point("aggregator.after_findings")
        for party in self.members.parties:
            self._send_findings(party)

    def _send_findings(self, party: str) -> None:
        found = self.aggregator.settings.found
        if found is not None:
            self.members.send(party, 0, "findings", {"found": dict(found)})

    def _phase(self, questions: Iterable[Message], complete: Callable[[], bool]) -> Waiting[None]:
        """Ask parties, then take what they say until it is complete or ``round_timeout`` is
        over.
        """
        self._tell(questions)
        self._settle()
        yield from self._listen(complete)

    def _ask(self, questions: Sequence[Message], heard: Mapping[str, Message]) -> Waiting[None]:
        """A phase of secure sums: ask parties, and wait for all that have not refused. It lets go
        of nothing that came before, since a killed aggregator begins its round again.
        """
        names = [question.recipient for question in questions]
        self._tell(questions)
        yield from self._listen(
            lambda: all(name in heard or name in self._refused for name in names)
        )

    def _ask_to_meet(
        self, questions: Sequence[Message], heard: Mapping[str, Message]
    ) -> Waiting[None]:
        """The same at the meeting before the first round, where parties are asked again: a share of
        ``round_timeout`` for each time.
        """
        sums = self.aggregator.sums
        names = [question.recipient for question in questions]
        bent = set[str]() if sums is None else sums.bent
        for name in names:
            self._refused.pop(name, None)
        self._tell(questions)
        yield from self._listen(
            lambda: all(name in heard or name in self._refused or name in bent for name in names),
            self.rules.round_timeout / MEETING_ASKS,
        )

    def _tell(self, questions: Iterable[Message]) -> None:
        crash_point("aggregator.before_broadcast")
        for question in questions:
            self.members.deliver(question)
            crash_point("aggregator.mid_broadcast")
        crash_point("aggregator.after_broadcast")

    def _listen(self, complete: Callable[[], bool], seconds: float | None = None) -> Waiting[None]:
        """Take what parties say, of whatever kind, until something is complete or ``seconds``
        (``round_timeout`` unless given) are over.
        """
        deadline = time.monotonic() + (self.rules.round_timeout if seconds is None else seconds)
        while not complete():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            yield
            message = self.members.transport.receive(timeout=left)
            if message is None:
                break
            crash_point("aggregator.received")
            if self._take(message):
                self._held.append(message)
            else:
                self.members.transport.done(message)

    def _until_enough_are_there(self) -> Waiting[None]:
        """Ask no round that could not count: parties would pay for it. Who was missing in the last
        round, and has sent nothing since, joins again once it is there.
        """
        if self.aggregator.mechanism.capabilities.answers_empty_rounds:
            return  # its rounds count whoever is missing
        told = False
        while len(self._there()) < self.rules.min_parties:
            self._check_agreement()
            missing = sorted(set(self.members.parties) - set(self._there()))
            text = (
                f"round={self.aggregator.round + 1}: {len(self._there())} of at least "
                f"{self.rules.min_parties} parties are there, missing {', '.join(missing)}"
            )
            if not told:
                log.warning("%s; it is not asked yet", text)
            told = True
            yield from self._listen(lambda: len(self._there()) >= self.rules.min_parties)
            if self.rules.stop_on_missing and len(self._there()) < self.rules.min_parties:
                raise TransportError(f"{text}{_START_THEM}")

    def _there(self) -> list[str]:
        """The parties from which something has come since the last round that they missed."""
        sums = self.aggregator.sums
        names = self.members.parties if sums is None else sums.roster.names
        gone = self._absent | set(self.members.refusals)
        return [name for name in names if name not in gone]

    def _check_met(self, parties: int) -> None:
        """Refuse to wait for parties without whom the others have met: they cannot come back."""
        if parties < self.rules.min_parties:
            raise TransportError(
                f"federation.min_parties={self.rules.min_parties}: only {parties} parties have "
                "met, and masked sums go on with those; lower it, then start the aggregator again: "
                "the run continues"
            )

    def _check_agreement(self) -> None:
        """Do not let parties spend budget on rounds that cannot count, because too many others
        refused.
        """
        refusals = {
            party: reason
            for party, reason in self.members.refusals.items()
            if party in self.members.parties  # a late party that the plan does not list refuses it
        }
        if len(self.members.parties) - len(refusals) < self.rules.min_parties:
            said = ", ".join(f"{party} ({reason})" for party, reason in refusals.items())
            cure = (
                "; settle it with them or lower it, then start the aggregator again: the run "
                "continues"
            )
            raise TransportError(
                f"federation.min_parties={self.rules.min_parties}: cannot be reached, refused by "
                f"{said}{self._why or cure}"
            )

    def _complete(self) -> bool:
        if self.aggregator.complete:
            return self._enough(len(self.aggregator.cohort))
        if not self._refused and not self._absent:
            return False  # the usual case of a large cohort, without a look at every party
        missing = set(self.aggregator.waiting_for)
        replies, awaited = len(self.aggregator.cohort) - len(missing), missing - set(self._refused)
        if missing and all(self._refused.get(party) == SKIPPED for party in missing):
            return True  # they charged the round and refused it, so no update will follow
        if not replies and missing <= set(self.members.refusals):
            # nobody is left who could answer; one refusal alone may be an old one come again
            self._check_agreement()
        if awaited and not replies:
            # all parties may be late at once: do not end a round that costs budget before they had
            # time
            return False
        return self._enough(replies) and not awaited - self._absent

    def _enough(self, replies: int) -> bool:
        """Whether a round counts. A sum with a fixed denominator deals with missing replies itself:
        to skip its round would publish, without noise, that somebody was missing.
        """
        if (
            self.aggregator.mechanism.capabilities.answers_empty_rounds
            and not self.rules.stop_on_missing
        ):
            return True
        return replies >= min(self.rules.min_parties, len(self.aggregator.cohort))

    def _take(self, message: Message) -> bool:
        """Deal with a message; whether it is an update that must come again after a crash."""
        party = message.sender
        self._absent.discard(party)
        try:
            return self._handlers.get(message.kind, self._take_update)(message)
        except MessageError as refusal:
            self._why = f"; refused a message: {refusal}"
            self.refusals.note(party, f"a message of {party}", refusal)
        return False

    def _take_update(self, message: Message) -> bool:
        party, aggregator = message.sender, self.aggregator
        if message.round < max(aggregator.round, aggregator.stage.start):
            log.info("update of %s for round %d came late", party, message.round)
            with contextlib.suppress(MessageError):  # its head may still be news
                self.members.heads.take(party, message.info.get("ledger_head"), underway=True)
            return False
        if aggregator.has_update_of(party):
            return False  # came twice
        try:
            self.members.heads.take(party, message.info.get("ledger_head"), underway=True)
            aggregator.receive(message)
        except Exception as error:
            # whatever reading an update raises, its sender misses the round and the process goes on;
            # until it sends a good one it does not count among those without whom no round is asked
            self._refused[party] = self.members.refusals[party] = "bad_update"
            if isinstance(error, MessageError):
                raise
            raise MessageError(
                f"taking it in raised {type(error).__name__} ({one_line(error, 100)})"
            ) from error
        self._refused.pop(party, None)
        self.members.refusals.pop(party, None)
        log.info("replied", extra={"party": party})
        return True

    def _hear_sums(self, message: Message) -> bool:
        sums = self.aggregator.sums
        return sums is not None and sums.hear(message, self.aggregator.round)

    def _welcome(self, message: Message) -> bool:
        party = message.sender
        if not self.members.join(message):
            # it may be an old message that came late: then the party answers with a new one
            return False
        self._refused.pop(party, None)
        self._send_plan(party)
        self.members.send(
            party,
            self.aggregator.round,
            "status",
            {"state": "running", "rounds": self.aggregator.settings.rounds},
        )
        if party in self.aggregator.waiting_for:
            for weights in self.aggregator.broadcast():
                if weights.recipient == party:
                    self.members.deliver(weights)
        return False

    def _note_refusal(self, message: Message) -> bool:
        party, reason = message.sender, str(message.info.get("reason", "unknown"))
        # A refusal of before that is delivered once more shows a head that is behind, and goes no
        # further.
        self.members.heads.take(party, message.info.get("ledger_head"), underway=True)
        if message.round in (0, self.aggregator.round):
            if self._refused.get(party) != reason:
                log.warning("party %s refused: %s", party, reason)
            self._refused[party] = reason
            if reason not in _ONE_ROUND:
                self.members.refusals[party] = reason
        return False

    def _send_plan(self, party: str) -> None:
        self.members.send(party, 0, "plan", {"plan": self.plan})
        self._send_findings(party)

    def _finish_round(self) -> None:
        aggregator, missing = self.aggregator, self.aggregator.waiting_for
        replied = tuple(party for party in aggregator.cohort if party not in missing)
        if self._enough(len(replied)):
            self._close_round(aggregator.finish_round(self._keep_before_charge))
            return
        # before the round is over: what others paid for it comes again after a settlement
        self._check_agreement()
        of = f"{len(replied)} of at least {self.rules.min_parties} parties replied"
        text = f"round={aggregator.round}: {of}, missing {', '.join(missing)}"
        if self.rules.stop_on_missing:
            raise TransportError(f"{text}{self._why or _START_THEM}")
        log.warning("%s; the round does not count", text)
        self._close_round(
            RoundReport(
                aggregator.round,
                replied,
                missing,
                aggregator.weights,
                self.rules.round_timeout,
                asked=UPDATE if aggregator.asked is None else aggregator.asked.name,
            ),
            counted=False,
        )

    def _close_round(self, report: RoundReport, counted: bool = True) -> None:
        self._absent |= set(report.missing) - set(self._refused)
        row = {
            "round": report.round,
            "replied": list(report.replied),
            "missing": list(report.missing),
            "refused": dict(self._refused),
            "counted": counted and not report.metrics.get("discarded"),
            # everything: sending, waiting, combining, keeping
            "seconds": time.perf_counter() - self._began,
            **({} if report.asked == UPDATE else {"asked": report.asked}),
            **report.metrics,
            **report.released,
        }
        self.rows.append(self.report(report, row))
        self._keep_best()
        crash_point("aggregator.before_save")
        self.state.add_row(self.rows[-1])
        self.state.save(self.aggregator)
        crash_point("aggregator.after_save")
        self._began = time.perf_counter()

    def _keep_best(self) -> None:
        """Keep the model that the last row is about if it is the best so far; on disk with the
        state of its round.
        """
        judge, row = self.best_round, self.rows[-1]
        if judge is None or not judge.keeps or judge.best(self.rows) is not row:
            return
        self.aggregator.best = dict(
            self.aggregator.averaged if is_of_released(row) else self.aggregator.weights
        )

    def _stops_early(self) -> bool:
        if self.best_round is None or not self.best_round.stops(self.rows):
            return False
        log.info("the run stops after round %d: its figures get no better", self.aggregator.round)
        return True

    def _settle(self) -> None:
        """Keep the newest heads, then let go of the updates that showed them; while parties
        work, so nobody waits.
        """
        self.members.heads.save()
        for message in self._held:
            self.members.transport.done(message)
        self._held = []
        crash_point("aggregator.after_done")

    def _keep_before_charge(self, weights: Weights, event: object, sigma: float) -> None:
        missing = list(self.aggregator.waiting_for)
        replied = [party for party in self.aggregator.cohort if party not in missing]
        charge = {"event": to_json(event), "sigma": sigma, "replied": replied, "missing": missing}
        charge["discarded"] = weights is self.aggregator.weights  # paid for, and moves nothing
        self.state.save(self.aggregator, weights, charge=charge)
        crash_point("aggregator.before_charge")
