"""Runs of a NATS server that call a party: streams with the prefix, in which a message of the asker
waits for it.

It asks for the names of streams and, by `DIRECT.GET`, for the last message on a subject of this
party: a server can allow a party that and nothing of the others (docs/transports.md). The message
stays in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import nats.errors

from homo_dp.config.federation import NatsConfig
from homo_dp.core.errors import TransportError
from homo_dp.transport.nats.client import SafeClient
from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.queue import connect_options, end_tasks
from homo_dp.transport.waiting_runs import Call, Sealers, Turns, is_call, unknown_asker

Result = TypeVar("Result")

_WITHIN: Final = 15.0  # seconds for one look
_ANSWER: Final = 5.0  # seconds for one answer of the server
_CALLS: Final = ("status", "plan")  # what an aggregator leaves for a party that it waits for
_MOST_RUNS: Final = 100_000  # that a server lists, a thousand in an answer
_AT_ONCE: Final = 32  # runs that the server is asked about at a time


class NatsCalls:
    """Looks for runs that call a party, over one connection that is kept between looks.

    Guarantees:
        - a look costs two questions to the server for each run that is looked at, and no new
          connection or TLS handshake while the old one stands;
        - a run that is new is looked at before those that were there, and a look takes some
          seconds at most, however many runs there are;
        - a connection that went away between two looks is made again once, before a look counts as
          failed.
    """

    def __init__(self, config: NatsConfig, party: str, sealers: Sealers) -> None:
        self._config = config
        self._party = party
        self._sealers = sealers
        # runs while somebody looks, and stands still in between
        self._loop = asyncio.new_event_loop()
        self._client: SafeClient | None = None
        self._turns = Turns()

    def look(self, known: Callable[[str], bool]) -> list[Call]:
        """The runs that call the party and are not `known` yet; TransportError if the server
        cannot be asked.
        """
        if self._client is not None:
            with contextlib.suppress(Exception):
                return self._wait(self._ask(self._client, known))
            self._disconnect()
        try:
            return self._wait(self._ask(self._wait(self._connect()), known))
        except Exception as error:
            # nats-py raises any kind of error if a server breaks the protocol
            self._disconnect()
            raise TransportError(
                f"transport.nats.servers: no list of runs ({type(error).__name__}); does the "
                "server run, and may this user ask for $JS.API.STREAM.NAMES "
                "(docs/transports.md)?"
            ) from None

    def close(self) -> None:
        """Disconnect."""
        if not self._loop.is_closed():
            self._disconnect()
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(work, _WITHIN))

    async def _ask(self, client: SafeClient, known: Callable[[str], bool]) -> list[Call]:
        stream, party = self._config.stream, self._party
        runs = {
            run: asker
            for run in await _runs(client, stream, party)
            if (asker := unknown_asker(run, self._sealers, known)) is not None
        }
        turn, found = self._turns.look(runs), list[Call]()
        while due := [Call(run, runs[run]) for run in itertools.islice(turn, _AT_ONCE)]:
            waits = await asyncio.gather(
                *(
                    _waits(client, Names(stream, each.run, party), each, self._sealers)
                    for each in due
                )
            )
            found += [call for call, is_waiting in zip(due, waits, strict=True) if is_waiting]
        return found

    async def _connect(self) -> SafeClient:
        options: dict[str, Any] = connect_options(self._config)
        client = self._client = SafeClient(encrypted=bool(options.pop("encrypted", False)))
        await client.connect(
            servers=list(self._config.servers),
            inbox_prefix=Names(self._config.stream, "", self._party).inbox(),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=_ANSWER,
            error_cb=_quiet,
            **options,
        )
        return client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._loop.run_until_complete(client.end())
        self._loop.run_until_complete(end_tasks())


async def _quiet(error: Exception) -> None:
    """What goes wrong is raised by the question that it is about."""


async def _runs(client: SafeClient, stream: str, party: str) -> list[str]:
    """Names of the runs whose streams hold subjects of this party."""
    prefix, names = f"{Names.token(stream)}-", list[str]()
    wanted: dict[str, Any] = {"subject": f"{Names.token(stream)}.*.to.{Names.token(party)}.>"}
    while len(names) < _MOST_RUNS:
        wanted["offset"] = len(names)
        reply = await client.request(
            "$JS.API.STREAM.NAMES", json.dumps(wanted).encode(), timeout=_ANSWER
        )
        answer = json.loads(reply.data)
        listed = answer.get("streams") or []
        names += [str(name) for name in listed]
        if not listed or len(names) >= int(answer.get("total") or 0):
            break
    return [
        name.removeprefix(prefix).replace("=", ".") for name in names if name.startswith(prefix)
    ]


async def _waits(client: SafeClient, names: Names, call: Call, sealers: Sealers) -> bool:
    for kind in _CALLS:
        subject = names.subject("aggregator", names.name, kind)
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            reply = await client.request(
                f"$JS.API.DIRECT.GET.{names.stream}.{subject}", b"", timeout=_ANSWER
            )
            if is_call(reply.data, call.run, sealers[call.asker][1]):
                return True
    return False
