"""The asynchronous half of the NATS transport: one connection kept up, one durable consumer pulled,
parts published.

Only this module, client.py and stream.py import `nats`. It runs on the event loop that
`homo_dp.transport.nats.queue` owns. What nats-py has for pulling and large bodies, and why it is
not used: docs/adr/0013.
"""

import asyncio
import contextlib
import json
import logging
import random
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from homo_dp.core.errors import TransportError, one_line
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.transport.nats.client import SafeClient
from homo_dp.transport.nats.parts import Assembler, Delivery, Part
from homo_dp.transport.nats.stream import RunQueue, make_stream

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 5.0
_CONNECT: Final = 5
_BATCH: Final = 16
_PUBLISH: float = 5.0  # seconds until an answer counts as lost
_PULL: Final = 30.0
_HEARTBEAT: Final = 5.0
_IN_FLIGHT: Final = 8
_REMEMBERED: Final = 1000
_UNREAD: Final = 2  # whole messages of one consumer held for a process that does not ask for them
_PATIENCE_WITH_BAD: Final = 50  # refused messages after which a sender is heard less often
_AWAY: Final = (OSError, nats.errors.Error)  # a TimeoutError is an OSError
_STALLED: Final = (
    "the server does not answer; if it runs, its disk may be full: make room and restart it, since "
    "it does not notice by itself"
)


class _Source:
    """One consumer that is pulled: how many of its messages wait to be read, and how many were
    refused of late.
    """

    def __init__(self, consumer: str, *, separate: bool) -> None:
        self.consumer = consumer
        self.separate = separate  # of one sender only, so that it alone can be made to wait
        self.unread = 0
        self.bad = 0
        self.room = asyncio.Event()
        self.room.set()

    def pause(self) -> float:
        """Seconds to wait before more is asked for: up to one second for a sender whose messages
        are refused.
        """
        return min(1.0, self.bad / 1000) if self.separate and self.bad > _PATIENCE_WITH_BAD else 0.0


