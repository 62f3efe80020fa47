"""What a party that floods costs the others: rounds of one party while another has sent 100,000
messages.

`python benchmarks/flood.py` prints one JSON line for each transport and moment: alone, after the
flood was left, and while it is sent. A round is the aggregator's weights to a party and its update
back, in one process for each side.

- `directory`: the flooder writes files by hand, into its own folder and (`shared`) into the one
  that all may write to;
- `nats`: it publishes raw bytes by hand on its own subject.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from homo_dp.federation.protocol.messages import AGGREGATOR
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.directory import DirectoryTransport
from homo_dp.transport.nats.names import Names
from homo_dp.transport.nats.queue import NatsTransport
from tests.transport.nats_server import NatsServer
from tests.transport.parts import PARTIES, sealer, update, weights
from tests.transport.raw_nats import RawPublisher

FLOODER, OTHER = "bank_b", "bank_a"
SECONDS = 10.0  # of rounds for each line
Make = Callable[[str], Transport]
Flood = Callable[[int], None]


def main() -> int:
    """Measure and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--messages", type=count, default=100_000, help="messages of the flood")
    parser.add_argument("--only", choices=["directory", "shared", "nats"])
    options = parser.parse_args()
    for name in [options.only] if options.only else ["directory", "shared", "nats"]:
        with tempfile.TemporaryDirectory() as folder:
            for row in measured(name, Path(folder), options):
                print(json.dumps(row), flush=True)
    return 0


def measured(name: str, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rounds alone, after a flood, and during one."""
    with contextlib.ExitStack() as stack:
        make, flood = (
            on_nats(stack, folder) if name == "nats" else on_folder(folder, shared=name == "shared")
        )
        aggregator = make(AGGREGATOR)
        stack.callback(aggregator.close)
        party = multiprocessing.get_context("fork").Process(
            target=answer, args=(make,), daemon=True
        )
        party.start()
        stack.callback(party.terminate)
        first = 1
        yield {"transport": name, "when": "alone", **(found := rounds(aggregator, first))}
        first += found["rounds"]
        flood(options.messages)
        yield {"transport": name, "when": "after the flood", **(found := rounds(aggregator, first))}
        first += found["rounds"]
        sender = multiprocessing.get_context("fork").Process(
            target=flood, args=(options.messages,), daemon=True
        )
        sender.start()
        yield {"transport": name, "when": "while it is sent", **rounds(aggregator, first)}
        sender.terminate()


def on_folder(root: Path, *, shared: bool) -> tuple[Make, Flood]:
    def flood(messages: int) -> None:
        box = root / "demo" / AGGREGATOR
        box = box if shared else box / "from" / FLOODER
        for number in range(messages):
            name = f"{box}/{number}-update-{FLOODER}-{time.monotonic_ns():032x}.msg"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))

    return lambda name: DirectoryTransport(root, "demo", sealer(name)), flood


def on_nats(stack: contextlib.ExitStack, folder: Path) -> tuple[Make, Flood]:
    server = stack.enter_context(NatsServer(folder / "nats", PARTIES))

    def flood(messages: int) -> None:
        subject = (
            Names(server.prefix, "demo", FLOODER).subject(FLOODER, AGGREGATOR, "update").encode()
        )
        with RawPublisher(server, FLOODER) as publisher:
            for _ in range(messages // 100):
                publisher.socket.sendall(publisher.line(subject, None, b"x" * 50) * 100)
            publisher.flush()

    return lambda name: NatsTransport(server.config(name), "demo", sealer(name)), flood


def answer(make: Make) -> None:
    """The other party: an update for all weights that come."""
    party = make(OTHER)
    while True:
        message = party.receive(60)
        if message is not None:
            party.send(update(OTHER, message.round))
            party.done(message)


def rounds(aggregator: Transport, first: int) -> dict[str, Any]:
    """Rounds for SECONDS, numbered from ``first``."""
    times: list[float] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        started = time.monotonic()
        aggregator.send(weights(OTHER, first + len(times)))
        while (message := aggregator.receive(60)) is not None:
            aggregator.done(message)
            if message.sender == OTHER and message.round == first + len(times):
                break
        times.append(time.monotonic() - started)
    return {
        "rounds": len(times),
        "a_second": round(len(times) / sum(times), 1),
        "slowest_ms": round(1000 * max(times)),
    }


if __name__ == "__main__":
    sys.exit(main())
