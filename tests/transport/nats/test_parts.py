"""Parts of large messages: any order, any sender's tempo, bounded memory."""

import random
from dataclasses import replace

import pytest

from homo_dp.core.errors import MessageError
from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.parts import (
    PART,
    PART_BYTES,
    PARTS,
    SIZE,
    Assembler,
    Delivery,
    Part,
    split,
)


def content(delivery: Delivery | None) -> bytes:
    assert delivery is not None
    data = b"".join(iter(lambda: delivery.read(7), b""))
    assert len(data) == delivery.size
    return data


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 95])
def test_parts_in_any_order_are_the_message(size: int) -> None:
    data = random.Random(size).randbytes(size)
    pieces = [data[:3], data[3:60], data[60:]]
    parts = list(split(pieces, size, "tag", 10))
    assert all(len(part.data) <= 10 and part.count == len(parts) for part in parts)
    random.Random(1).shuffle(parts)
    assembler = Assembler(1000, 10)
    whole = [
        assembler.add("a", part.headers(), part.data, number)
        for number, part in enumerate(parts, 1)
    ]
    assert [delivery for delivery in whole[:-1] if delivery] == []
    assert content(whole[-1]) == data
    assert whole[-1] is not None
    assert sorted(whole[-1].sequences) == list(range(1, len(parts) + 1))
    assert assembler.outdated("a") == []


def test_senders_may_interleave() -> None:
    assembler = Assembler(1000, 10)
    one, two = (list(split([letter * 30], 30, "tag", 10)) for letter in (b"a", b"b"))
    found = []
    for number, (left, right) in enumerate(zip(one, two, strict=True)):
        found += [assembler.add("a", left.headers(), left.data, 2 * number)]
        found += [assembler.add("b", right.headers(), right.data, 2 * number + 1)]
    assert content(found[-2]) == b"a" * 30
    assert content(found[-1]) == b"b" * 30


def add(assembler: Assembler, part: Part, sequence: int) -> Delivery | None:
    return assembler.add("a", part.headers(), part.data, sequence)


def test_the_later_attempt_wins_also_over_stragglers_of_the_earlier() -> None:
    assembler = Assembler(1000, 10)
    first, second = (list(split([bytes(30)], 30, "tag", 10)) for _ in range(2))
    assert add(assembler, first[0], 1) is None
    assert add(assembler, first[1], 2) is None
    assert assembler.outdated("a") == []
    assert add(assembler, second[0], 3) is None
    assert assembler.outdated("a") == [1, 2]
    assert add(assembler, first[1], 2) is None  # delivered once more
    assert assembler.outdated("a") == [2]
    assert add(assembler, second[1], 4) is None
    assert content(add(assembler, second[2], 5)) == bytes(30)


def test_an_earlier_message_is_not_lost_when_its_first_parts_come_late() -> None:
    """A receiver that was killed gets the rest at once, and what it had in hand only when the
    queue gives it again.
    """
    assembler = Assembler(1000, 10)
    one, two = (
        list(split([letter * 30], 30, tag, 10)) for letter, tag in ((b"a", "one"), (b"b", "two"))
    )
    assert add(assembler, one[2], 3) is None
    for number in range(2):
        assert add(assembler, two[number], 4 + number) is None
    assert content(add(assembler, two[2], 6)) == b"b" * 30
    assert assembler.outdated("a") == []
    assert add(assembler, one[0], 1) is None
    assert content(add(assembler, one[1], 2)) == b"a" * 30


def test_a_sender_cannot_fill_the_memory_with_beginnings() -> None:
    assembler = Assembler(1000, 10)
    dropped = []
    for number in range(100):
        assert add(assembler, next(split([bytes(30)], 30, f"tag{number}", 10)), number) is None
        dropped += assembler.outdated("a")
    assert dropped == list(range(97))


@pytest.mark.parametrize(
    "changes",
    [
        {PART: "3"},
        {PART: "-1"},
        {PART: "x"},
        {PART: ""},
        {PARTS: "0"},
        {PARTS: "9" * 400},
        {SIZE: "1001"},
        {SIZE: "0"},
        {SIZE: "²"},
        {PARTS: "1"},
    ],
)
def test_headers_that_cannot_be_are_refused(changes: dict[str, str]) -> None:
    part = next(split([bytes(30)], 30, "tag", 10))
    with pytest.raises(MessageError):
        Assembler(1000, 10).add("a", part.headers() | changes, part.data, 1)
    with pytest.raises(MessageError):
        Assembler(1000, 10).add("a", {}, part.data, 1)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    parts = list(split([bytes(30)], 30, "tag", 10))
    assembler = Assembler(1000, 10)
    add(assembler, parts[0], 1)
    with pytest.raises(MessageError, match="fit"):
        assembler.add("a", parts[1].headers() | {SIZE: "29"}, parts[1].data, 2)
    with pytest.raises(MessageError, match="fit"):
        assembler.add("a", parts[1].headers(), bytes(21), 2)
    assembler = Assembler(1000, 10)
    add(assembler, parts[0], 1)
    add(assembler, parts[1], 2)
    with pytest.raises(MessageError, match="add up"):
        assembler.add("a", parts[2].headers(), b"short", 3)
    assert assembler.outdated("a") == [1, 2, 3]  # none of them waits at the queue for ever


def test_a_message_does_not_come_byte_by_byte() -> None:
    """60,000 one-byte parts took minutes to put together; a message has no more parts than its
    size can need.
    """
    headers = Part("tag", "1", 0, 60_000, 60_000, b"").headers()
    with pytest.raises(MessageError, match="not possible"):
        Assembler(1 << 30).add("a", headers, b"x", 1)
    most = 1 + (1 << 30) // (PART_BYTES // 2)
    small, part = Assembler(1 << 30), Part("tag", "1", 0, most, 1 << 30, b"x")
    for number in range(most - 1):
        assert add(small, replace(part, number=number), number) is None
        assert small.outdated("a") == []
    with pytest.raises(MessageError, match="add up"):
        add(small, replace(part, number=most - 1), most)
    assert len(small.outdated("a")) == most


def test_a_part_is_taken_once() -> None:
    """The same part sent 1000 times under new sequences is neither kept nor remembered."""
    assembler, part = Assembler(1000, 10), next(split([bytes(30)], 30, "tag", 10))
    assert add(assembler, part, 1) is None
    for sequence in range(2, 1000):
        with pytest.raises(MessageError, match="fit"):
            add(assembler, part, sequence)


def test_a_sender_holds_no_more_bytes_than_one_message() -> None:
    assembler, given_up = Assembler(100, 10), []
    for message in range(3):
        parts = list(split([bytes(100)], 100, f"tag{message}", 10))
        for number in range(9):  # the last part never comes
            assert (
                assembler.add(
                    "a", parts[number].headers(), parts[number].data, 10 * message + number
                )
                is None
            )
            given_up += assembler.outdated("a")
    assert sorted(given_up) == [*range(9), *range(10, 19)]


def test_subjects_name_the_only_party_that_may_use_them() -> None:
    names = Names("homo_dp", "run.1", "bank.c-3")
    assert names.stream == "homo_dp-run=1"
    assert names.subject("bank.c-3", "aggregator", "update") == "homo_dp.run=1.from.bank=c-3.update"
    assert names.subject("aggregator", "bank.c-3", "weights") == "homo_dp.run=1.to.bank=c-3.weights"
    assert names.sender("homo_dp.run=1.from.bank=c-3.update") == "bank.c-3"
    assert names.sender("homo_dp.run=1.to.bank=c-3.weights") == "aggregator"
