"""Ends of a run at a real queue server, and what the server holds of it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import nats
import pytest

from homo_dp.federation.protocol.messages import AGGREGATOR, Limits
from homo_dp.transport.nats.queue import NatsTransport
from tests.transport.nats_server import NatsServer
from tests.transport.parts import WAIT, sealer

LEAVES_NOTHING = [  # marks of tests whose ends leave no task behind
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected"),
]


class Ends:
    """Opens ends of one run, and closes them after the test."""

    def __init__(self, server: NatsServer, run: str) -> None:
        self.server, self.run = server, run
        self.opened: list[NatsTransport] = []

    def __call__(self, name: str, limits: Limits | None = None, **options: Any) -> NatsTransport:
        values = {"patience": WAIT, "ack_wait": 0.6} | options
        end = NatsTransport(self.server.config(name), self.run, sealer(name, limits), **values)
        self.opened.append(end)
        return end


def stored(server: NatsServer, run: str) -> list[str]:
    """Subjects of all messages that the server holds for a run, as the aggregator may ask."""

    async def ask() -> list[str]:
        options = {
            "user": AGGREGATOR,
            "password": "pw-aggregator",
            "inbox_prefix": f"_INBOX_homo_dp.{AGGREGATOR}",
        }
        client = await nats.connect(f"nats://127.0.0.1:{server.port}", **options)
        info = await client.jsm().stream_info(f"homo_dp-{run}", subjects_filter=">")
        await client.close()
        return [name for name, count in (info.state.subjects or {}).items() for _ in range(count)]

    return asyncio.run(ask())


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return False
