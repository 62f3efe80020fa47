"""What a round costs an aggregator: bytes and seconds against parties and parameters, for docs/deploy.md.

python -m benchmarks.sizing     (about a minute; CPU seconds, one thread)

Two measurements. One sealed update of d parameters: bytes on the wire, and CPU seconds to seal it at a party and to
open, check and add it at the aggregator. And whole exchanges of a round over a shared folder with N parties, weights
there and updates back, to see that the cost is N times that of one.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.transport.directory import DirectoryTransport
from homo_dp.transport.keys import KeyPair, new_key_pair
from homo_dp.transport.sealing import Sealer

PARAMETERS = (31, 10_000, 100_000, 1_000_000, 10_000_000)
PARTIES = (10, 100, 1000)
FEW = 10_000  # parameters in the rounds over a folder


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print("| parameters | bytes of an update | seal, CPU ms | open, check, add, CPU ms |\n|---|---|---|---|")
    for size in PARAMETERS:
        held, seal, take = one_update(size)
        print(f"| {size:,} | {held:,} | {1000 * seal:.2f} | {1000 * take:.2f} |", flush=True)
    print(f"\n| parties, {FEW:,} parameters, shared folder | CPU s of the aggregator a round | seconds a round |")
    print("|---|---|---|")
    for count in PARTIES:
        spent, seconds = one_round(count)
        print(f"| {count:,} | {spent:.2f} | {seconds:.2f} |", flush=True)


def one_update(size: int) -> tuple[int, float, float]:
    """Bytes of a sealed update, and CPU seconds at either side; the median of five."""
    party, aggregator = _sealers(["party"])
    total, tensor = torch.zeros(size, dtype=torch.float64), torch.randn(size)
    seals, takes, held = [], [], 0
    for number in range(1, 6):
        message = Message("run", number, "party", AGGREGATOR, "update", {"w": tensor}, {"releases": ["update"]})
        start = time.process_time()
        sealed = b"".join(party["party"].seal(message).pieces)
        middle = time.process_time()
        total += aggregator.open_bytes(sealed).tensors["w"]
        seals.append(middle - start)
        takes.append(time.process_time() - middle)
        held = len(sealed)
    return held, sorted(seals)[2], sorted(takes)[2]


def one_round(count: int) -> tuple[float, float]:
    """CPU seconds of the aggregator, and seconds in all, of one round with `count` parties that answer at once."""
    names = [f"party_{number}" for number in range(count)]
    parties, aggregator = _sealers(names)
    tensor = torch.randn(FEW)
    with tempfile.TemporaryDirectory() as folder:
        end, total = DirectoryTransport(Path(folder), "run", aggregator), torch.zeros(FEW, dtype=torch.float64)
        ends = {name: DirectoryTransport(Path(folder), "run", parties[name]) for name in names}
        started, spent = time.perf_counter(), 0.0
        begun = time.process_time()
        for name in names:
            end.send(Message("run", 1, AGGREGATOR, name, "weights", {"w": tensor}))
        spent += time.process_time() - begun
        for name in names:
            asked = ends[name].receive(10)
            ends[name].send(Message("run", 1, name, AGGREGATOR, "update", {"w": tensor}, {"releases": ["update"]}))
            if asked is not None:
                ends[name].done(asked)
        begun = time.process_time()
        for _ in names:
            message = end.receive(10)
            if message is None:
                raise RuntimeError("an update did not come")
            total += message.tensors["w"]
            end.done(message)
        spent += time.process_time() - begun
        return spent, time.perf_counter() - started


def _sealers(names: list[str]) -> tuple[dict[str, Sealer], Sealer]:
    pairs: dict[str, KeyPair] = {name: new_key_pair(name) for name in (AGGREGATOR, *names)}
    known = {AGGREGATOR: pairs[AGGREGATOR].public}
    parties = {name: Sealer(pairs[name], known) for name in names}
    return parties, Sealer(pairs[AGGREGATOR], {name: pairs[name].public for name in names})


if __name__ == "__main__":
    main()
