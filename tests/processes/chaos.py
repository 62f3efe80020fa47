"""A federation under kills, freezes and SIGTERMs at random; when the trouble ends, it must finish."""

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import PARTIES, Cluster

INTERRUPTED = 130  # how a command ends that was told to by SIGTERM
NAMES = (AGGREGATOR, *PARTIES)


@dataclass
class Chaos:
    """What is done to a federation, by a seed; clocks and the scheduler make each time a little different."""

    seed: int
    blows: int
    pause: float = 0.35  # seconds between two blows, at most
    dealt: Counter[str] = field(default_factory=Counter)

    def survive(self, cluster: Cluster, timeout: float = 240.0) -> None:
        """Run the federation to its end with ``blows`` on the way; what a blow ended is started again."""
        generator = random.Random(self.seed)
        deadline = time.monotonic() + timeout
        waiting = dict.fromkeys(NAMES)  # those that have not ended well yet
        frozen: dict[str, float] = {}
        down_until = 0.0
        cluster.start_all()
        next_blow = time.monotonic() + generator.uniform(0.05, self.pause)
        left = self.blows
        try:
            while waiting:
                now = time.monotonic()
                assert now < deadline, "\n".join(
                    f"{name}:\n{cluster.log(name)[-1500:]}" for name in waiting
                )
                for name in [name for name, until in frozen.items() if now >= until]:
                    cluster.processes[name].send_signal(signal.SIGCONT)
                    del frozen[name]
                if down_until and now >= down_until and cluster.nats is not None:
                    cluster.nats.start()
                    down_until = 0.0
                if left and now >= next_blow:
                    left -= 1
                    next_blow = now + generator.uniform(0.05, self.pause)
                    blow = generator.choices(
                        ("kill", "freeze", "terminate", "server"), (6, 3, 2, 2)
                    )[0]
                    if blow == "server" and cluster.nats is not None and not down_until:
                        cluster.nats.kill()
                        down_until = now + generator.uniform(0.0, 0.5)
                        self.dealt["server"] += 1
                    elif blow != "server":
                        self._strike(cluster, generator, blow, waiting, frozen)
                self._start_again(cluster, waiting)
                time.sleep(0.01)
        finally:
            if down_until and cluster.nats is not None:
                cluster.nats.start()
            for name in frozen:
                cluster.processes[name].send_signal(signal.SIGCONT)

    def _strike(
        self,
        cluster: Cluster,
        generator: random.Random,
        blow: str,
        waiting: dict[str, None],
        frozen: dict[str, float],
    ) -> None:
        name = generator.choice([*waiting])
        process = cluster.processes[name]
        if name in frozen or process.poll() is not None:
            return
        self.dealt[blow] += 1
        if blow == "freeze":
            frozen[name] = time.monotonic() + generator.uniform(0.05, 0.6)
            process.send_signal(signal.SIGSTOP)
        else:
            process.send_signal(signal.SIGKILL if blow == "kill" else signal.SIGTERM)

    def _start_again(self, cluster: Cluster, waiting: dict[str, None]) -> None:
        for name in [*waiting]:
            code = cluster.processes[name].poll()
            if code in (-signal.SIGKILL, -signal.SIGTERM, INTERRUPTED):
                cluster.start(name)  # -SIGTERM: it came before the command had set up its handler
            elif code is not None:
                assert code == 0, f"{name} ended with {code}:\n{cluster.log(name)[-3000:]}"
                del waiting[name]
