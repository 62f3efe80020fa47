"""The stream of a run: made once, and a stream of an earlier version keeps its one consumer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import nats.js.errors
import pytest

from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.parts import PART_BYTES
from homo_dp.transport.nats.stream import RunQueue, make_stream


class Manager:
    """Remembers what was made; an earlier stream refuses consumers that overlap with its own."""

    def __init__(self, *, there: bool = False, old: bool = False) -> None:
        self.there, self.old = there, old
        self.streams: list[Any] = []
        self.consumers: list[str] = []

    async def stream_info(self, name: str) -> None:
        if not self.there:
            raise nats.js.errors.NotFoundError

    async def add_stream(self, config: Any) -> None:
        self.streams.append(config)

    async def add_consumer(self, stream: str, config: Any) -> None:
        if self.old and "from" in config.durable_name:
            raise nats.js.errors.BadRequestError(code=400, err_code=10100, description="not unique")
        self.consumers.append(config.durable_name)


def made(manager: Manager, max_size: int = PART_BYTES) -> list[str]:
    queue = RunQueue(Names("homo_dp", "run", "aggregator"), ["a", "b"], ["weights"], max_size, 30.0)
    client: Any = SimpleNamespace(jsm=lambda: manager)
    return asyncio.run(make_stream(client, queue, separate=True))


def test_every_party_has_a_consumer_of_its_own_at_the_aggregator() -> None:
    manager = Manager()
    own = made(manager)
    assert len(own) == len(set(own)) == 2
    assert len(manager.consumers) == 4
    assert manager.streams[0].max_msg_size > PART_BYTES


def test_a_stream_that_is_there_is_left_as_it_is() -> None:
    manager = Manager(there=True)
    made(manager)
    assert manager.streams == []


def test_a_stream_of_an_earlier_version_keeps_one_consumer_for_all() -> None:
    names = Names("homo_dp", "run", "aggregator")
    assert made(Manager(there=True, old=True)) == [names.consumer("aggregator")]


@pytest.mark.parametrize("size", [1, PART_BYTES, PART_BYTES + 1, 10 * PART_BYTES])
def test_two_of_the_largest_messages_fit(size: int) -> None:
    queue = RunQueue(Names("homo_dp", "run", "aggregator"), ["a"], ["weights"], size, 30.0)
    assert queue.waiting * PART_BYTES >= 2 * size
