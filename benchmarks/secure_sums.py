"""Secure sums: seconds per party and round for noise, masks and shares, openings and unmasking; bytes against float32.

python benchmarks/secure_sums.py [--parties 3 10 30 100] [--numbers 100 10000 100000] [--dropouts 0 0.1]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.sessions.secure_rounds import AggregatorSums, Ask, PartySums, simulated_sums
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum

_HEADER = "parties numbers dropouts | noise ms  mask ms  open ms (a party) | unmask ms (aggregator) | bytes/float32"


class _Masked:
    """Stands for a mechanism with a masked sum."""

    def __init__(self, found: PrivateSum) -> None:
        self.masked_sum = found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--numbers", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.1])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(_HEADER)
    for parties in given.parties:
        for share in given.dropouts:
            dropouts = int(share * parties)
            if share and not dropouts:
                continue
            for numbers in given.numbers:
                print(_row(parties, numbers, dropouts), flush=True)


def _row(parties: int, numbers: int, dropouts: int) -> str:
    found = PrivateSum(numbers, 1.0, 4.0, 100_000, share=NoiseShare(parties, dropouts))
    names = [f"p{number:03d}" for number in range(parties)]
    made = simulated_sums("bench", names, _Masked(found))  # type: ignore[arg-type]
    if made is None:
        raise RuntimeError("the sum is not masked")
    sums, sides = made
    _meet(sums, sides)
    total, present = torch.zeros(numbers, dtype=torch.float64), names[dropouts:]
    noise, mask, size = 0.0, 0.0, 0
    found.release(total, secure_noise())  # tables
    for name in present:
        started = time.perf_counter()
        steps = found.release(total, secure_noise())
        noise += time.perf_counter() - started
        started = time.perf_counter()
        tensors = sides[name].masked(1, {"sum": steps})
        mask += time.perf_counter() - started
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        sums.take(Message("bench", 1, name, AGGREGATOR, "update", tensors))
    started = time.perf_counter()
    opening = _answered(sums, sides, lambda ask: sums.opening(1, ask))
    unmask = time.perf_counter() - started - opening
    if sums.total is None:
        raise RuntimeError(sums.discarded)
    milliseconds = [
        1000 * value for value in (noise / len(present), mask / len(present), opening / len(present), unmask)
    ]
    figures = "{:8.2f} {:8.2f} {:8.2f}           | {:8.1f}".format(*milliseconds)
    return f"{parties:7d} {numbers:7d} {dropouts:8d} | {figures}               | {size / (4 * numbers):.3f}"


def _meet(sums: AggregatorSums, sides: dict[str, PartySums]) -> None:
    _answered(sums, sides, sums.meeting)


def _answered(sums: AggregatorSums, sides: dict[str, PartySums], phase_of: Callable[[Ask], Waiting[None]]) -> float:
    """Run a phase; the seconds that the parties took."""
    spent = 0.0

    def ask(questions: Sequence[Message], heard: Mapping[str, Message]) -> Waiting[None]:
        nonlocal spent
        for question in questions:
            started = time.perf_counter()
            answer = sides[question.recipient].handle(question)
            spent += time.perf_counter() - started
            sums.hear(answer, question.round)
        yield from ()

    for _ in phase_of(ask):
        raise RuntimeError("nobody waits here")
    return spent


if __name__ == "__main__":
    main()
