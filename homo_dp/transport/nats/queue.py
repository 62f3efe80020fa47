"""Messages through a NATS JetStream queue: durable, acknowledged, across machines.

One stream a run, one durable consumer a process, subjects that a server can give to one party each:

    <prefix>.<run>.to.<party>.<kind>      the aggregator publishes, the party receives
    <prefix>.<run>.from.<party>.<kind>    the party publishes, the aggregator receives

docs/transports.md shows the server's side.
"""

import asyncio
import base64
import contextlib
import importlib.util
import re
import secrets
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homo_dp.config.federation import NatsConfig
from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import InputError, MessageError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR, Message, check_id
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.federation.protocol.transport import superseded_by
from homo_dp.transport.fair_queue import FairQueue
from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.parts import Delivery, split
from homo_dp.transport.sealing import Sealer, largest_sealed

if TYPE_CHECKING:
    from homo_dp.transport.nats.connection import Link
    from homo_dp.transport.nats.stream import RunQueue

Result = TypeVar("Result")

_JWT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)")
_SEED: Final = re.compile(r"\b(SU[A-Z2-7]{56})\b")


class NatsTransport:
    """One process's end of a queue, for one run.

    Guarantees:
        - when `send` returns, the message is stored by the server;
        - a message comes again, also after a restart of this process or of the server, until it is
          `done`;
        - what cannot be opened is logged, counted, acknowledged and dropped, whatever it raises;
        - senders are heard in turn: one that sends without end delays itself and nobody else;
        - a configuration that names TLS never speaks without it.
    """

    def __init__(
        self,
        config: NatsConfig,
        run: str,
        sealer: Sealer,
        *,
        connect_timeout: float = 15.0,
        patience: float = 300.0,
        ack_wait: float = 5.0,
    ) -> None:
        """Connect, within `connect_timeout` seconds.

        `patience` is how long `send` waits for a server that is away; `ack_wait` (the aggregator's
        counts) is how long after the death of a process the messages that it had in hand are
        delivered again. All in seconds.
        """
        link_type, queue_type = _import_link()
        self._run = check_id("run", run)
        self._sealer = sealer
        self._patience = patience
        self._life = secrets.token_hex(8)
        self.refusals = Refusals(sealer.allowed)
        self._deliveries: FairQueue[Delivery] = FairQueue()
        self._handed: WeakKeyDictionary[Message, list[int]] = WeakKeyDictionary()
        options = connect_options(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=[self._loop], name="homo_dp nats", daemon=True
        )
        self._thread.start()
        self._names = Names(
            check_id("transport.nats.stream", config.stream), self._run, sealer.name
        )
        size = largest_sealed(sealer.limits)
        self._link = link_type(
            queue_type(self._names, list(sealer.allowed), list(sealer.kinds), size, ack_wait),
            list(config.servers),
            options,
            lambda delivery: self._deliveries.put(delivery.sender, delivery),
            self.refusals,
        )
        try:
            self._wait(self._link.start(connect_timeout))
        except BaseException:
            self._stop_loop()
            raise

    def send(self, message: Message) -> None:
        """Seal `message` and store it in the stream; waits for a server that is away."""
        if message.run != self._run:
            raise MessageError(
                f"run={message.run!r} is not {self._run!r}, which this transport serves"
            )
        sealed = self._sealer.seal(message)
        older: list[str] = []
        if message.sender == AGGREGATOR:
            kinds = superseded_by(message.kind)
            older = [self._names.subject(AGGREGATOR, message.recipient, kind) for kind in kinds]
        # A repeatable kind is sent again after a restart: with the same tag the queue would drop it
        # as a duplicate.
        tag = (
            f"{sealed.tag}.{self._life}"
            if self._sealer.kinds[message.kind].repeatable
            else sealed.tag
        )
        parts = split(sealed.pieces, sealed.size, tag)
        subject = self._names.subject(message.sender, message.recipient, message.kind)
        crash_point("nats.before_publish")
        self._wait(self._link.send(subject, parts, older, self._patience))
        crash_point("nats.after_publish")

    def receive(self, timeout: float) -> Message | None:
        """The next message; None after `timeout` seconds."""
        deadline = self._loop.time() + timeout
        while True:
            delivery = self._deliveries.get(max(0.0, deadline - self._loop.time()))
            if delivery is None:
                self._link.check_permissions()
                return None
            try:
                message = self._sealer.open(delivery.read, delivery.size)
                if message.run != self._run or message.sender != delivery.sender:
                    raise MessageError(
                        f"it is by {message.sender!r} of run {message.run!r}: misplaced"
                    )
            except MessageError as refusal:
                where = f"a message on the subjects of {delivery.sender}"
                self.refusals.note(refusal.signed_by, where, refusal)
                self._call(partial(self._link.read, delivery.consumer, refused=True))
                self._call(partial(self._link.acknowledge, delivery.sequences))
                continue
            self._call(partial(self._link.read, delivery.consumer, refused=False))
            self._handed[message] = delivery.sequences
            crash_point("nats.after_receive")
            return message

    def done(self, message: Message) -> None:
        """Acknowledge a received message, which removes it from the stream."""
        sequences = self._handed.pop(message, None)
        if sequences is not None:
            crash_point("nats.before_done")
            self._call(partial(self._link.acknowledge, sequences))
            crash_point("nats.after_done")

    def close(self) -> None:
        """Disconnect; acknowledgements on their way are sent first."""
        if self._thread.is_alive():
            with contextlib.suppress(FutureTimeout):
                asyncio.run_coroutine_threadsafe(self._link.stop(), self._loop).result(5)
            self._stop_loop()

    def _call(self, work: Callable[[], None]) -> None:
        # After `close` there is no loop to tell; what was not acknowledged comes again.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise TransportError("nats: this end is closed: open another one") from None
        closed = TransportError("nats: this end was closed meanwhile; sending again is safe")
        try:
            while not wait([future], timeout=1.0).done:
                if not self._thread.is_alive():
                    raise closed
            return future.result()
        except FutureCancelled:
            raise closed from None
        except BaseException:
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run until stopped."""
    loop.run_forever()
    loop.run_until_complete(end_tasks())
    loop.close()


async def end_tasks() -> None:
    """End what is left on an event loop before it is closed: nats-py forgets tasks of
    connections that broke.
    """
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)
    await asyncio.sleep(0)  # sockets that were given up are closed in the next turn


def connect_options(config: NatsConfig) -> dict[str, Any]:
    """What nats-py needs to know of passwords, credentials and certificates; files are read now,
    not at reconnects.
    """
    options: dict[str, Any] = {}
    if config.user is not None:
        options["user"] = config.user
        options["password"] = (
            _text(config.password_file, "password_file").strip() if config.password_file else ""
        )
    if config.credentials is not None:
        options |= _credentials(_text(config.credentials, "credentials"), str(config.credentials))
    if names_tls(config):
        if clear := [server for server in config.servers if server.lower().startswith("ws://")]:
            raise InputError(
                f"transport.nats.servers={clear[0]}: is in clear, and TLS is asked for: write "
                "wss:// or remove it"
            )
        options["encrypted"], options["tls"] = True, ssl.create_default_context()
    if config.tls is not None:
        try:
            context = ssl.create_default_context(cafile=config.tls.ca_file)
            if config.tls.cert_file is not None:
                context.load_cert_chain(config.tls.cert_file, config.tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"transport.nats.tls: certificates cannot be used: {error}") from None
        options["tls"] = context
        if config.tls.hostname is not None:
            options["tls_hostname"] = config.tls.hostname
    return options


def names_tls(config: NatsConfig) -> bool:
    """Whether the configuration asks for TLS, by settings or by an address; then no server is
    spoken to without.
    """
    return config.tls is not None or any(
        server.lower().startswith(("tls://", "wss://")) for server in config.servers
    )


def _credentials(text: str, path: str) -> dict[str, Any]:
    """A .creds file (JWT and seed), or a bare nkey seed."""
    seed, jwt = _SEED.search(text), _JWT.search(text)
    if seed is None:
        raise InputError(
            f"transport.nats.credentials={path} holds no user seed (SU...): ask for a .creds file"
        )
    if jwt is None:
        if importlib.util.find_spec("nkeys") is None:
            raise InputError(
                f"transport.nats.credentials={path} is a bare nkey: run `pip install nkeys` to "
                "use one"
            )
        return {"nkeys_seed_str": seed[1]}
    # Two prefix bytes, 32 bytes of Ed25519 seed, two bytes of checksum.
    key = Ed25519PrivateKey.from_private_bytes(
        base64.b32decode(seed[1] + "=" * (-len(seed[1]) % 8))[2:34]
    )
    token = jwt[1].encode()
    return {
        "user_jwt_cb": lambda: bytearray(token),
        "signature_cb": lambda nonce: base64.b64encode(key.sign(nonce.encode())),
    }


def _text(path: Path | str, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"transport.nats.{name}={path} cannot be read: {error}") from None


def _import_link() -> tuple[type["Link"], type["RunQueue"]]:
    with needs_nats():
        from homo_dp.transport.nats.connection import Link
        from homo_dp.transport.nats.stream import RunQueue
    return Link, RunQueue


@contextlib.contextmanager
def needs_nats() -> Iterator[None]:
    """Say what to install where an import of `nats` fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "nats":
            raise
        raise InputError(
            "transport.kind=nats needs nats-py: run `pip install homo_dp[nats]`"
        ) from None
