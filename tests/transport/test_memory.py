"""The in-process transport: messages in order, the same checks as between machines."""

import pytest
import torch

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.memory import MemoryHub


def weights(party: str, kind: str = "weights") -> Message:
    return Message("demo", 1, AGGREGATOR, party, kind, {"w": torch.zeros(2)})


def update(party: str, **info: float) -> Message:
    return Message("demo", 1, party, AGGREGATOR, "update", {"w": torch.ones(2)}, info)


@pytest.mark.parametrize("through_bytes", [False, True])
def test_messages_come_in_the_order_they_were_sent(through_bytes: bool) -> None:
    hub = MemoryHub(through_bytes=through_bytes)
    end, a, b = hub.aggregator(), hub.end("a"), hub.end("b")
    assert isinstance(end, Transport)
    end.send(weights("b"))
    end.send(weights("a"))
    assert a.receive(1.0) is None  # the next message is for another
    assert [message.recipient for message in hub.to_parties] == ["b", "a"]
    assert b.receive(1.0) is not None
    b.send(update("b"))
    a.send(update("a"))
    first, second = end.receive(1.0), end.receive(1.0)
    assert first is not None
    assert second is not None
    assert (first.sender, second.sender) == ("b", "a")
    assert torch.equal(first.tensors["w"], torch.ones(2))
    end.done(first)
    assert end.receive(1.0) is None


def test_checks_are_those_of_every_transport() -> None:
    hub = MemoryHub()
    end, a = hub.aggregator(), hub.end("a")
    with pytest.raises(TransportError, match="unknown"):
        end.send(weights("nobody"))
    for name in (AGGREGATOR, "a", "../a"):
        with pytest.raises(MessageError):
            hub.end(name)
    with pytest.raises(MessageError, match="loss"):
        a.send(update("a", loss=0.1))
    with pytest.raises(MessageError, match="is not 'a'"):
        a.send(update("liar"))
