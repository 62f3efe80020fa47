"""Users trained together against one user at a time, and a hundred thousand users: one JSON line
each, one thread.

`python benchmarks/users.py`; bars: together at least 10x faster; 100,000 users in a process of
their own within 1 GiB beside their rows, Python and torch included. Exits 1 below them. A round is
all of it: draw the cohort, train, clip and noise, move the weights and the clip norm; `with_ledger`
also charges it to a ledger on disk. The ratio is of CPU seconds, which neighbours on a busy machine
disturb little; rounds per second are by the clock.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from arguments import parser_for

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.federation.sessions.aggregator import Aggregator
from homo_dp.federation.sessions.build import build_aggregator
from homo_dp.federation.users.cohorts import CohortTraining, OneAtATime, Together
from homo_dp.federation.users.user_rows import Users
from homo_dp.models.registry import build_model
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.runs.user_simulation import user_facts, user_mechanism

ROWS, FEATURES = 30, 100
SPEED_BAR, MEMORY_BAR = 10.0, 1 << 30
PFL_SECONDS, FLOWER_SECONDS = 0.23, 1.9  # a round of the first job elsewhere, on a like machine

Line = dict[str, float | int | str | bool | None]


def job(users: int, cohort: int, rounds: int, clipping: str) -> Config:
    """Logistic regression, three local steps of ten rows."""
    keys = {
        "privacy.mechanism": "dp_fedavg",
        "privacy.trust_aggregator": True,
        "privacy.population": users,
        "privacy.cohort_size": cohort,
        "privacy.noise_multiplier": 1.0,
        "privacy.delta": 1e-6,
        "privacy.clipping": clipping,
        "data.name": "benchmark",
        "train.rounds": rounds,
        "train.local_steps": 3,
        "train.batch_size": 10,
        "train.learning_rate": 0.1,
    }
    return load_config(None, keys)


def made_users(users: int) -> Users:
    """Rows of one linear rule, made in pieces so that making them takes no more memory than they
    do.
    """
    seeded = torch.Generator().manual_seed(0)
    features = torch.empty(users * ROWS, FEATURES)
    labels = torch.empty(users * ROWS, dtype=torch.int64)
    rule = torch.randn(FEATURES, generator=seeded)
    for piece, labelled in zip(
        torch.split(features, 100_000), torch.split(labels, 100_000), strict=True
    ):
        piece.normal_(generator=seeded)
        labelled.copy_(piece @ rule > 0)
    return Users(features, labels, torch.arange(0, users * ROWS + 1, ROWS))


class Run:
    """One training over users."""

    def __init__(
        self, config: Config, users: Users, kind: type[CohortTraining], ledger: Ledger | None
    ) -> None:
        model = build_model(config.model, (FEATURES,), (0, 1))
        facts = user_facts(config, len(users), FEATURES + 1)
        self.mechanism = user_mechanism(config, facts, secure_noise())
        self.training = kind(model.module, model.task.loss, users, config.train)
        weights = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
        self.aggregator: Aggregator = build_aggregator(
            config, "benchmark", weights, self.mechanism, ledger
        )
        self.charged = ledger is not None
        if ledger is not None:
            ledger.prepare(self.aggregator.planned_charges(1)[0], config.train.rounds)

    def round(self) -> None:
        aggregator = self.aggregator
        aggregator.start_round()
        total = self.training.run(
            self.mechanism, self.mechanism.draw(), aggregator.weights, aggregator.round
        )
        combined = self.mechanism.combine(total, aggregator.weights, aggregator.round)
        if self.charged:
            aggregator.apply(combined)
        else:
            aggregator.publish(
                aggregator.server_optimizer.step(aggregator.weights, combined.weights)
            )


class Timing(NamedTuple):
    """Mean CPU and wall seconds of a round."""

    cpu: float
    wall: float


def timing(run: Run, rounds: int) -> Timing:
    """Of the rounds after a first one that is not counted."""
    run.round()
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(rounds):
        run.round()
    return Timing((time.thread_time() - cpu) / rounds, (time.perf_counter() - wall) / rounds)


def first_job(clipping: str, folder: Path) -> Line:
    """1,000 users, cohort 100: together, one at a time, and together with a ledger."""
    users, rounds = made_users(1000), 50
    config = job(1000, 100, rounds + 1, clipping)
    together = timing(Run(config, users, Together, None), rounds)
    alone = timing(Run(config, users, OneAtATime, None), 10)
    charged = timing(Run(config, users, Together, Ledger(folder / f"{clipping}.sqlite")), rounds)
    return {
        "benchmark": "users",
        "users": 1000,
        "rows": ROWS,
        "features": FEATURES,
        "cohort": 100,
        "local_steps": 3,
        "clipping": clipping,
        "rounds": rounds,
        "rounds_per_second": 1 / together.wall,
        "cpu_seconds": together.cpu,
        "seconds": together.wall,
        "one_at_a_time_cpu_seconds": alone.cpu,
        "one_at_a_time_seconds": alone.wall,
        "ratio": alone.cpu / together.cpu,
        "wall_ratio": alone.wall / together.wall,
        "bar": SPEED_BAR,
        "with_ledger_seconds": charged.wall,
        "pfl_seconds": PFL_SECONDS,
        "flower_seconds": FLOWER_SECONDS,
    }


def many_users(users: int, cohort: int, rounds: int) -> Line:
    """Speed and peak memory of a process with so many users."""
    torch.set_num_threads(1)
    table = made_users(users)
    rows = table.features.nbytes + table.labels.nbytes + table.offsets.nbytes
    run = Run(job(users, cohort, rounds + 1, "adaptive"), table, Together, None)
    taken = timing(run, rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "benchmark": "many_users",
        "users": users,
        "rows": ROWS,
        "features": FEATURES,
        "cohort": cohort,
        "rounds": rounds,
        "rounds_per_second": 1 / taken.wall,
        "cpu_seconds": taken.cpu,
        "peak_bytes": peak,
        "bytes_of_the_rows": rows,
        "bytes_beside_the_rows": peak - rows,
        "bar": MEMORY_BAR,
    }


def main() -> int:
    parser_for(__doc__).parse_args()
    torch.set_num_threads(1)
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        for clipping in ("fixed", "adaptive"):
            line = first_job(clipping, Path(folder))
            print(json.dumps(line), flush=True)
            passed &= float(line["ratio"] or 0) >= SPEED_BAR
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        line = pool.apply(many_users, (100_000, 1000, 20))
    print(json.dumps(line), flush=True)
    passed &= int(line["bytes_beside_the_rows"] or 0) <= MEMORY_BAR
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
