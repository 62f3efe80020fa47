"""Raw bytes of the NATS protocol: a publisher that follows no library's rules, and a server that
lies.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

from tests.transport.nats_server import NatsServer


class RawPublisher:
    """A user of the server who writes to the socket by hand."""

    def __init__(self, server: NatsServer, name: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), 10)
        self.socket.recv(65536)  # INFO
        login = {
            "user": name,
            "pass": f"pw-{name}",
            "verbose": False,
            "headers": True,
            "no_responders": True,
        }
        self.socket.sendall(b"CONNECT " + json.dumps(login).encode() + b"\r\n")
        self.flush()

    def publish(self, subject: bytes, headers: bytes | None, data: bytes = b"") -> None:
        """Publish with any bytes as headers."""
        self.socket.sendall(self.line(subject, headers, data))

    @staticmethod
    def line(subject: bytes, headers: bytes | None, data: bytes = b"") -> bytes:
        if headers is None:
            return b"PUB %s %d\r\n%s\r\n" % (subject, len(data), data)
        return b"HPUB %s %d %d\r\n%s%s\r\n" % (
            subject,
            len(headers),
            len(headers) + len(data),
            headers,
            data,
        )

    def flush(self) -> bytes:
        """What the server said until it had read everything."""
        self.socket.sendall(b"PING\r\n")
        said = b""
        while b"PONG\r\n" not in said:
            more = self.socket.recv(65536)
            if not more:
                raise ConnectionError(said.decode(errors="replace"))
            said += more
        return said

    def __enter__(self) -> "RawPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class FakeServer:
    """Greets with an INFO of its own making, answers PING, and keeps all that it was told."""

    def __init__(self, **info: object) -> None:
        greeting = {
            "server_id": "x",
            "version": "2.10.0",
            "max_payload": 1 << 20,
            "headers": True,
            "proto": 1,
        }
        self._greeting = b"INFO " + json.dumps(greeting | info).encode() + b"\r\n"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.told = b""
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(10)
                self._threads.append(
                    threading.Thread(target=self._talk, args=(connection,), daemon=True)
                )
                self._threads[-1].start()

    def _talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(self._greeting)
            while data := connection.recv(65536):
                self.told += data
                if data.startswith(b"\x16"):  # the beginning of TLS: nothing that a liar could use
                    return
                connection.sendall(b"PONG\r\n" * data.count(b"PING\r\n"))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


@contextlib.contextmanager
def fake_server(**info: object) -> Iterator[FakeServer]:
    server = FakeServer(**info)
    try:
        yield server
    finally:
        server.close()
