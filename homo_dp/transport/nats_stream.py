"""What the aggregator sets up at a NATS server for a run: its stream, and a durable consumer for everybody."""

from collections.abc import Sequence
from typing import Final

import nats.js.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from homo_dp.federation.ids import AGGREGATOR
from homo_dp.transport.nats_names import Names

_DUPLICATES: Final = 120.0  # seconds in which a message that is sent once more is known again
_KEEP: Final = 30 * 86400.0  # seconds that the stream keeps what nobody fetched


async def make_stream(client: Client, names: Names, peers: Sequence[str], ack_wait: float) -> None:
    """Make stream and consumers; making them again changes nothing. `ack_wait` is in seconds."""
    manager = client.jsm()
    try:
        await manager.stream_info(names.stream)
    except nats.js.errors.NotFoundError:
        await manager.add_stream(
            StreamConfig(
                name=names.stream,
                subjects=[f"{names.base}.>"],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                duplicate_window=_DUPLICATES,
                max_age=_KEEP,
            )
        )
    for name in (AGGREGATOR, *peers):
        await manager.add_consumer(
            names.stream,
            ConsumerConfig(
                durable_name=names.consumer(name),
                filter_subject=names.filter(name),
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ack_wait,
                max_ack_pending=-1,
                max_waiting=64,
            ),
        )
