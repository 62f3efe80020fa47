"""The aggregator's end of Flower: questions to nodes, and what the parties behind them answer.

Flower lets a ServerApp ask and a node answer, never the other way round. So each node has one
question on its way at a time; a node that has nothing to be told is asked now and then whether its
party has something to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.federation.protocol.transport import superseded_by
from homo_dp.transport.fair_queue import FairQueue
from homo_dp.transport.flower.envelopes import MOST_MESSAGES, Answer, SealedQuestion, tag_of
from homo_dp.transport.sealing import Sealer

log = logging.getLogger(__name__)

# seconds of silence after which a node is asked whether its party has something to say
ASK_AGAIN: Final = 20.0
# seconds after which a question is taken for lost; a ClientApp answers within 40
LOST_AFTER: Final = 60.0
_UNKNOWN: Final = 3.0  # the same, for a node whose party is not known yet
_TROUBLE: Final = 2.0  # seconds until a node is asked again that gave no answer
_LOOK_FOR_NODES: Final = 1.0
_AT_ONCE: Final = 64  # questions in one call
_FIRST_PAUSE: Final = 0.02
_LAST_PAUSE: Final = 0.3


class Fleet(Protocol):
    """What the transport needs of Flower's Grid."""

    def nodes(self) -> list[int]:
        """The nodes that are there."""

    def push(self, questions: Sequence[tuple[int, SealedQuestion]]) -> list[str | None]:
        """Send questions; for each the id of its answer, None if it could not be sent."""

    def pull(self, tickets: Sequence[str]) -> list[tuple[str, Answer | None]]:
        """The answers that are there, None where Flower says that none will come."""


class _Outgoing(NamedTuple):
    message: Message
    sealed: bytes


@dataclass
class _Link:
    """One node: its question on the way, and when it is asked next."""

    ask_at: float
    ticket: str | None = None
    asked: float = 0.0
    party: str | None = None  # who signed the last message that came from it
    held: frozenset[str] = frozenset()
    is_over: bool = False
    rests: bool = False  # whether nothing new can make it answer before `ask_at`
    words: set[str] = field(default_factory=set)  # what was said about it in the log


