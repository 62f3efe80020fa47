"""Show how the runs of a party or an aggregator are doing: ``homo-dp status --config
conf/party_a.yaml``.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Parser,
    Screen,
    add_common_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError, error_text
from homo_dp.core.files import write_whole

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.runs.run_status import Status

MOST_CONNECTIONS = 32
SECONDS = 10.0  # of silence after which a connection is closed
EXAMPLES = """examples:
  homo-dp status --config conf/party_a.yaml            the runs of this party, its budget, and plans that wait
  homo-dp status --config conf/federation.yaml --json  the runs of this aggregator, for a program
  homo-dp status --config conf/party_a.yaml --page status.html
  homo-dp status --config conf/party_a.yaml --serve 8080
      a page that can only be looked at, on 127.0.0.1:8080, new at every look (Ctrl-C ends it); it says the
      address, which has a secret word in it: other users of this machine do not know that"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and show; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    loaded = load_from_arguments(options)
    screen.line(loaded.source)
    config = loaded.config
    from homo_dp.runs.run_status import status

    found = status(config)
    if options.page is not None:
        write_whole(Path(options.page), page(found).encode(), "status page")
        screen.line(f"page: {options.page}")
    if options.serve is not None:
        with server(config, options.serve) as serving:
            screen.line(f"status on {serving.address()} (Ctrl-C ends it)")
            serving.serve_forever()
    if options.page is None:
        show(found, screen)
    screen.summary(found)
    return 0


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="homo-dp status", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--page", metavar="FILE.html", help="write it as a page")
    parser.add_argument(
        "--serve", metavar="PORT", type=int, help="show it as a page on 127.0.0.1, until Ctrl-C"
    )
    add_common_arguments(parser, dry_run=False)
    return parser


def show(found: Status, screen: Screen) -> None:
    """Print the budget and the runs."""
    from homo_dp.runs.run_status import HEADER, rows

    if found["budget"]:
        screen.table(
            f"budget of {found['name']}",
            ["", ""],
            [list(pair) for pair in found["budget"].items()],
        )
    if found["runs"]:
        screen.table(f"runs of {found['name']}", HEADER, rows(found))
    else:
        screen.line(f"{found['name']}: no runs yet")
    for each in _waiting(found):
        screen.line(f"run {each['run']} waits: homo-dp party approve {each['run']}, or refuse")


def page(found: Status) -> str:
    """The status as a page that loads nothing and runs nothing; a row count that is not declared
    stays out of it.
    """
    from homo_dp.runs.approval import ROWS_TOLD
    from homo_dp.runs.run_status import HEADER, rows
    from homo_dp.tracking.report.page import HtmlTable, render

    questions = {each["run"]: each["waits_for_approval"]["given_away"] for each in _waiting(found)}
    waiting = [
        (
            run,
            [
                (name, value)
                for name, value in values.items()
                if name != "rows" or values.get(ROWS_TOLD) != "no"
            ],
        )
        for run, values in questions.items()
    ]
    budget = list(found["budget"].items()) if found["budget"] else []
    return render(
        "status.html",
        title=f"homo_dp: {found['name']}",
        found=found,
        budget=budget,
        waiting=waiting,
        runs=HtmlTable(HEADER, rows(found)),
    )


def _waiting(found: Status) -> list[Status]:
    return [each for each in found["runs"] if each["waits_for_approval"]]


class StatusServer(ThreadingHTTPServer):
    """A server on 127.0.0.1 that shows the status and takes nothing.

    Guarantees:
        - it answers only those who know the secret word of its address: loopback is open to every
          user of a machine, and a SuperNode's user runs code that came over the network;
        - at most ``MOST_CONNECTIONS`` connections, and threads, are open: another one closes the
          oldest, so that connections that ask nothing keep nobody out.
    """

    def __init__(self, found: Callable[[], Status], port: int) -> None:
        self._word = secrets.token_urlsafe(16)
        self._connections: dict[socket.socket, None] = {}  # the oldest first
        self._changes = threading.Lock()
        super().__init__(("127.0.0.1", port), handler(found, self._word))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, in the place of the oldest one where there are too many."""
        with self._changes:
            while len(self._connections) >= MOST_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and ends
            self._connections[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._changes:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is nothing to print a traceback for."""

    def address(self, path: str = "/") -> str:
        """Where the page is, or another path, with the secret word."""
        return f"http://127.0.0.1:{self.server_address[1]}{path}?word={self._word}"


def server(config: Config, port: int) -> StatusServer:
    """The server of the side that a config is for."""
    try:
        return StatusServer(lambda: _status(config), port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--serve {port}: cannot be bound on 127.0.0.1 ({error_text(error)}); give a free port, "
            "1 to 65535"
        ) from None


def _status(config: Config) -> Status:
    from homo_dp.runs.run_status import status

    return status(config)


def handler(found: Callable[[], Status], word: str) -> type[BaseHTTPRequestHandler]:
    """Answers GET / and GET /status.json; a page of another name cannot reach it through a
    browser.
    """
    import json

    class Handler(BaseHTTPRequestHandler):
        timeout = SECONDS

        def do_GET(self) -> None:
            host, asked = (self.headers.get("Host") or "").rsplit(":", 1)[0], urlsplit(self.path)
            if host not in ("127.0.0.1", "localhost"):  # a name that was made to point here
                self._answer(403, "text/plain", "ask for 127.0.0.1\n")
            elif not hmac.compare_digest(
                parse_qs(asked.query).get("word", [""])[0].encode(), word.encode()
            ):
                self._answer(
                    403,
                    "text/plain",
                    "ask with the word of the address that homo-dp status printed\n",
                )
            elif asked.path == "/":
                self._answer(200, "text/html; charset=utf-8", page(found()))
            elif asked.path == "/status.json":
                self._answer(200, "application/json", json.dumps(found(), default=str))
            else:
                self._answer(404, "text/plain", "there are / and /status.json\n")

        def _answer(self, code: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(code)
            for name, value in (
                ("Content-Type", kind),
                ("Content-Length", str(len(data))),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "no-referrer"),
            ):
                self.send_header(name, value)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests for this page."""

    return Handler


if __name__ == "__main__":
    run(main)
