"""The in-process transport: calls in order, the same checks as between machines."""

from collections.abc import Iterable

import pytest
import torch

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.memory import MemoryHub


def answer(message: Message) -> Message | None:
    if message.kind == "finished":
        return None
    tensors = {name: tensor + 1 for name, tensor in message.tensors.items()}
    return Message(message.run, message.round, message.recipient, message.sender, "update", tensors)


def weights(party: str, kind: str = "weights") -> Message:
    return Message("demo", 1, AGGREGATOR, party, kind, {"w": torch.zeros(2)})


@pytest.mark.parametrize("through_bytes", [False, True])
def test_answers_come_in_the_order_of_the_questions(through_bytes: bool) -> None:
    hub = MemoryHub(through_bytes=through_bytes)
    asked: list[str] = []

    def handle(message: Message) -> Message | None:
        asked.append(message.recipient)
        return answer(message)

    hub.register("a", handle)
    hub.register("b", handle)
    end = hub.aggregator()
    assert isinstance(end, Transport)
    end.send(weights("b"))
    end.send(weights("a"))
    assert asked == []  # lazily: nothing is computed before the aggregator waits
    first = end.receive(1.0)
    assert first is not None
    assert asked == ["b"]
    assert first.sender == "b"
    assert torch.equal(first.tensors["w"], torch.ones(2))
    end.done(first)
    second = end.receive(1.0)
    assert second is not None
    assert second.sender == "a"
    assert end.receive(1.0) is None


def test_several_answers_and_none() -> None:
    def handle(message: Message) -> Iterable[Message]:
        for number in (1, 2):
            yield Message(message.run, number, "a", AGGREGATOR, "refused", info={"reason": "budget"})

    hub = MemoryHub()
    hub.register("a", handle)
    hub.register("silent", lambda message: None)
    end = hub.aggregator()
    end.send(weights("silent"))
    end.send(weights("a"))
    answers = [end.receive(0), end.receive(0), end.receive(0)]
    assert [answer and answer.round for answer in answers] == [1, 2, None]


def test_closing_hands_out_the_final_weights() -> None:
    heard: list[str] = []
    hub = MemoryHub()
    hub.register("a", lambda message: heard.append(message.kind))
    end = hub.aggregator()
    end.send(weights("a", "finished"))
    end.close()
    assert heard == ["finished"]


def test_checks_are_those_of_every_transport() -> None:
    hub = MemoryHub()
    hub.register("a", lambda message: Message("demo", 1, "a", AGGREGATOR, "update", info={"loss": 0.1}))
    hub.register("liar", lambda message: Message("demo", 1, "a", AGGREGATOR, "update"))
    end = hub.aggregator()
    with pytest.raises(TransportError, match="unknown"):
        end.send(weights("nobody"))
    for name in (AGGREGATOR, "a", "../a"):
        with pytest.raises(MessageError):
            hub.register(name, answer)
    end.send(weights("a"))
    with pytest.raises(MessageError, match="loss"):
        end.receive(0)
    end.send(weights("liar"))
    with pytest.raises(MessageError, match="is not the party"):
        end.receive(0)