class GridTransport:
    """One aggregator's end of a Flower run.

    Guarantees:
        - SuperLink, SuperNodes and ClientApps carry sealed bytes only, and an altered one is
          refused;
        - a message for a party goes to the node from which a message came that this party signed;
        - a message is sent again until the party has dealt with it, or a newer one of its kind is
          there;
        - a node that is lost or says nonsense costs its own party the round; the others go on.

    After a crash of the aggregator nothing of this is there any more: it asks again, and parties
    say the same again.
    """

    def __init__(
        self, fleet: Fleet, run: str, sealer: Sealer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._run = run
        self._sealer = sealer
        self._clock = clock
        self._links: dict[int, _Link] = {}
        self._routes: dict[str, int] = {}
        self._queues: dict[str, dict[str, _Outgoing]] = {}
        self._ready: FairQueue[Message] = FairQueue()
        self._looked = -1e9
        self.refusals = Refusals(sealer.allowed)
        self.last_words = 60.0  # seconds that `close` waits for parties to fetch the final weights

    def send(self, message: Message) -> None:
        """Queue `message` for its party; it is under way as soon as the party's node takes
        questions.
        """
        if message.run != self._run:
            raise MessageError(
                f"run={message.run!r} is not {self._run!r}, which this transport serves"
            )
        sealed = b"".join(self._sealer.seal(message).pieces)
        kinds, queue = superseded_by(message.kind), self._queues.get(message.recipient, {})
        kept = {
            tag: item
            for tag, item in queue.items()
            if item.message.kind not in kinds or item.message.round > message.round
        }
        self._queues[message.recipient] = {**kept, tag_of(sealed): _Outgoing(message, sealed)}

    def receive(self, timeout: float) -> Message | None:
        """The next message of a party; None after `timeout` seconds."""
        deadline, pause = self._clock() + timeout, _FIRST_PAUSE
        while True:
            self._step()
            message = self._ready.get(0)
            left = deadline - self._clock()
            if message is not None or left <= 0:
                return message
            time.sleep(min(pause, left))
            pause = min(pause * 1.3, _LAST_PAUSE)

    def done(self, message: Message) -> None:
        """Nothing to do: what an aggregator lost in a crash it asks for again."""

    def close(self) -> None:
        """Wait until the parties that are there have fetched the final weights, if there are
        some.
        """
        started, told = self._clock(), False
        while self._clock() < started + self.last_words and (missing := self._without_result()):
            if self._clock() > started + 5 and all(
                self._is_settled(link) for link in self._links.values()
            ):
                break
            if not told:
                told = True
                log.info("final weights for %s: waiting until they are fetched", ", ".join(missing))
            self._step()
            time.sleep(_LAST_PAUSE)
        if missing := self._without_result():
            log.warning(
                "%s did not fetch the final weights; the same run, started again, sends them",
                ", ".join(missing),
            )

    def _without_result(self) -> list[str]:
        return [
            party
            for party, queue in self._queues.items()
            if any(item.message.kind == "finished" for item in queue.values())
        ]

    def _is_settled(self, link: _Link) -> bool:
        """Whether a node is known to lack nothing."""
        return link.is_over or (link.party is not None and not self._queues.get(link.party))

    def _step(self) -> None:
        now = self._clock()
        if now - self._looked > _LOOK_FOR_NODES:
            self._looked = now
            self._look(now)
        tickets = {
            link.ticket: node for node, link in self._links.items() if link.ticket is not None
        }
        names = list(tickets)
        for start in range(0, len(names), _AT_ONCE):
            for ticket, answer in self._fleet.pull(names[start : start + _AT_ONCE]):
                if ticket in tickets:
                    self._take(tickets[ticket], answer, now)
        self._ask(now)

    def _look(self, now: float) -> None:
        there = set(self._fleet.nodes())
        for node in there - set(self._links):
            self._links[node] = _Link(ask_at=now)
        for node in set(self._links) - there:
            del self._links[node]
        self._routes = {party: node for party, node in self._routes.items() if node in there}

    def _take(self, node: int, answer: Answer | None, now: float) -> None:
        link = self._links[node]
        link.ticket = None
        if answer is None:
            link.held, link.ask_at, link.rests = frozenset(), now + _TROUBLE, True
            return
        link.held, link.is_over = frozenset(answer.held), answer.state == "over"
        link.rests = answer.state != "running"
        for sealed in answer.sealed:
            self._open(node, link, sealed)
        queue = self._queues.get(link.party or "", {})
        if self._routes.get(link.party or "") == node:
            for tag in answer.done:
                queue.pop(tag, None)
        if answer.state in ("failed", "ended", "other_run") and answer.state not in link.words:
            link.words.add(answer.state)
            log.warning("node %d: its party %s; its own log says why", node, _WORDS[answer.state])
        link.ask_at = now + self._pause(link, answer)

    def _pause(self, link: _Link, answer: Answer) -> float:
        if answer.held or answer.state == "starting":
            return 0.0
        if link.is_over:
            return LOST_AFTER
        return ASK_AGAIN if link.party is not None or answer.state != "running" else _UNKNOWN

    def _open(self, node: int, link: _Link, sealed: bytes) -> None:
        try:
            message = self._sealer.open_bytes(sealed)
            if message.run != self._run:
                raise MessageError(f"it is of run {message.run!r}, not of {self._run!r}")
        except MessageError as refusal:
            self.refusals.note(link.party or "", f"a message from node {node}", refusal)
            return
        link.party = message.sender
        self._routes[message.sender] = node
        self._ready.put(message.sender, message)

    def _ask(self, now: float) -> None:
        questions: list[tuple[int, SealedQuestion]] = []
        for node, link in self._links.items():
            if link.ticket is not None and now - link.asked < LOST_AFTER:
                continue
            if link.ticket is not None:
                link.ticket, link.held = None, frozenset()
            unsent = self._unsent(node, link)
            if now >= link.ask_at or (unsent and not link.rests):
                questions.append(
                    (node, SealedQuestion(self._run, tuple(item.sealed for item in unsent)))
                )
        for start in range(0, len(questions), _AT_ONCE):
            part = questions[start : start + _AT_ONCE]
            for (node, _), ticket in zip(part, self._fleet.push(part), strict=True):
                link = self._links[node]
                link.ticket, link.asked = ticket, now
                if ticket is None:
                    link.ask_at, link.rests = now + _TROUBLE, True

    def _unsent(self, node: int, link: _Link) -> list[_Outgoing]:
        if link.party is None or self._routes.get(link.party) != node:
            return []
        queue = self._queues.get(link.party, {})
        return [item for tag, item in queue.items() if tag not in link.held][:MOST_MESSAGES]


_WORDS: Final = {
    "failed": "could not be asked",
    "ended": "ended with an error",
    "other_run": "takes part in another run",
}
