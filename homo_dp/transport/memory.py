"""Messages within one process: plain calls, made only when the aggregator waits for an answer.

hub = MemoryHub()
hub.register("bank_a", party.handle)
aggregator_end = hub.aggregator()
"""

from collections import deque
from collections.abc import Callable, Iterable

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, KINDS, Kinds, Message, check, check_id, decode, encode

Handler = Callable[[Message], Message | Iterable[Message] | None]


class MemoryHub:
    """Joins an aggregator with parties that are functions from a message to its answers.

    A party computes when the aggregator receives, one party after the other, so only one works at a time.
    `through_bytes` sends everything through the encoded form, as between machines.
    """

    def __init__(self, kinds: Kinds = KINDS, through_bytes: bool = False) -> None:
        self._kinds = kinds
        self._through_bytes = through_bytes
        self._handlers: dict[str, Handler] = {}
        self._to_parties: deque[Message] = deque()
        self._to_aggregator: deque[Message] = deque()

    def register(self, name: str, handle: Handler) -> None:
        """Let `handle` answer the messages to the party `name`."""
        if check_id("party", name).lower() == AGGREGATOR or name in self._handlers:
            raise MessageError(f"party={name!r} is taken: give each party its own name")
        self._handlers[name] = handle

    def aggregator(self) -> "MemoryTransport":
        """The aggregator's end."""
        return MemoryTransport(self)

    def post(self, message: Message) -> None:
        """Put a message on its way, checked as every transport checks it."""
        if self._through_bytes:
            message = decode(encode(message, self._kinds), kinds=self._kinds)
        else:
            check(message, self._kinds)
        if message.recipient == AGGREGATOR:
            self._to_aggregator.append(message)
        elif message.recipient in self._handlers:
            self._to_parties.append(message)
        else:
            raise TransportError(f"recipient={message.recipient!r} is unknown: register it first")

    def deliver(self) -> None:
        """Let the parties handle all that was written to them, such as the final weights nobody answers."""
        while self._to_parties:
            self._ask_one()

    def next_for_aggregator(self) -> Message | None:
        """The next answer; asks the parties, in the order in which they were written to, until one gives one."""
        while not self._to_aggregator and self._to_parties:
            self._ask_one()
        return self._to_aggregator.popleft() if self._to_aggregator else None

    def _ask_one(self) -> None:
        message = self._to_parties.popleft()
        answers = self._handlers[message.recipient](message)
        for answer in (answers,) if isinstance(answers, Message) else answers or ():
            if answer.sender != message.recipient:
                raise MessageError(f"sender={answer.sender!r} is not the party {message.recipient!r} that answers")
            self.post(answer)


class MemoryTransport:
    """The aggregator's end of a `MemoryHub`."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    def send(self, message: Message) -> None:
        """Queue a message for its party."""
        self._hub.post(message)

    def receive(self, timeout: float) -> Message | None:
        """The next answer, or None at once: within one process nothing comes by waiting."""
        return self._hub.next_for_aggregator()

    def done(self, message: Message) -> None:
        """Nothing to do: a message in memory comes once."""

    def close(self) -> None:
        """Hand the parties what is left for them."""
        self._hub.deliver()
