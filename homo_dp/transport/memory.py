"""Messages within one process: a queue for the aggregator and one for all parties, in the order
they were sent.

Nothing waits here: ``runs.simulation``, which runs both sessions, takes the next message and hands
it over.
"""

from collections import deque

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.protocol.messages import (
    AGGREGATOR,
    KINDS,
    Kinds,
    Message,
    check,
    check_id,
    decode,
    encode,
)


class MemoryHub:
    """Joins an aggregator with parties of the same process.

    `through_bytes` sends everything through the encoded form, as between machines.

    >>> hub = MemoryHub()
    >>> hub.end("bank_a").send(Message("demo", 0, "bank_a", "aggregator", "join", {}, {"rows": None}))
    >>> hub.to_aggregator.popleft().kind
    'join'
    """

    def __init__(self, kinds: Kinds = KINDS, through_bytes: bool = False) -> None:
        self._kinds = kinds
        self._through_bytes = through_bytes
        self._parties: set[str] = set()
        self.to_parties: deque[Message] = deque()
        self.to_aggregator: deque[Message] = deque()

    def end(self, name: str) -> "MemoryEnd":
        """The end of a party, of a name that is not taken."""
        if check_id("party", name).lower() == AGGREGATOR or name in self._parties:
            raise MessageError(f"party={name!r} is taken: give each party its own name")
        self._parties.add(name)
        return MemoryEnd(self, name, self.to_parties)

    def aggregator(self) -> "MemoryEnd":
        """The aggregator's end."""
        return MemoryEnd(self, AGGREGATOR, self.to_aggregator)

    def post(self, message: Message) -> None:
        """Put a message on its way, checked as every transport checks it."""
        if self._through_bytes:
            message = decode(encode(message, self._kinds), kinds=self._kinds)
        else:
            check(message, self._kinds)
        if message.recipient == AGGREGATOR:
            self.to_aggregator.append(message)
        elif message.recipient in self._parties:
            self.to_parties.append(message)
        else:
            raise TransportError(f"recipient={message.recipient!r} is unknown: make its end first")


class MemoryEnd:
    """One session's end of a `MemoryHub`."""

    def __init__(self, hub: MemoryHub, name: str, box: deque[Message]) -> None:
        self._hub = hub
        self._name = name
        self._box = box

    def send(self, message: Message) -> None:
        """Queue a message for its recipient."""
        if message.sender != self._name:
            raise MessageError(
                f"sender={message.sender!r} is not {self._name!r}, whose end this is"
            )
        self._hub.post(message)

    def receive(self, timeout: float) -> Message | None:
        """The next message if it is for this end, or None at once: within one process nothing
        comes by waiting.
        """
        return self._box.popleft() if self._box and self._box[0].recipient == self._name else None

    def done(self, message: Message) -> None:
        """Nothing to do: a message in memory comes once."""

    def close(self) -> None:
        """Nothing to do: a queue in memory holds no resource."""
