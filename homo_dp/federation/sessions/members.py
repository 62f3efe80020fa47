"""The parties of a run as the aggregator meets them: who has joined, with which rows and ledger
head, who refused.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import MessageError, TransportError, Undeliverable
from homo_dp.core.event_log import JOINED, note_event
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Transport, Waiting
from homo_dp.federation.sessions.ledger_heads import LedgerHeads

log = logging.getLogger(__name__)
Say = Callable[[str], None]
STOPPED = "stopped"  # the state of a run that the aggregator gave up, until it is started again
ROWS = "rows"  # why a party is refused that declares too many or too few
# of a party; its declared count goes into the plan of all others, and their sums must hold so many
MOST_ROWS = 10**9
_JOINS = (
    # joins of one party that are answered at once; normally a party sends one, and another every 20
    # s of silence
    20.0
)


@dataclass(frozen=True)
class SessionRules:
    """How long the aggregator waits, for how many, and what it does when too few come."""

    min_parties: int
    round_timeout: float
    stop_on_missing: bool = False


class Members:
    """The parties that have joined, with their declared rows and ledger heads, and those that
    have refused.
    """

    def __init__(
        self,
        run: str,
        parties: Collection[str],
        transport: Transport,
        heads: LedgerHeads,
        say: Say,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self.run = run
        self.most_rows = most_rows
        self.parties = tuple(parties)
        self.transport = transport
        self.heads = heads
        self.say = say
        self.rows: dict[str, int | None] = {}
        self._unreached: dict[str, str] = {}
        self._given_up = False
        # party -> joins that it may send at once, and since when
        self._joins: dict[str, tuple[float, float]] = {}
        self.refusals: dict[str, str] = {}
        # joins, which must come again if we are killed before the plan is kept
        self._held: list[Message] = []

    def open(self, rules: SessionRules) -> None:
        """``opening``, with parties in other processes."""
        for _ in self.opening(rules):
            pass

    def opening(self, rules: SessionRules) -> Waiting[None]:
        """Wait until all parties joined, or ``round_timeout`` is over and at least
        ``min_parties`` did.
        """
        self.say(f"run {self.run}: waiting for {', '.join(self.parties)}")
        for party in self.parties:  # a party that serves many runs notices this one by it
            self.tell(party, 0, "waiting")
        started = time.monotonic()
        while len(self.rows) < len(self.parties):
            left = started + rules.round_timeout - time.monotonic()
            if left <= 0 and len(self.rows) >= rules.min_parties:
                break
            if left <= 0:
                self._still_waiting(rules)
                started = time.monotonic()
                continue
            yield
            message = self.transport.receive(timeout=left)
            if message is None:
                continue
            if message.kind == "join" and self.join(message):
                self.tell(message.sender, 0, "waiting")
                self._held.append(message)
            else:
                self.transport.done(message)

    def keep_to(self, planned: Collection[str]) -> None:
        """The run has begun, with the parties of its plan alone: no other is waited for or asked."""
        self.parties = tuple(party for party in self.parties if party in planned)

    def opened(self) -> None:
        """The plan is on disk: those who joined need not say so again."""
        for message in self._held:
            self.transport.done(message)
        self._held = []

    def join(self, message: Message) -> bool:
        """Let a party in, unless it joins without end, declares rows that no plan can have, or its
        ledger is behind what it showed before.

        Guarantees:
            - a count that one party declares makes the plan of no other party invalid.
        """
        party, rows = message.sender, message.info.get("rows")
        if self._joins_too_often(party):
            return False
        if isinstance(rows, int) and not 1 <= rows <= self.most_rows:
            log.warning(
                "refused %s: it declares %d rows, and 1 to %d can be", party, rows, self.most_rows
            )
            self.tell(party, message.round, "refused", ROWS)
            return False
        try:
            self.heads.take(party, message.info.get("ledger_head"))
        except MessageError as refusal:
            log.warning("refused %s: %s", party, refusal)
            self.tell(party, message.round, "refused", "ledger_behind")
            return False
        self.heads.save()
        if party not in self.rows:
            note_event(JOINED, party)
            self.say(
                f"party {party} joined "
                f"({'rows not declared' if rows is None else f'{rows} rows declared'})"
            )
        self.rows[party] = rows if isinstance(rows, int) else None
        self.refusals.pop(party, None)
        crash_point("aggregator.joined")
        return True

    def tell(self, party: str, round_number: int, state: str, reason: str | None = None) -> None:
        """Tell a party where the run is."""
        info = {"state": state} | ({"reason": reason} if reason else {})
        self.send(party, round_number, "status", dict(info))

    def give_up(self, round_number: int) -> None:
        """Tell every party that can be reached, once, that this process ends before the run does;
        without it they would wait out ``party.patience``.
        """
        if self._given_up:
            return
        self._given_up = True
        for party in self.parties:
            with contextlib.suppress(TransportError):
                self.tell(party, round_number, STOPPED)

    def send(self, party: str, round_number: int, kind: str, info: dict[str, Any]) -> None:
        """Send a message without tensors."""
        self.deliver(Message(self.run, round_number, AGGREGATOR, party, kind, {}, info))

    def deliver(self, message: Message) -> None:
        """Send; a party that cannot be reached is said once and missing in the round, and the
        others go on.
        """
        party = message.recipient
        try:
            self.transport.send(message)
            self._unreached.pop(party, None)
        except Undeliverable as failure:
            if self._unreached.get(party) != str(failure):
                self._unreached[party] = str(failure)
                log.warning("party %s cannot be reached: %s", party, failure)

    def _joins_too_often(self, party: str) -> bool:
        """Each join costs the aggregator a few synced files: a party may send some at once, then
        one a second.
        """
        now = time.monotonic()
        left, since = self._joins.get(party, (_JOINS, now))
        left = min(_JOINS, left + now - since)
        self._joins[party] = (left - 1 if left >= 1 else left), now
        return left < 1

    def _still_waiting(self, rules: SessionRules) -> None:
        missing = [party for party in self.parties if party not in self.rows]
        text = (
            f"{len(self.rows)} of at least {rules.min_parties} parties joined, missing "
            f"{', '.join(missing)}"
        )
        if rules.stop_on_missing:
            raise TransportError(f"{text}; start them, then start the aggregator again")
        self.say(
            f"run {self.run}: {text}; still waiting. If one of them runs and is refused here, "
            "compare fingerprints with it by another way (homo-dp keys show)"
        )
