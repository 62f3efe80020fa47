"""All that a federation knows about how messages travel, and the guard against hearing one twice."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import KINDS, Kinds, Message, pack


@runtime_checkable
class Transport(Protocol):
    """One process's end of a transport.

    Delivery is at least once and in any order: a message comes again until `done` is called for it, and may come
    again after. What cannot be opened or checked is logged and dropped by the transport, never returned.
    Failures to deliver raise TransportError; calling again later is safe.
    """

    def send(self, message: Message) -> None:
        """Hand over a message; when this returns the message survives a crash of this process."""

    def receive(self, timeout: float) -> Message | None:
        """The next message for this process, or None after `timeout` seconds."""

    def done(self, message: Message) -> None:
        """Say that a received message was dealt with and need not come again."""

    def close(self) -> None:
        """Let go of connections and threads."""


def superseded_by(kind: str) -> tuple[str, ...]:
    """Kinds that a sender's earlier messages to the same recipient lose their point with, once this one is sent.

    >>> superseded_by("weights")
    ('weights',)
    """
    more = {"finished": ("weights", "status"), "join": ("refused",)}
    return (kind, *more.get(kind, ()))


class Inbox:
    """Remembers what was heard, so that a replayed or repeated message changes nothing.

    Guarantees:
        - of one (run, round, sender, kind) only the first message counts; a different one later is refused;
        - kinds that are told again when news comes (`repeatable`) count once for each content;
        - nothing of a round before `forget_before` is taken any more.

    >>> inbox = Inbox()
    >>> message = Message("demo", 1, "bank_a", "aggregator", "refused", info={"reason": "budget"})
    >>> inbox.is_new(message), inbox.is_new(message)
    (True, False)
    """

    def __init__(self, kinds: Kinds = KINDS, state: Mapping[str, Any] | None = None) -> None:
        self._kinds = kinds
        self._floor = int(state["floor"]) if state else 0
        self._seen: dict[tuple[str, int, str, str, str], list[str]] = {
            (run, number, sender, recipient, kind): list(digests)
            for run, number, sender, recipient, kind, digests in (state["seen"] if state else ())
        }

    def is_new(self, message: Message) -> bool:
        """True the first time; False for a repeat or an old round; MessageError if it contradicts the first one."""
        repeatable = self._kinds[message.kind].repeatable
        if message.round < self._floor and not repeatable:
            return False
        digest = pack(message, self._kinds).digest
        known = self._seen.setdefault(message.key, [])
        if digest in known:
            return False
        if known and not repeatable:
            raise MessageError(
                f"{message.sender!r} sent a second, different {message.kind!r} of round {message.round}: "
                "the first one stands"
            )
        known.append(digest)
        return True

    def forget_before(self, round: int) -> None:
        """Free the memory of earlier rounds, and take nothing from them any more."""
        self._floor = max(self._floor, round)
        self._seen = {
            key: digests
            for key, digests in self._seen.items()
            if key[1] >= self._floor or self._kinds[key[4]].repeatable
        }

    def state(self) -> dict[str, Any]:
        """What to write down so that a process started again still knows (plain JSON)."""
        return {"floor": self._floor, "seen": [[*key, digests] for key, digests in self._seen.items()]}
