"""What it costs to be several processes: rounds per second, bytes, a 100 MB model, and waiting.

`python benchmarks/transport.py` prints JSON lines and exits 1 above a bar. The bars are for a
machine that does nothing else; `load` says what it did.

- `rounds`: a trivial logistic-regression job of three parties in memory, through a folder and
  through a NATS server on loopback; `beyond_compute_ms` is the median round without one party's
  training (bars: 60 ms directory, 40 ms NATS);
- `large`: a 100 MB model from one process to another (bar: peak memory under 4x its size at both);
- `idle`: CPU of an aggregator and a party that wait (bar: 1 % of a core each).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import torch

from homo_dp.config.load import config_from
from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import KINDS, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.runs.processes import aggregator_sealer, open_transport, party_sealer
from homo_dp.runs.simulation import Simulation
from tests.processes.parts import DATA, PARTIES, RUN, Cluster
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

BARS = {"directory": 60.0, "nats": 40.0}
MEMORY_BAR, IDLE_BAR = 4.0, 1.0
LARGE = 25_000_000  # float32: 100 MB


def main() -> int:
    """Measure, print one JSON line each; 1 if a bar is passed."""
    parser = parser_for(__doc__)
    parser.add_argument("--rounds", type=count, default=100, help="rounds of the job")
    parser.add_argument("--only", choices=["rounds", "large", "idle"])
    parser.add_argument(
        "--pass", dest="role", nargs=3, metavar=("ROLE", "CONFIG", "NAME"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.role:
        return pass_large(*options.role)
    parts = {"rounds": lambda: rounds(options.rounds), "large": large, "idle": idle}
    passed = True
    for name, part in parts.items():
        for line in part() if options.only in (None, name) else ():
            print(
                json.dumps(
                    {"benchmark": f"transport.{name}", **line, "load": round(os.getloadavg()[0], 1)}
                ),
                flush=True,
            )
            passed = passed and line.get("within_bar", True)
    return 0 if passed else 1


def rounds(count: int) -> Iterator[dict[str, Any]]:
    """The same job in memory and between processes."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, fits = in_memory(Path(folder), count)
    compute = statistics.median(fits) * 1000
    memory = {
        "transport": "memory",
        "rounds_per_second": 1 / statistics.median(seconds),
        "fit_ms": compute,
    }
    yield memory | {"round_ms": statistics.median(seconds) * 1000}
    with Zygote() as zygote:
        for kind, bar in BARS.items():
            with cluster_on(kind, zygote, count) as cluster:
                cluster.start_all()
                codes = cluster.wait(600)
                found = json.loads(
                    (cluster.folder / AGGREGATOR / "out" / "indicator.json").read_text()
                )
                sizes = message_sizes(cluster)
            times = [row["seconds"] * 1000 for row in found["rounds"][5:]]
            beyond = statistics.median(times) - compute
            yield {
                "transport": kind,
                "rounds_per_second": 1000 / statistics.median(times),
                "round_ms": statistics.median(times),
                "fastest_round_ms": min(times),
                "beyond_compute_ms": beyond,
                "bytes_per_round": sum(sizes.values()) * len(PARTIES),
                **sizes,
                "exit_codes": sorted(set(codes.values())),
                "within_bar": beyond <= bar,
            }


