"""Runs that are killed again and again, and what must hold when they end."""

import json
import random
import signal
import time
from dataclasses import dataclass, field

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import load_model
from homo_dp.privacy.ledger import Ledger
from tests.processes.parts import PARTIES, Cluster


@dataclass
class Victim:
    """A process and the points at which it is killed, one after the other; a number is a time in
    seconds.
    """

    name: str
    points: list[str | float]
    killed_at: list[str | float] = field(default_factory=list)
    unused: list[str | float] = field(default_factory=list)


def survive(cluster: Cluster, victims: list[Victim], timeout: float = 240.0) -> None:
    """Run to the end, killing the victims at their points and starting them again with the same
    command.
    """
    plans = {victim.name: victim for victim in victims}
    waiting = {victim.name: list(victim.points) for victim in victims}
    current: dict[str, str | float | None] = {}
    alarms: dict[str, float] = {}

    def start(name: str) -> None:
        point = waiting[name].pop(0) if waiting.get(name) else None
        current[name] = point
        alarms.pop(name, None)
        if isinstance(point, float):
            alarms[name] = time.monotonic() + point
        cluster.start(name, point if isinstance(point, str) else None)

    for name in (AGGREGATOR, *PARTIES):
        start(name)
    deadline = time.monotonic() + timeout
    running = {AGGREGATOR, *PARTIES}
    while running:
        assert time.monotonic() < deadline, "\n".join(
            f"{name}:\n{cluster.log(name)[-1500:]}" for name in running
        )
        for name in sorted(running):
            process = cluster.processes[name]
            if name in alarms and time.monotonic() > alarms[name]:
                process.send_signal(signal.SIGKILL)
            code = process.poll()
            if code == -signal.SIGKILL:
                plans[name].killed_at.append(current[name] or "?")
                start(name)
            elif code is not None:
                assert code == 0, f"{name} ended with {code}:\n{cluster.log(name)[-3000:]}"
                running.discard(name)
        time.sleep(0.02)
    for victim in victims:
        left = [current[victim.name]] if current[victim.name] is not None else []
        victim.unused = [point for point in [*left, *waiting[victim.name]] if point is not None]


def check_survivors(cluster: Cluster) -> None:
    """Final weights are published, everywhere the same; ledgers are whole and hold every update
    that was used.
    """
    published = load_model(
        cluster.folder / AGGREGATOR / "out" / "model.safetensors"
    ).module.state_dict()
    indicators = json.loads((cluster.folder / AGGREGATOR / "out" / "indicator.json").read_text())
    assert [row["round"] for row in indicators["rounds"]] == list(range(1, cluster.rounds + 1))
    assert all(row["counted"] for row in indicators["rounds"])
    for name in cluster.parties:
        own = load_model(cluster.folder / name / "out" / "model.safetensors").module.state_dict()
        assert all(own[key].equal(published[key]) for key in published)
        with Ledger(cluster.configs[name]["privacy"]["ledger"], read_only=True) as ledger:
            ledger.verify()
            rows = ledger.rows(cluster.run, name)
        used = {row["round"] for row in indicators["rounds"] if name in row["replied"]}
        charged = [row.round for row in rows]
        assert used <= set(charged)
        assert len(charged) == len(set(charged)) <= cluster.rounds
        assert max(row.epsilon for row in rows) <= 4.0
        assert (cluster.folder / name / "out" / "predict.csv").exists()


def random_times(seed: int, count: int, most: float) -> list[str | float]:
    """Seconds after a start at which to kill; the seed makes a failure repeatable, as far as
    clocks allow.
    """
    generator = random.Random(seed)
    return [generator.uniform(0.02, most) for _ in range(count)]