class Link:
    """Keeps one process connected; hands whole deliveries to `deliver`.

    Guarantees:
        - whatever a message holds or nats-py raises, the connection is kept or made again;
        - each sender has a consumer of its own at the aggregator: what one sends without end waits
          at the server.
    """

    def __init__(
        self,
        queue: RunQueue,
        servers: list[str],
        options: dict[str, Any],
        deliver: Callable[[Delivery], None],
        refusals: Refusals,
    ) -> None:
        self.names = queue.names
        self._queue = queue
        self._servers = servers
        self._options = dict(options)
        self._encrypted = bool(self._options.pop("encrypted", False))
        self._ack_wait = queue.ack_wait
        self._deliver = deliver
        self._refusals = refusals
        self._parts = Assembler(queue.max_size)
        self._client: SafeClient | None = None
        self._up = asyncio.Event()
        self._sources: dict[str, _Source] = {}
        self._held: dict[int, str] = {}  # sequence -> where to acknowledge
        self._acks: deque[str] = deque()
        self._acks_wait = asyncio.Event()
        self._sent: OrderedDict[str, int] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self._requests: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._told = ""
        self.complaint = ""
        self.denied: str | None = None  # what the server does not permit this user

    async def start(self, patience: float) -> None:
        """Connect for the first time, or raise TransportError."""
        deadline = asyncio.get_running_loop().time() + patience
        for pause in _pauses():
            left = deadline - asyncio.get_running_loop().time()
            try:
                client, closed = await self._connect(max(0.1, min(left, _CONNECT)))
                break
            except Exception as error:
                # A refused login is a plain nats.errors.Error while connecting: only its text tells
                # it.
                final = isinstance(
                    error, ssl.SSLError | nats.js.errors.APIError
                ) or "uthorization" in str(error)
                if final or left < pause:
                    raise self._unreachable(error) from None
            await asyncio.sleep(pause)
        self._tasks = [
            asyncio.create_task(self._keep_up(client, closed)),
            asyncio.create_task(self._acknowledge()),
            asyncio.create_task(self._stay_in_hand()),
        ]

    async def send(
        self, subject: str, parts: Iterator[Part], older: list[str], patience: float
    ) -> None:
        """Publish the parts, a few at a time, and return when the stream has stored them all.

        What was sent on the subjects `older` before, and never fetched, is then removed (only the
        aggregator may).
        """
        deadline = asyncio.get_running_loop().time() + patience
        running: deque[asyncio.Task[int]] = deque()
        sequences: list[int] = []
        again = -1
        try:
            for part in parts:
                if again < 0:
                    again = self._times_sent(part.tag)
                running.append(asyncio.create_task(self._store(subject, part, again, deadline)))
                if len(running) >= _IN_FLIGHT:
                    sequences.append(await running.popleft())
            while running:
                sequences.append(await running.popleft())
        finally:
            for task in running:
                task.cancel()
        for name in older:
            removal = asyncio.create_task(self._remove_older(name, min(sequences)))
            self._background.add(removal)
            removal.add_done_callback(self._background.discard)

    def read(self, consumer: str, *, refused: bool) -> None:
        """A delivery was taken: there is room for another, later if it was refused."""
        source = self._sources[consumer]
        source.unread -= 1
        source.bad = source.bad + 1 if refused else source.bad // 2
        source.room.set()

    def acknowledge(self, sequences: list[int]) -> None:
        """Tell the queue that these need not come again."""
        self._acks.extend(
            self._held.pop(sequence) for sequence in sequences if sequence in self._held
        )
        self._acks_wait.set()

    async def stop(self) -> None:
        """Send what is still to be acknowledged and disconnect."""
        if self._client is not None and self._client.is_connected:
            with contextlib.suppress(*_AWAY):
                while self._acks:
                    await self._client.publish(self._acks.popleft(), Msg.Ack.Ack)
                await self._client.flush(2)
        if self._background:
            await asyncio.wait(self._background, timeout=1.0)
        tasks = [*self._tasks, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.end()

    def _times_sent(self, tag: str) -> int:
        times = self._sent.pop(tag, 0)
        self._sent[tag] = times + 1
        while len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)
        return times

    async def _remove_older(self, subject: str, sequence: int) -> None:
        with contextlib.suppress(*_AWAY):
            client = await self._connected()
            await client.jsm().purge_stream(self.names.stream, seq=sequence, subject=subject)

    async def _connect(self, limit: float) -> tuple[SafeClient, asyncio.Event]:
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        async def on_error(error: Exception) -> None:
            self.complaint = one_line(error) or type(error).__name__
            log.debug("nats: %s", self.complaint)
            if "permissions violation" in self.complaint.lower():
                self.denied = self.complaint
                for request in self._requests:  # the answer will never come
                    request.cancel()

        failure: Exception = nats.errors.NoServersError()
        self.complaint, self.denied = "", None
        for server in random.sample(self._servers, len(self._servers)):
            client = SafeClient(encrypted=self._encrypted)
            try:
                async with asyncio.timeout(limit):
                    # Reconnecting is ours, so that the stream and the pull are set up again each
                    # time.
                    await client.connect(
                        servers=[server],
                        name=f"homo_dp {self.names.name}",
                        inbox_prefix=self.names.inbox(),
                        allow_reconnect=False,
                        max_reconnect_attempts=1,
                        reconnect_time_wait=0,
                        connect_timeout=_CONNECT,
                        ping_interval=10,
                        max_outstanding_pings=2,
                        closed_cb=on_closed,
                        error_cb=on_error,
                        **self._options,
                    )
                    consumers = [self.names.consumer(self.names.name)]
                    if self.names.name == AGGREGATOR:
                        separate = await self._may_pull_each(client)
                        consumers = await make_stream(client, self._queue, separate=separate)
                self._hear(consumers)
                return client, closed
            except Exception as error:
                # nats-py raises any kind of error if a server breaks the protocol
                failure = error
                await client.end()
        raise failure

    async def _may_pull_each(self, client: SafeClient) -> bool:
        """Whether the server lets the aggregator use a consumer for each party; it complains at
        once if not.
        """
        consumer = self.names.consumer_from("=")  # a name that no party has
        for subject in (
            f"$JS.API.CONSUMER.MSG.NEXT.{self.names.stream}.{consumer}",
            f"$JS.ACK.{self.names.stream}.{consumer}.1.1.1.1.0",
        ):
            await client.publish(subject, b"")
        await client.flush(_CONNECT)
        if self.denied is None:
            return True
        self.denied, self.complaint = None, ""
        self._tell(
            "the aggregator's user may not pull a consumer for each party, so that one party's "
            "flood delays all: give it what docs/transports.md lists"
        )
        return False

    def _hear(self, consumers: list[str]) -> None:
        separate = consumers != [self.names.consumer(AGGREGATOR)]
        for name in consumers:
            self._sources.setdefault(name, _Source(name, separate=separate))

    async def _keep_up(self, client: SafeClient, closed: asyncio.Event) -> None:
        while True:
            self._client, self.complaint = client, ""
            self._up.set()
            await self._pull_until(client, closed)
            self._up.clear()
            for request in self._requests:
                request.cancel()
            log.warning(
                "nats: connection of %s lost (%s); trying again",
                self.names.name,
                self.complaint or "closed",
            )
            told = ""
            for pause in _pauses():
                await asyncio.sleep(pause)
                try:
                    client, closed = await self._connect(_CONNECT)
                    break
                except Exception as error:
                    reason = self.complaint or one_line(error) or type(error).__name__
                    if reason != told:
                        told = reason
                        log.warning(
                            "nats: %s cannot connect: %s; trying on", self.names.name, reason
                        )
            log.warning("nats: %s is connected again", self.names.name)

    async def _pull_until(self, client: SafeClient, closed: asyncio.Event) -> None:
        """Pull as long as the connection stands; a pull that fails is a connection to give up."""
        tasks = {
            asyncio.create_task(self._pull(client, source)) for source in self._sources.values()
        }
        tasks.add(asyncio.create_task(_set(closed)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    self.complaint = one_line(outcome) or type(outcome).__name__
        await client.end()

    async def _connected(self) -> SafeClient:
        await self._up.wait()
        if self._client is None:
            raise nats.errors.ConnectionClosedError
        return self._client

    async def _store(self, subject: str, part: Part, again: int, deadline: float) -> int:
        # A message in one part is known again by its content, so that a process that was killed and
        # sends once more changes nothing. Seals differ, so parts of two attempts must not be taken
        # for each other.
        name = f"{part.tag}.{again}" + ("" if part.count == 1 else f".{part.attempt}.{part.number}")
        headers = part.headers() | {"Nats-Msg-Id": name, "Nats-Expected-Stream": self.names.stream}
        for pause in _pauses():
            left = deadline - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    return await self._publish(subject, part.data, headers)
            except nats.js.errors.NoStreamResponseError:
                reason = f"there is no stream {self.names.stream} yet: start the aggregator"
                self._tell(reason)
            except nats.js.errors.APIError as error:
                reason = one_line(error.description or error)
                if error.code is not None and error.code < 500:
                    raise TransportError(f"nats: {subject}: {reason}") from None
                self._tell(reason)
            except _AWAY as error:
                self.check_permissions()
                reason = self.complaint or one_line(error) or type(error).__name__
                if isinstance(error, TimeoutError) and left > 0 and self._up.is_set():
                    reason = _STALLED
                    self._tell(reason)
            if deadline - asyncio.get_running_loop().time() < pause:
                raise TransportError(
                    f"nats: {subject} was not stored: {reason}; sending again is safe"
                )
            await asyncio.sleep(pause)
        # not reached: there is always another pause
        raise TransportError(f"nats: {subject} was not stored")

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            log.warning("nats: %s; trying on", reason)

    def check_permissions(self) -> None:
        """Stop where the server permits this user too little: waiting would not help."""
        if self.denied is not None:
            raise TransportError(
                f"{self.denied}: give the user of {self.names.name} what docs/transports.md lists, "
                "then start again"
            )

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """The sequence under which the stream stored `data`; fails at once when the connection
        does.
        """
        client = await self._connected()
        request = asyncio.create_task(
            client.jetstream().publish(subject, data, timeout=_PUBLISH, headers=headers)
        )
        self._requests.add(request)
        try:
            return int((await request).seq)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise nats.errors.ConnectionClosedError from None
        finally:
            self._requests.discard(request)

    async def _pull(self, client: SafeClient, source: _Source) -> None:
        """Keep one request for messages at the server at all times, so that a message comes at
        once.
        """
        inbox, news = client.new_inbox(), asyncio.Event()
        asked, refused = 0, False

        async def arrived(msg: Msg) -> None:
            nonlocal asked, refused
            if msg.reply:
                asked -= 1
                self._arrived(msg, source)
            elif (msg.headers or {}).get("Status") != "100":
                asked, refused = 0, (msg.headers or {}).get("Status") not in ("404", "408")
            news.set()

        await client.subscribe(inbox, cb=arrived)
        request = {
            "batch": _BATCH,
            "expires": int(_PULL * 1e9),
            "idle_heartbeat": int(_HEARTBEAT * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.names.stream}.{source.consumer}"
        pauses = _pauses()
        while not client.is_closed:
            await source.room.wait()
            await asyncio.sleep(source.pause())
            asked, refused = _BATCH, False
            await client.publish(subject, json.dumps(request).encode(), reply=inbox)
            while asked > 0:
                news.clear()
                try:
                    await asyncio.wait_for(news.wait(), 2.5 * _HEARTBEAT)
                except TimeoutError:
                    self._tell(_STALLED)
                    break  # not even a heartbeat: the request is lost
            if refused:  # no such consumer yet: the aggregator has not made it
                await asyncio.sleep(min(next(pauses), 1.0))
            else:
                pauses = _pauses()

    def _arrived(self, msg: Msg, source: _Source) -> None:
        sequence = int(msg.metadata.sequence.stream)
        known = sequence in self._held
        self._held[sequence] = msg.reply
        if known:
            return  # came again while in hand
        sender = self.names.sender(msg.subject)
        try:
            delivery = self._parts.add(sender, msg.headers or {}, msg.data, sequence)
        except Exception as refusal:
            self._refusals.note(sender, f"a message on {msg.subject}", refusal)
            source.bad += 1
            self.acknowledge([sequence, *self._parts.outdated(sender)])
            return
        given_up = self._parts.outdated(sender)
        if given_up:
            self._refusals.note(
                sender, f"unfinished messages of {sender}", f"{len(given_up)} parts are given up"
            )
            source.bad += 1
        self.acknowledge(given_up)
        if delivery is not None:
            delivery.consumer = source.consumer
            source.unread += 1
            if source.unread >= _UNREAD:
                source.room.clear()
            self._deliver(delivery)

    async def _acknowledge(self) -> None:
        while True:
            await self._acks_wait.wait()
            self._acks_wait.clear()
            while self._acks:
                client = await self._connected()
                try:
                    await client.publish(self._acks[0], Msg.Ack.Ack)
                    self._acks.popleft()
                except _AWAY:
                    await asyncio.sleep(_FIRST_PAUSE)

    async def _stay_in_hand(self) -> None:
        """Tell the queue, as long as this process lives, that what it received is being worked
        on.
        """
        while True:
            await asyncio.sleep(self._ack_wait / 3)
            client = await self._connected()
            with contextlib.suppress(*_AWAY):
                for reply in list(self._held.values()):
                    await client.publish(reply, Msg.Ack.Progress)

    def _unreachable(self, error: BaseException) -> TransportError:
        vague = isinstance(error, nats.errors.NoServersError | TimeoutError)
        reason = (self.complaint if vague else "") or one_line(error) or type(error).__name__
        return TransportError(
            f"nats: {', '.join(self._servers)} cannot be used ({reason}): check "
            "transport.nats.servers, its credentials and that the server runs with JetStream"
        )


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _pauses() -> Iterator[float]:
    """Seconds to wait between attempts: doubling, with jitter so that parties do not come back
    all at once.
    """
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, _LAST_PAUSE)
