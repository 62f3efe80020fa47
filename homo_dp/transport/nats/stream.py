"""What the aggregator sets up at a NATS server for a run: its stream, and durable consumers for
everybody.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import nats.js.errors
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.parts import PART_BYTES

# seconds within which the server recognises a message that is sent twice
_DUPLICATES: Final = 120.0
_KEEP: Final = 30 * 86400.0  # seconds that the stream keeps what nobody fetched
# messages of one kind and party that may wait, besides the parts of two large ones
_SMALL: Final = 256
_HEADERS: Final = 8192  # bytes beside a part
_NOT_UNIQUE: Final = 10100  # the server's error: another consumer has this message already


@dataclass(frozen=True)
class RunQueue:
    """What a run's stream must hold: for whom, of which kinds, and how large a message may be."""

    names: Names
    parties: Sequence[str]
    kinds: Sequence[str]
    max_size: int  # bytes of a sealed message
    ack_wait: float  # seconds

    @property
    def waiting(self) -> int:
        """Queue messages of one kind that may wait for or from one party: two of the largest,
        and small ones.
        """
        return 2 * -(-self.max_size // PART_BYTES) + _SMALL


async def make_stream(client: Client, queue: RunQueue, *, separate: bool) -> list[str]:
    """Make stream and consumers, and return those of the aggregator; making them again changes
    nothing.

    With `separate` the aggregator has one consumer for each party, so that a party that sends
    without end delays nobody else's messages. A stream of an earlier homo_dp has one for all, and
    keeps it.
    """
    names, manager = queue.names, client.jsm()
    try:
        await manager.stream_info(names.stream)
    except nats.js.errors.NotFoundError:
        await manager.add_stream(
            StreamConfig(
                name=names.stream,
                subjects=names.subjects(queue.kinds),
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                duplicate_window=_DUPLICATES,
                max_age=_KEEP,
                max_msg_size=PART_BYTES + _HEADERS,
                max_msgs_per_subject=queue.waiting,
                discard=DiscardPolicy.NEW,
                discard_new_per_subject=True,
                # a party that serves looks at what waits for it, and leaves it there
                allow_direct=True,
            )
        )
    await _add(
        client, queue, ((names.consumer(party), names.filter(party)) for party in queue.parties)
    )
    if separate:
        own = [
            (names.consumer_from(party), names.subject(party, AGGREGATOR, "*"))
            for party in queue.parties
        ]
        try:
            await _add(client, queue, own)
            return [name for name, _ in own]
        except nats.js.errors.APIError as error:
            if error.err_code != _NOT_UNIQUE:
                raise
    await _add(client, queue, [(names.consumer(AGGREGATOR), names.filter(AGGREGATOR))])
    return [names.consumer(AGGREGATOR)]


async def _add(client: Client, queue: RunQueue, consumers: Iterable[tuple[str, str]]) -> None:
    for name, subjects in consumers:
        await client.jsm().add_consumer(
            queue.names.stream,
            ConsumerConfig(
                durable_name=name,
                filter_subject=subjects,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=queue.ack_wait,
                max_ack_pending=-1,
                max_waiting=64,
            ),
        )
