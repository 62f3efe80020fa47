"""A party's answer as its outbox keeps it, with the question that it answers: a round has one
answered question.
"""

from __future__ import annotations

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import Kinds, Message, decode, encode, pack

Kept = bytes | tuple[Message, Message]  # on disk, and in memory: question and answer
_ASKED = b"ASKED"  # stands behind the answer, before the digest of its question


def packed(question: Message, answer: Message, kinds: Kinds, *, durable: bool) -> Kept:
    """What the outbox keeps: bytes where it is on disk, else the two messages as they are."""
    return encode(answer, kinds) + _mark(question, kinds) if durable else (question, answer)


def unpacked(question: Message, kept: Kept, kinds: Kinds) -> Message:
    """The kept answer; MessageError if it is one to another question of the same round.

    Guarantees:
        - an aggregator that asks again in a round, with other weights, gets no second answer for
          the one charge.
    """
    if isinstance(kept, tuple):
        if not _same(kept[0], question):
            raise _another(question)
        return kept[1]
    mark = _mark(question, kinds)
    place = len(kept) - len(mark)
    if kept[place:].startswith(
        _ASKED
    ):  # outboxes of earlier versions have no mark: their one answer fits every question
        if kept[place:] != mark:
            raise _another(question)
        kept = kept[:place]
    return decode(kept, kinds=kinds)


def _mark(question: Message, kinds: Kinds) -> bytes:
    return _ASKED + bytes.fromhex(pack(question, kinds).digest)


def _same(one: Message, other: Message) -> bool:
    return one.info == other.info and all(
        tensor.equal(other.tensors[name]) for name, tensor in one.tensors.items()
    )


def _another(question: Message) -> MessageError:
    return MessageError(
        f"round={question.round}: another message was answered in this round; one a round, refused"
    )
