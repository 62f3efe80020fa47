"""A session's generator, driven by a transport."""

from __future__ import annotations

from collections.abc import Generator

from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import drive, superseded_by

ONE = Message("run", 0, "a", AGGREGATOR, "join", info={"rows": None, "ledger_head": None})


class _Scripted:
    """Gives messages in order and notes how long it was asked to wait."""

    def __init__(self, messages: list[Message | None]) -> None:
        self.messages, self.waits = messages, list[float]()

    def send(self, message: Message) -> None:
        """Nothing is sent here."""

    def receive(self, timeout: float) -> Message | None:
        """The next of the script."""
        self.waits.append(timeout)
        return self.messages.pop(0)

    def done(self, message: Message) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """Nothing is open here."""


def test_the_generator_gets_messages_and_says_how_long_to_wait() -> None:
    def session() -> Generator[float, Message | None, str]:
        first = yield 1.5
        second = yield 0.5
        return f"{first.kind if first else None} {second}"

    transport = _Scripted([ONE, None])
    assert drive(session(), transport) == "join None"
    assert transport.waits == [1.5, 0.5]


def test_a_session_that_waits_for_nothing() -> None:
    def session() -> Generator[float, Message | None, int]:
        yield from ()
        return 7

    assert drive(session(), _Scripted([])) == 7


def test_what_the_final_weights_make_useless() -> None:
    assert set(superseded_by("finished")) == {"finished", "weights", "status"}
    assert superseded_by("update") == ("update",)
