"""Runs of a NATS server that call a party: streams with the prefix, in which a message of the asker waits for it.

It asks for the names of streams and, by `DIRECT.GET`, for the last message on a subject of this party: a server can
allow a party that and nothing of the others (docs/transports.md). The message stays in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import nats.errors

from homo_dp.config.federation import NatsConfig
from homo_dp.core.errors import TransportError
from homo_dp.transport.nats.client import SafeClient
from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.queue import connect_options
from homo_dp.transport.waiting_runs import Call, Sealers, checked_runs, is_call

_WITHIN: Final = 15.0  # seconds for one look
_ANSWER: Final = 5.0  # seconds for one answer of the server
_CALLS: Final = ("status", "plan")  # what an aggregator leaves for a party that it waits for


def nats_calls(config: NatsConfig, party: str, sealers: Sealers, known: Callable[[str], bool]) -> list[Call]:
    """The runs of a server that call a party and are not `known` yet; TransportError if it cannot be asked."""
    try:
        return asyncio.run(asyncio.wait_for(_look(config, party, sealers, known), _WITHIN))
    except (TimeoutError, OSError, ValueError, nats.errors.Error) as error:
        raise TransportError(
            f"transport.nats.servers: no list of runs ({type(error).__name__}); does the server run, and may this user "
            "ask for $JS.API.STREAM.NAMES (docs/transports.md)?"
        ) from None


async def _look(config: NatsConfig, party: str, sealers: Sealers, known: Callable[[str], bool]) -> list[Call]:
    options: dict[str, Any] = connect_options(config)
    client = SafeClient(encrypted=bool(options.pop("encrypted", False)))
    inbox = Names(config.stream, "", party).inbox()
    await client.connect(servers=list(config.servers), allow_reconnect=False, inbox_prefix=inbox, **options)
    try:
        found = checked_runs(await _runs(client, config, party), sealers, known)
        return [call for call in found if await _waits(client, Names(config.stream, call.run, party), call, sealers)]
    finally:
        with contextlib.suppress(Exception):
            await client.close()


async def _runs(client: SafeClient, config: NatsConfig, party: str) -> list[str]:
    """Names of the runs whose streams hold subjects of this party."""
    wanted = {"subject": f"{Names.token(config.stream)}.*.to.{Names.token(party)}.>"}
    reply = await client.request("$JS.API.STREAM.NAMES", json.dumps(wanted).encode(), timeout=_ANSWER)
    listed = json.loads(reply.data).get("streams") or []
    prefix = f"{Names.token(config.stream)}-"
    return sorted(name.removeprefix(prefix).replace("=", ".") for name in listed if str(name).startswith(prefix))


async def _waits(client: SafeClient, names: Names, call: Call, sealers: Sealers) -> bool:
    for kind in _CALLS:
        subject = names.subject("aggregator", names.name, kind)
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            reply = await client.request(f"$JS.API.DIRECT.GET.{names.stream}.{subject}", b"", timeout=_ANSWER)
            if is_call(reply.data, call.run, sealers[call.asker][1]):
                return True
    return False
