"""Sealed messages cut into parts that fit a queue's payload, and put together again in any order
they come.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from homo_dp.core.errors import MessageError

TAG, ATTEMPT, PART, PARTS, SIZE = (
    "Homo-Tag",
    "Homo-Attempt",
    "Homo-Part",
    "Homo-Parts",
    "Homo-Size",
)
PART_BYTES: Final = 512 * 1024  # half of what a NATS server takes by default
# incomplete messages kept for one sender: one, its earlier attempt, and the next
_UNFINISHED: Final = 3


@dataclass(frozen=True)
class Part:
    """One queue message: `number` of `count` parts of one attempt to send the message `tag`."""

    tag: str
    attempt: str
    number: int
    count: int
    size: int  # of all parts together
    data: bytes

    def headers(self) -> dict[str, str]:
        """What travels beside the data."""
        values = (self.tag, self.attempt, self.number, self.count, self.size)
        return dict(zip((TAG, ATTEMPT, PART, PARTS, SIZE), map(str, values), strict=True))


def split(
    pieces: Iterable[bytes], size: int, tag: str, part_size: int = PART_BYTES
) -> Iterator[Part]:
    """`pieces` of `size` bytes in all as parts of at most `part_size` bytes, made one at a time."""
    count, attempt = max(1, -(-size // part_size)), secrets.token_hex(8)
    number, buffer = 0, bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) > part_size:
            yield Part(tag, attempt, number, count, size, bytes(buffer[:part_size]))
            number, buffer = number + 1, buffer[part_size:]
    yield Part(tag, attempt, number, count, size, bytes(buffer))


@dataclass(eq=False)
class Delivery:
    """A whole message as it came from the queue; reading it frees its parts."""

    sender: str
    size: int
    sequences: list[int]
    data: deque[bytes] = field(default_factory=deque)
    consumer: str = ""  # that it came through

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end, as a file gives them."""
        taken: list[bytes] = []
        while size and self.data:
            first = self.data.popleft()
            if len(first) > size:
                self.data.appendleft(first[size:])
                first = first[:size]
            taken.append(first)
            size -= len(first)
        return taken[0] if len(taken) == 1 else b"".join(taken)


@dataclass(eq=False)
class _Making:
    count: int
    size: int
    first: int  # the lowest queue sequence among its parts
    held: int = 0  # bytes
    parts: dict[int, bytes] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)


class Assembler:
    """Puts the parts of many senders together, in time that is linear in what they send.

    Guarantees:
        - of one sender at most three unfinished messages are held, and of these no more bytes than
          one message of the allowed size has; a part is counted before it is kept;
        - a message has no more parts than its size can need, so that one of a gigabyte cannot come
          byte by byte;
        - of two attempts at one message, only the one sent later is kept.
    """

    def __init__(self, max_size: int, part_size: int = PART_BYTES) -> None:
        self._max_size = max_size
        # on average; room for versions that cut smaller parts
        self._least_part = max(1, part_size // 2)
        self._making: dict[str, dict[tuple[str, str], _Making]] = {}
        self._given_up: dict[str, list[int]] = {}

    def add(
        self, sender: str, headers: Mapping[str, str], data: bytes, sequence: int
    ) -> Delivery | None:
        """A delivery once all parts are there; MessageError if this part cannot belong to a
        message.
        """
        tag, attempt, number, count, size = self._read(headers, sender)
        if count == 1:
            if len(data) != size:
                raise MessageError(
                    f"queue message of {sender!r} has {len(data)} bytes, it says {size}"
                )
            return Delivery(sender, size, [sequence], deque([data]))
        waiting = self._making.setdefault(sender, {})
        making = waiting.setdefault((tag, attempt), _Making(count, size, sequence))
        if (
            (making.count, making.size) != (count, size)
            or making.held + len(data) > size
            or number in making.parts
        ):
            raise MessageError(f"parts of {sender!r} do not fit together")
        making.parts[number] = data
        making.held += len(data)
        making.first = min(making.first, sequence)
        making.sequences.append(sequence)
        if len(making.parts) < count:
            return None
        del waiting[tag, attempt]
        if making.held != size:
            self._given_up[sender] = making.sequences
            raise MessageError(f"parts of {sender!r} do not add up to {size} bytes")
        return Delivery(
            sender, size, making.sequences, deque(making.parts[number] for number in range(count))
        )

    def outdated(self, sender: str) -> list[int]:
        """Queue sequences of parts that were given up: a newer attempt came, or too much is
        unfinished.
        """
        waiting = self._making.get(sender, {})
        newest: dict[str, int] = {}
        for (tag, _), making in waiting.items():
            newest[tag] = max(newest.get(tag, 0), making.first)
        dropped = [key for key, making in waiting.items() if making.first < newest[key[0]]]
        given_up = self._given_up.pop(sender, [])
        given_up += [sequence for key in dropped for sequence in waiting.pop(key).sequences]
        while (
            len(waiting) > _UNFINISHED
            or sum(making.held for making in waiting.values()) > self._max_size
        ):
            oldest = min(waiting, key=lambda key: waiting[key].first)
            given_up += waiting.pop(oldest).sequences
        return given_up

    def _read(self, headers: Mapping[str, str], sender: str) -> tuple[str, str, int, int, int]:
        tag, attempt = headers.get(TAG, ""), headers.get(ATTEMPT, "")
        numbers = [headers.get(name, "") for name in (PART, PARTS, SIZE)]
        if (
            not all(text.isascii() and text.isdigit() and len(text) < 16 for text in numbers)
            or len(tag + attempt) > 200
        ):
            raise MessageError(
                f"queue message of {sender!r} lacks its headers: it is not from homo_dp"
            )
        number, count, size = map(int, numbers)
        if size > self._max_size:
            raise MessageError(
                f"message of {sender!r} has {size} bytes, allowed {self._max_size}: raise "
                "transport.max_message_bytes"
            )
        if not 0 <= number < count <= 1 + size // self._least_part:
            raise MessageError(
                f"queue message of {sender!r} is part {number} of {count}: not possible"
            )
        return tag, attempt, number, count, size