def in_memory(folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each round, and of each party's training in it."""
    config = config_from(
        {
            "data": {
                "files": {name: str(DATA / f"breast_cancer_{name}_train.csv") for name in PARTIES},
                "test_file": {
                    name: str(DATA / f"breast_cancer_{name}_test.csv") for name in PARTIES
                },
                "columns_from": "breast_cancer",
            },
            "train": {"auto": False, "rounds": count, "local_steps": 2, "batch_size": 50},
            "privacy": {"ledger": str(folder / "ledger.sqlite")},
        }
    )
    fits: list[float] = []
    original = LocalFit.fit

    def fit(self: LocalFit, *arguments: Any) -> Any:
        started = time.perf_counter()
        release = original(self, *arguments)
        fits.append(time.perf_counter() - started)
        return release

    setattr(LocalFit, "fit", fit)  # noqa: B010 (a stopwatch around the real method)
    moments = [time.perf_counter()]
    try:
        Simulation(config, lambda row, parties: moments.append(time.perf_counter())).run()
    finally:
        setattr(LocalFit, "fit", original)  # noqa: B010
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    return seconds[5:], fits[3 * 5 :]


@contextlib.contextmanager
def cluster_on(kind: str, zygote: Zygote | None, count: int) -> Iterator[Cluster]:
    """A cluster in a temporary folder, with a server where it needs one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(Path(folder) / "nats", PARTIES))
            if kind == "nats"
            else None
        )
        yield stack.enter_context(Cluster(Path(folder), server, count, zygote))


def message_sizes(cluster: Cluster) -> dict[str, int]:
    """Sealed bytes of the two messages that a party and the aggregator exchange in a round."""
    weights = {"linear.weight": torch.zeros(1, 30), "linear.bias": torch.zeros(1)}
    one = aggregator_sealer(config_of(cluster, AGGREGATOR), KINDS)
    other = party_sealer(config_of(cluster, PARTIES[0]))
    head: dict[str, Any] = {"ledger_head": {"count": 100, "hash": "0" * 64}, "releases": ["update"]}
    asked = one.seal(Message(RUN, 100, AGGREGATOR, PARTIES[0], "weights", weights))
    answer = other.seal(Message(RUN, 100, PARTIES[0], AGGREGATOR, "update", weights, head))
    return {"weights_bytes": asked.size, "update_bytes": answer.size}


def config_of(cluster: Cluster, name: str) -> Config:
    return config_from(cluster.configs[name])


def large() -> Iterator[dict[str, Any]]:
    """A 100 MB model from the aggregator to a party, each a process of its own."""
    for kind in BARS:
        with cluster_on(kind, None, 1) as cluster:
            paths = {}
            for name in (AGGREGATOR, PARTIES[0]):
                paths[name] = cluster.folder / f"{name}.json"
                paths[name].write_text(json.dumps(cluster.configs[name]))
            started = [
                start_pass("send", paths[AGGREGATOR], AGGREGATOR),
                start_pass("receive", paths[PARTIES[0]], PARTIES[0]),
            ]
            sent, received = (
                json.loads(process.communicate(timeout=300)[0]) for process in started
            )
        yield {
            "transport": kind,
            "model_mb": LARGE * 4 / 1e6,
            "send_s": sent["seconds"],
            "receive_s": received["seconds"],
            "sender_peak": sent["peak"],
            "receiver_peak": received["peak"],
            "within_bar": max(sent["peak"], received["peak"]) < MEMORY_BAR,
        }


def start_pass(role: str, path: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--pass", role, str(path), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def pass_large(role: str, path: str, name: str) -> int:
    """One side of the large model: seconds, and peak memory over what the imports took, in model
    sizes.
    """
    config = config_from(json.loads(Path(path).read_text()))
    sealer = aggregator_sealer(config, KINDS) if role == "send" else party_sealer(config)
    transport: Transport = open_transport(config, sealer, Path(path).parent)
    before = psutil.Process().memory_info().rss
    started = time.perf_counter()
    if role == "send":
        model = {"w": torch.ones(LARGE)}
        started = time.perf_counter()
        transport.send(Message(RUN, 1, AGGREGATOR, PARTIES[0], "weights", model))
        seconds = time.perf_counter() - started
    else:
        message = transport.receive(timeout=240)
        seconds = time.perf_counter() - started
        if message is None or float(message.tensors["w"].sum()) != LARGE:
            raise RuntimeError("the model did not come whole")
        transport.done(message)
    transport.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": (peak - before) / (LARGE * 4)}))
    return 0


def idle(seconds: float = 20.0) -> Iterator[dict[str, Any]]:
    """CPU of a party and an aggregator that wait for somebody who does not come."""
    for kind in BARS:
        with cluster_on(kind, None, 1) as cluster:
            names = (AGGREGATOR, PARTIES[0])
            for name in names:
                cluster.start(name)
            while "joined" not in cluster.log(AGGREGATOR):
                time.sleep(0.1)
            time.sleep(3)
            before = [cpu(cluster, name) for name in names]
            time.sleep(seconds)
            used = [
                (cpu(cluster, name) - spent) / seconds * 100
                for name, spent in zip(names, before, strict=True)
            ]
        found = dict(zip(("aggregator_percent", "party_percent"), used, strict=True))
        yield {"transport": kind, **found, "within_bar": max(used) < IDLE_BAR}


def cpu(cluster: Cluster, name: str) -> float:
    times = psutil.Process(cluster.processes[name].pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
