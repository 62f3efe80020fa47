"""Secure sums: seconds per party and round for noise, masks and shares, openings and unmasking;
bytes against float32.

python benchmarks/secure_sums.py [--parties 3 10 30 100] [--numbers 100 10000 100000] [--dropouts 0
0.1] [--wide] python benchmarks/secure_sums.py --rounds 60     a masked round of three processes on
both transports, beyond compute python benchmarks/secure_sums.py --against-randn     a masked,
noised sum of 100,000 numbers at each of 10 parties

Milliseconds are of CPU, of the one thread; between processes by the clock. Bars: 1 s a party at 100
parties x 100,000 numbers; bytes <= 1.1 times float32 above 10,000 numbers, 2.2 with 64 bits
(`--wide`); a round between processes <= 60 ms beyond compute, on a machine that does nothing else;
a masked, noised sum at each of 10 parties <= 6 times torch.randn of as many numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_rounds import AggregatorSums, Ask, simulated_sums
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from tests.processes.parts import PARTIES, Cluster
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

_HEADER = (
    "parties numbers dropouts | noise ms  mask ms  open ms (a party) | unmask ms (aggregator) | "
    "bytes/float32, with round keys of the meeting"
)


class _Masked:
    """Stands for a mechanism with a masked sum."""

    sums: ClassVar[dict[int, object]] = {}
    count = 10

    def __init__(self, found: PrivateSum) -> None:
        self.masked_sum, self.run = found, self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--numbers", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument(
        "--wide", action="store_true", help="integers of 64 bits, as for very many rows"
    )
    parser.add_argument("--rounds", type=int, help="measure rounds between processes instead")
    parser.add_argument(
        "--against-randn", action="store_true", help="one JSON line: a party's sum / torch.randn"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.against_randn:
        print(json.dumps(_against_randn(10, 100_000)), flush=True)
        return
    if given.rounds:
        for kind in ("directory", "nats"):
            for masked in (True, False):
                print(_between_processes(kind, given.rounds, masked), flush=True)
        return
    print(_HEADER)
    for parties in given.parties:
        for share in given.dropouts:
            dropouts = int(share * parties)
            if share and not dropouts:
                continue
            for numbers in given.numbers:
                print(
                    _row(parties, numbers, dropouts, 10**10 if given.wide else 100_000), flush=True
                )


def _against_randn(parties: int, numbers: int) -> dict[str, object]:
    """CPU of noise and masks at each party over that of torch.randn, turn by turn; the median of
    all rounds.
    """
    found, _, sides = _met(parties, numbers, 0, 100_000)
    total = torch.zeros(numbers, dtype=torch.float64)
    seconds: dict[str, list[float]] = {"noise": [], "masks": [], "randn": []}
    steps = found.release(total, secure_noise())  # tables
    for number in range(1, _Masked.count + 1):
        for side in sides.values():
            clock = [time.thread_time()]
            torch.randn(numbers)
            clock.append(time.thread_time())
            steps = found.release(total, secure_noise())
            clock.append(time.thread_time())
            side.masked(number, {"sum": steps})
            clock.append(time.thread_time())
            if number > 1:
                for name, start, stop in zip(
                    ("randn", "noise", "masks"), clock, clock[1:], strict=False
                ):
                    seconds[name].append(stop - start)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "benchmark": "masked_sum",
        "parties": parties,
        "numbers": numbers,
        "ratio": round((middle["noise"] + middle["masks"]) / middle["randn"], 3),
        "bar": 6.0,
        "milliseconds": {name: round(1000 * value, 4) for name, value in middle.items()},
        "repeats": len(seconds["randn"]),
    }


def _met(
    parties: int, numbers: int, dropouts: int, rows: int
) -> tuple[PrivateSum, AggregatorSums, dict[str, PartySums]]:
    """A sum, and its two sides after they have exchanged keys."""
    found = PrivateSum(numbers, 1.0, 4.0, rows, share=NoiseShare(parties, dropouts))
    made = simulated_sums("bench", [f"p{number:03d}" for number in range(parties)], _Masked(found))  # type: ignore[arg-type]
    if made is None:
        raise RuntimeError("the sum is not masked")
    sums, sides = made
    _meet(sums, sides)
    return found, sums, sides


def _row(parties: int, numbers: int, dropouts: int, rows: int) -> str:
    found, sums, sides = _met(parties, numbers, dropouts, rows)
    names = list(sides)
    total, present = torch.zeros(numbers, dtype=torch.float64), names[dropouts:]
    noise, mask, size = 0.0, 0.0, 0
    found.release(total, secure_noise())  # tables
    for name in present:
        started = time.process_time()
        steps = found.release(total, secure_noise())
        noise += time.process_time() - started
        started = time.process_time()
        tensors = sides[name].masked(1, {"sum": steps})
        mask += time.process_time() - started
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        sums.take(Message("bench", 1, name, AGGREGATOR, "update", tensors))
    started = time.process_time()
    opening = _answered(sums, sides, lambda ask: sums.opening(1, ask))
    unmask = time.process_time() - started - opening
    if sums.total is None:
        raise RuntimeError(sums.discarded)
    milliseconds = [
        1000 * value
        for value in (noise / len(present), mask / len(present), opening / len(present), unmask)
    ]
    left = sum(tensor.numel() for tensor in sides[names[0]]._round_keys().values()) / _Masked.count
    figures = "{:8.2f} {:8.2f} {:8.2f}           | {:8.1f}".format(*milliseconds)
    plain = 4 * numbers
    sizes = f"{size / plain:.3f} {(size + left) / plain:.3f}"
    return f"{parties:7d} {numbers:7d} {dropouts:8d} | {figures}               | {sizes}"


def _meet(sums: AggregatorSums, sides: dict[str, PartySums]) -> None:
    _answered(sums, sides, sums.meeting)


def _answered(
    sums: AggregatorSums, sides: dict[str, PartySums], phase_of: Callable[[Ask], Waiting[None]]
) -> float:
    """Run a phase; the seconds that the parties took."""
    spent = 0.0

    def ask(questions: Sequence[Message], heard: Mapping[str, Message]) -> Waiting[None]:
        nonlocal spent
        for question in questions:
            started = time.process_time()
            answer = sides[question.recipient].handle(question)
            spent += time.process_time() - started
            sums.hear(answer, question.round)
        yield from ()

    for _ in phase_of(ask):
        raise RuntimeError("nobody waits here")
    return spent


def _between_processes(kind: str, count: int, masked: bool) -> str:
    """Rounds of three parties by the aggregator's clock; a gradient of 150 rows takes about 1 ms
    of them.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        zygote = stack.enter_context(Zygote())
        server = (
            stack.enter_context(NatsServer(Path(folder) / "nats", PARTIES))
            if kind == "nats"
            else None
        )
        cluster = stack.enter_context(Cluster(Path(folder), server, count, zygote))
        cluster.change(AGGREGATOR, "privacy", mechanism="dp_fedsgd", secure_aggregation=masked)
        cluster.change(AGGREGATOR, "train", local_steps=1)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
            cluster.change(
                party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
            )
        cluster.start_all()
        cluster.wait(600)
        found = json.loads((Path(folder) / AGGREGATOR / "out" / "indicator.json").read_text())
    times = [row["seconds"] * 1000 for row in found["rounds"][5:]]
    middle, fastest, load = (
        statistics.median(times),
        statistics.quantiles(times, n=10)[0],
        os.getloadavg()[0],
    )
    how = "masked" if masked else "in the clear"
    return (
        f"{kind:10s} {how:13s} median {middle:6.1f} ms, fastest tenth {fastest:6.1f} ms a round; "
        f"load {load:.1f}"
    )


if __name__ == "__main__":
    main()
