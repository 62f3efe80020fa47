"""The interface of transports: all that sessions know about how messages travel."""

from collections.abc import Generator
from typing import Final, Protocol, TypeVar, runtime_checkable

from homo_dp.federation.protocol.messages import Message

Result = TypeVar("Result")
Waiting = Generator[None, None, Result]
"""Work that yields each time before it asks its transport for a message. A process has nothing to do
then; a simulation lets its parties answer.
"""


@runtime_checkable
class Transport(Protocol):
    """One process's end of a transport.

    Delivery is at least once and in any order: a message comes again until `done` is called for it,
    and may come again after. What cannot be opened or checked is logged and dropped by the
    transport, never returned. Failures to deliver raise TransportError; calling again later is
    safe.
    """

    def send(self, message: Message) -> None:
        """Hand over a message; when this returns the message survives a crash of this process."""

    def receive(self, timeout: float) -> Message | None:
        """The next message for this process, or None after `timeout` seconds."""

    def done(self, message: Message) -> None:
        """Say that a received message was dealt with and need not come again."""

    def close(self) -> None:
        """Let go of connections and threads."""


ASKED_AGAIN: Final = frozenset({"survivors", "signature", "signatures", "opening"})
"""Kinds that need not wait for a disk: questions about a masked sum, which a restarted aggregator
asks once more, and answers that a party gives again from what it kept. Lost with a machine, they
cost the round, as a late party does.
"""


def superseded_by(kind: str) -> tuple[str, ...]:
    """The kinds of earlier messages to the same recipient that are of no use once a message of this
    kind is sent.

    >>> superseded_by("weights")
    ('weights',)
    """
    more = {"finished": ("weights", "status"), "join": ("refused",)}
    return (kind, *more.get(kind, ()))
