"""Mutate inputs for every target until the time is up: ``python -m tests.fuzz.run [--seconds 540]
[--only NAME]``.

Each target runs in a process of its own, so that a hang or a crash of one costs no other.
``--record FILE`` puts the table of counts between the marks ``<!-- fuzz -->`` and ``<!-- /fuzz
-->`` of a page.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from homo_dp.core.errors import InputError, MessageError, TransportError
from homo_dp.privacy.errors import PrivacyError

FOLDER = Path(__file__).parent
OURS = (InputError, MessageError, TransportError, PrivacyError)
HANG_SECONDS, MEMORY, BATCH, ROW = 10, 1 << 30, 20, 50
# What broke parsers before: lengths and numbers at the edge, nesting, aliases, quotes, odd
# characters.
TOKENS = [
    *(
        b"\x00",
        b"\xff",
        b"\xff" * 8,
        b"\x7f" + b"\xff" * 7,
        b"\x00" * 8,
        (1 << 47).to_bytes(8, "little"),
    ),
    *(
        b"-1",
        b"0",
        b"1e999",
        b"NaN",
        b"Infinity",
        b"null",
        b"true",
        b'""',
        b"{}",
        b"[]",
        b"140737488355328",
    ),
    *(
        b"[" * 2000,
        b'{"a":' * 500,
        b"((" * 50,
        b'"' * 26,
        b"'" * 26,
        b"&a [*a]",
        b"*a",
        b"<<: *a",
        b"!!python/a:b",
    ),
    *(
        b"\n",
        b"\r\n",
        b"\t",
        b",",
        b":",
        b"=",
        b"%s",
        b"../",
        b"\x1b[2J",
        b"\xe2\x80\xae",
        b"\xed\xa0\x80",
    ),
]

Target = Callable[[bytes], object]


@dataclass
class Count:
    """How a target went."""

    target: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    failure: str | None = None


class Hang(Exception):
    """An input that takes too long."""


def targets() -> dict[str, tuple[Target, list[bytes]]]:
    """All targets by name, with the inputs to start from."""
    found: dict[str, tuple[Target, list[bytes]]] = {}
    for path in sorted(FOLDER.glob("targets*.py")):
        module = importlib.import_module(f"tests.fuzz.{path.stem}")
        given_seeds = getattr(module, "SEEDS", {})
        for name in [name for name in vars(module) if name.startswith("fuzz_")]:
            found[name] = getattr(module, name), [*given_seeds.get(name, ()), *kept(name)]
    return found


def kept(name: str) -> Iterator[bytes]:
    """The inputs in ``seeds/<name>``."""
    for path in sorted((FOLDER / "seeds" / name).glob("*")):
        yield path.read_bytes()


def try_input(target: Target, data: bytes) -> bool:
    """Whether the reader took the input; False if it refused it in our words; raises what it
    should not have raised.
    """
    signal.alarm(HANG_SECONDS)
    try:
        target(data)
    except OURS:
        return False
    finally:
        signal.alarm(0)
    return True


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """A seed with a few edits, or bytes from nothing."""
    if not seeds or random.random() < 0.05:
        return random.randbytes(random.choice((1, 8, 60, 300)))
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, 6)):
        at, size = random.randint(0, len(data)), random.choice((0, 1, 2, 4, 8, 40))
        edit = random.choice(("token", "token", "bytes", "flip", "cut", "repeat", "splice"))
        if edit == "token":
            data[at : at + size] = random.choice(TOKENS)
        elif edit == "bytes":
            data[at : at + size] = random.randbytes(random.randint(0, 12))
        elif edit == "flip" and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif edit == "cut":
            del data[at : at + size * random.choice((1, 20))]
        elif edit == "repeat":
            data[at:at] = data[at : at + size] * random.choice((1, 3, 200))
        elif edit == "splice":
            data[at:] = random.choice(seeds)[at:]
    return bytes(data)


def fuzz(name: str, target: Target, seeds: Sequence[bytes], seconds: float) -> Count:
    """Try inputs until the time is up or one fails, which is kept.

    Hypothesis draws where each row of mutations starts; the edits themselves are made without it,
    fifty times faster.
    """
    count, failing, started = Count(name), b"", time.monotonic()

    def once(data: bytes) -> None:
        nonlocal failing
        count.inputs += 1
        try:
            count.refused += not try_input(target, data)
        except Exception:
            failing = data
            raise

    options = settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )

    def row(start: int) -> None:
        random = Random(start)
        for _ in range(ROW):
            once(mutated(random, seeds))

    try:
        for data in seeds:
            once(data)
        while time.monotonic() - started < seconds:
            seeded(time.time_ns())(options(given(st.integers(0, 2**63))(row)))()
    except Exception as error:
        count.failure = "".join(traceback.format_exception_only(error)).splitlines()[0][:300]
        path = FOLDER / "seeds" / name / hashlib.sha256(failing).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(failing)
    count.seconds = time.monotonic() - started
    return count


def table(counts: Sequence[Count]) -> str:
    """The counts as Markdown."""
    rows = [
        f"| {c.target.removeprefix('fuzz_')} | {c.inputs:,} | {c.refused:,} | {c.failure or '-'} |"
        for c in counts
    ]
    total = f"| all | {sum(c.inputs for c in counts):,} | {sum(c.refused for c in counts):,} | |"
    return "\n".join(["| reader | inputs | refused | failure |", "|---|---|---|---|", *rows, total])


def record(page: Path, counts: Sequence[Count], seconds: float) -> None:
    """Replace the table between the marks of a page, with the command that makes it."""
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- fuzz -->\n")
    _, _, after = rest.partition("<!-- /fuzz -->")
    when = f"Counts of {datetime.now(UTC):%Y-%m-%d}, `make fuzz SECONDS={seconds:g}`:"
    page.write_text(
        f"{before}<!-- fuzz -->\n{when}\n\n{table(counts)}\n<!-- /fuzz -->{after}", encoding="utf-8"
    )


def main() -> int:
    """Fuzz one target in this process, or all of them in two processes at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=540.0, help="in all")
    parser.add_argument("--only", help="one target, in this process")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    if options.only:
        signal.signal(signal.SIGALRM, _hang)
        logging.disable()
        warnings.simplefilter("ignore")  # those of Pillow about images that it reads in part
        target, seeds = targets()[options.only]
        for data in seeds:  # what is imported and made once is there before memory is bounded
            try_input(target, data)
        most = _mapped() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        print(json.dumps(asdict(fuzz(options.only, target, seeds, options.seconds))))
        return 0
    names = list(targets())
    each = max(1.0, options.seconds * 2 / len(names))
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda name: _in_process(name, each), names))
    print(table(counts))
    if options.record:
        record(options.record, counts, options.seconds)
    return 1 if any(count.failure for count in counts) else 0


def _in_process(name: str, seconds: float) -> Count:
    command = [sys.executable, "-m", "tests.fuzz.run", "--only", name, "--seconds", str(seconds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=2 * seconds + 120, check=False
        )
    except subprocess.TimeoutExpired:
        return Count(name, failure="hangs where no signal reaches it")
    if done.returncode:
        return Count(
            name, failure=f"the process ended with {done.returncode}: {done.stderr.strip()[-200:]}"
        )
    return Count(**json.loads(done.stdout.splitlines()[-1]))


def _mapped() -> int:
    """Bytes of addresses that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def _hang(_number: int, _frame: object) -> None:
    raise Hang(f"over {HANG_SECONDS} seconds")


if __name__ == "__main__":
    sys.exit(main())
