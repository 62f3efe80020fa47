"""The client of nats-py, made safe against bytes that others chose.

As it comes (2.16), a header block that ends early, a subject that is no UTF-8, or one with a form
feed in it ends the client's read loop or its connection. The message stays in the stream, so it
does that again after every reconnect: whoever may publish one message stops the receiver for good.
And it sends the password in clear to a server, or a man in the middle, who says that TLS is not
needed.

The overridden methods are private ones of nats-py; tests with raw protocol bytes check that they
still work.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final

import nats.aio.client
import nats.errors
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

_LINE_END: Final = b"\r\n"
_LONGEST_HEADERS: Final = 8192  # bytes; ours take about 300
_LONGEST_LINE: Final = 64 * 1024  # bytes of a control line: the server's own default is 4096
# White space to a regular expression of nats-py, and part of a subject to the server.
_ODD_SPACE: Final = bytes.maketrans(b"\x0b\x0c", b"??")
# nats-py speaks TLS on a plain stream, about which asyncio warns at every end of a connection:
# nothing is wrong then.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in str(record.msg))


class SafeClient(nats.aio.client.Client):  # type: ignore[misc]  # nats-py has no types
    """A nats-py client for one connection.

    Guarantees:
        - no message ends it: one whose subject or headers cannot be read arrives without headers
          and data;
        - if reading ends for another reason, the connection is closed at once, and not minutes
          later by a ping;
        - with `encrypted`, nothing but the greeting is exchanged before TLS is established,
          whatever the server says.
    """

    def __init__(self, *, encrypted: bool) -> None:
        super().__init__()
        self._encrypted = encrypted
        self._ps = _SafeParser(self)

    async def end(self) -> None:
        """Close what may be half-open: nats-py can wait forever for the end of a TLS connection
        that never began.
        """
        try:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the sockets at once; asyncio would warn of those still open when the event loop
        is gone.
        """
        for name in ("_io_writer", "_bare_io_writer"):
            writer = getattr(self._transport, name, None)
            if writer is not None:
                # asyncio's own, of a TLS connection that has ended
                with contextlib.suppress(AttributeError):
                    writer.transport.abort()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._encrypted:
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        """The line with the password."""
        if self._encrypted and not self._is_encrypted():
            raise nats.errors.Error(
                "the connection is not encrypted, and the configuration asks for TLS"
            )
        command: bytes = super()._connect_command()
        return command

    def _is_encrypted(self) -> bool:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            return writer.get_extra_info("ssl_object") is not None
        return bool(getattr(self._transport, "_using_tls", False))  # a websocket

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if not self.is_closed:
            await self._process_op_err(nats.errors.ProtocolError())

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None = None
    ) -> None:
        try:
            if headers is not None and len(headers) > _LONGEST_HEADERS:
                raise ValueError("headers are too long")
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception:
            readable = subject.decode("ascii", "replace").encode()
            await super()._process_msg(sid, readable, reply, b"", None)


class _SafeParser(Parser):  # type: ignore[misc]  # nats-py has no types
    """Reads lines whose subject holds odd white space, too."""

    async def parse(self, data: bytes = b"") -> None:
        while True:
            try:
                await super().parse(data)
                end = self.buf.find(_LINE_END) if self.state == AWAITING_CONTROL_LINE else -1
                if (
                    end < 0
                    and self.state == AWAITING_CONTROL_LINE
                    and len(self.buf) > _LONGEST_LINE
                ):
                    raise nats.errors.ProtocolError
                if end < 0:
                    return
            except nats.errors.ProtocolError:
                end = self.buf.find(_LINE_END)
                if end < 0:
                    raise
            line = bytes(self.buf[:end])
            if line == line.translate(_ODD_SPACE):
                raise nats.errors.ProtocolError
            self.buf[:end] = line.translate(_ODD_SPACE)
            data = b""
