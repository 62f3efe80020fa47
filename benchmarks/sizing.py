"""What a round costs an aggregator: bytes and seconds against parties and parameters, for
docs/deploy.md.

python benchmarks/sizing.py     (two minutes; CPU seconds, one thread)

Two measurements. One sealed update of d parameters: bytes on the wire, and CPU seconds to seal it
at a party and to open, check and add it at the aggregator. And whole rounds with N parties, weights
there and updates back, over a shared folder and over a NATS server on this machine; the parties
share one process beside the aggregator's and answer at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.directory import DirectoryTransport
from homo_dp.transport.keys import KeyPair, new_key_pair
from homo_dp.transport.nats.queue import NatsTransport
from homo_dp.transport.sealing import Sealer
from tests.transport.nats_server import NatsServer

PARAMETERS = (31, 10_000, 100_000, 1_000_000, 10_000_000)
PARTIES = {"folder": (10, 100, 300), "NATS": (10, 100, 300)}
FEW = 10_000  # parameters in whole rounds
_PATIENCE = 300.0
Open = Callable[[Sealer], Transport]


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print(
        "| parameters | bytes of an update | seal, CPU ms | open, check, add, CPU ms "
        "|\n|---|---|---|---|"
    )
    for size in PARAMETERS:
        held, seal, take = one_update(size)
        print(f"| {size:,} | {held:,} | {1000 * seal:.2f} | {1000 * take:.2f} |", flush=True)
    print(
        f"\n| parties, {FEW:,} parameters | over | CPU s of the aggregator a round | seconds a "
        "round |"
    )
    print("|---|---|---|---|")
    for way, counts in PARTIES.items():
        for count in counts:
            spent, seconds = one_round(way, count)
            print(f"| {count:,} | {way} | {spent:.2f} | {seconds:.2f} |", flush=True)


def one_update(size: int) -> tuple[int, float, float]:
    """Bytes of a sealed update, and CPU seconds at either side; the median of five."""
    party, aggregator = _sealers(["party"])
    total, tensor = torch.zeros(size, dtype=torch.float64), torch.randn(size)
    seals, takes, held = [], [], 0
    for number in range(1, 6):
        message = Message(
            "run", number, "party", AGGREGATOR, "update", {"w": tensor}, {"releases": ["update"]}
        )
        start = time.process_time()
        sealed = b"".join(party["party"].seal(message).pieces)
        middle = time.process_time()
        total += aggregator.open_bytes(sealed).tensors["w"]
        seals.append(middle - start)
        takes.append(time.process_time() - middle)
        held = len(sealed)
    return held, sorted(seals)[2], sorted(takes)[2]


def one_round(way: str, count: int) -> tuple[float, float]:
    """CPU seconds of the aggregator, and seconds, of one round with `count` parties that answer
    at once.
    """
    names = [f"party_{number}" for number in range(count)]
    parties, aggregator = _sealers(names)
    tensor, total = torch.randn(FEW), torch.zeros(FEW, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder, _transports(way, Path(folder), names) as opened:
        forked = multiprocessing.get_context("fork")
        ready = forked.Event()
        others = forked.Process(target=_answer, args=(opened, parties, ready), daemon=True)
        others.start()
        end = opened(aggregator)
        ready.wait(_PATIENCE)
        spent = seconds = 0.0
        for number in (1, 2):  # the first is for connections to settle
            started, begun = time.perf_counter(), time.process_time()
            for name in names:
                end.send(Message("run", number, AGGREGATOR, name, "weights", {"w": tensor}))
            for _ in names:
                message = end.receive(_PATIENCE)
                if message is None:
                    raise RuntimeError("an update did not come")
                total += message.tensors["w"]
                end.done(message)
            spent, seconds = time.process_time() - begun, time.perf_counter() - started
        others.kill()
        others.join()
        end.close()
        return spent, seconds


def _answer(
    opened: Open, parties: dict[str, Sealer], ready: multiprocessing.synchronize.Event
) -> None:
    ends = {name: opened(sealer) for name, sealer in parties.items()}
    ready.set()
    for number in (1, 2):
        for name, end in ends.items():
            asked = end.receive(_PATIENCE)
            if asked is not None:
                end.send(
                    Message(
                        "run",
                        number,
                        name,
                        AGGREGATOR,
                        "update",
                        asked.tensors,
                        {"releases": ["update"]},
                    )
                )
                end.done(asked)
    time.sleep(_PATIENCE)


@contextlib.contextmanager
def _transports(way: str, folder: Path, names: list[str]) -> Iterator[Open]:
    if way == "folder":
        yield lambda sealer: DirectoryTransport(folder, "run", sealer)
        return
    with NatsServer(folder, names) as server:
        yield lambda sealer: NatsTransport(
            server.config(sealer.name), "run", sealer, connect_timeout=_PATIENCE
        )


def _sealers(names: list[str]) -> tuple[dict[str, Sealer], Sealer]:
    pairs: dict[str, KeyPair] = {name: new_key_pair(name) for name in (AGGREGATOR, *names)}
    known = {AGGREGATOR: pairs[AGGREGATOR].public}
    parties = {name: Sealer(pairs[name], known) for name in names}
    return parties, Sealer(pairs[AGGREGATOR], {name: pairs[name].public for name in names})


if __name__ == "__main__":
    main()
