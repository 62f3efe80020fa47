"""A federation under kills, freezes, SIGTERMs, failing shares, full disks and clutter at random;
when the trouble ends, it must finish.
"""

import errno
import os
import random
import secrets
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import Cluster

INTERRUPTED = 130  # how a command ends that was told to by SIGTERM
# How a command ends whose disk is full: 3 where it is the ledger's or the outbox, and 1 where a
# SIGTERM comes while it ends.
FAILED = (1, 2, 3)
BLOWS = {"kill": 6, "freeze": 3, "terminate": 2, "full": 1}  # and how often of each
OF_NATS, OF_FOLDERS = {"server": 2}, {"share": 4, "clutter": 4}
AWAY = (errno.ESTALE, errno.EIO, errno.ENOENT, errno.ENOSPC)


@dataclass
class Chaos:
    """What is done to a federation, by a seed; clocks and the scheduler make each time a little
    different.
    """

    seed: int
    blows: int
    pause: float = 0.35  # seconds between two blows, at most
    dealt: Counter[str] = field(default_factory=Counter)

    def survive(self, cluster: Cluster, timeout: float = 240.0) -> None:
        """Run the federation to its end with ``blows`` on the way; what a blow ended is started
        again.
        """
        self._cluster, self._random = cluster, random.Random(self.seed)
        # those that have not ended well yet
        self._waiting = dict.fromkeys((AGGREGATOR, *cluster.parties))
        self._frozen: dict[str, float] = {}
        self._marks: dict[Path, float] = {}  # of calls that fail, and until when
        self._down_until = 0.0
        self._held_open: list[int] = []
        for name in self._waiting:
            share, disk = self._mark(name, "share"), self._mark(name, "full")
            places = [str(cluster.folder / each) for each in (name, f"state-{name}")]
            cluster.shims.setdefault(name, {})["failing_calls"] = [
                [[str(cluster.exchange)], str(share)],
                [places, str(disk)],
            ]
        cluster.start_all()
        self._run(time.monotonic() + timeout)

    def _run(self, deadline: float) -> None:
        next_blow, left = time.monotonic() + self._random.uniform(0.05, self.pause), self.blows
        try:
            while self._waiting:
                now = time.monotonic()
                assert now < deadline, "\n".join(
                    f"{name}:\n{self._cluster.log(name)[-1500:]}" for name in self._waiting
                )
                self._recover(now)
                if left and now >= next_blow:
                    left -= 1
                    next_blow = now + self._random.uniform(0.05, self.pause)
                    self._strike(now)
                self._start_again()
                time.sleep(0.01)
        finally:
            self._recover(float("inf"))
            for descriptor in self._held_open:
                os.close(descriptor)

    def _mark(self, name: str, what: str) -> Path:
        return self._cluster.folder / f"{what}-{name}"

    def _recover(self, now: float) -> None:
        """End what is over by now."""
        for name in [name for name, until in self._frozen.items() if now >= until]:
            self._cluster.processes[name].send_signal(signal.SIGCONT)
            del self._frozen[name]
        for mark in [mark for mark, until in self._marks.items() if now >= until]:
            mark.unlink()
            del self._marks[mark]
        if self._down_until and now >= self._down_until and self._cluster.nats is not None:
            self._cluster.nats.start()
            self._down_until = 0.0

    def _strike(self, now: float) -> None:
        kinds = BLOWS | (OF_FOLDERS if self._cluster.nats is None else OF_NATS)
        blow = self._random.choices([*kinds], [*kinds.values()])[0]
        name = self._random.choice([*self._waiting])
        if blow == "server":
            self._stop_server(now)
        elif blow == "clutter":
            self._clutter()
        elif blow == "share":
            # of everybody, or of one
            names = [*self._waiting] if self._random.random() < 0.5 else [name]
            self._fail(names, "share", self._random.choice(AWAY), now)
        elif blow == "full":
            self._fail([name], "full", errno.ENOSPC, now)
        else:
            self._hit(blow, name, now)

    def _stop_server(self, now: float) -> None:
        if self._cluster.nats is not None and not self._down_until:
            self._cluster.nats.kill()
            self._down_until = now + self._random.uniform(0.0, 0.5)
            self.dealt["server"] += 1

    def _fail(self, names: list[str], what: str, number: int, now: float) -> None:
        """Let calls of these processes fail for a while."""
        until = now + self._random.uniform(0.05, 1.0)
        for name in names:
            mark = self._mark(name, what)
            mark.write_text(str(number))
            self._marks[mark] = until
        self.dealt[what] += 1

    def _clutter(self) -> None:
        """Put what is no message under the names of messages, into any folder of the exchange."""
        folders = [path for path in self._cluster.exchange.rglob("*") if path.is_dir()]
        folders = [path for path in folders if path.suffix != ".msg"]
        if not folders:
            return
        self.dealt["clutter"] += 1
        names = (AGGREGATOR, *self._cluster.parties)
        for _ in range(20):
            kind = self._random.choice(("join", "update", "plan", "status", "sum_keys"))
            sender, tag = self._random.choice(names), secrets.token_hex(16)
            place = self._random.choice(folders) / f"0-{kind}-{sender}-{tag}.msg"
            try:
                self._put(place)
            except OSError:  # the folder has gone meanwhile
                continue

    def _put(self, place: Path) -> None:
        what = self._random.choice(("folder", "pipe", "link", "file", "long"))
        if what == "folder":
            (place / "inside").mkdir(parents=True)
        elif what == "pipe":
            os.mkfifo(place)
            self._held_open.append(os.open(place, os.O_RDWR))  # a writer that never writes
        elif what == "link":
            place.symlink_to(self._random.choice(("/dev/zero", "nowhere", ".")))
        else:
            place.write_bytes(b"HDS\1" + secrets.token_bytes(40 if what == "file" else 1 << 16))

    def _hit(self, blow: str, name: str, now: float) -> None:
        process = self._cluster.processes[name]
        if name in self._frozen or process.poll() is not None:
            return
        self.dealt[blow] += 1
        if blow == "freeze":
            self._frozen[name] = now + self._random.uniform(0.05, 0.6)
            process.send_signal(signal.SIGSTOP)
        else:
            process.send_signal(signal.SIGKILL if blow == "kill" else signal.SIGTERM)

    def _start_again(self) -> None:
        for name in [*self._waiting]:
            code = self._cluster.processes[name].poll()
            # -SIGTERM: it came before the command had set up its handler
            again = code in (-signal.SIGKILL, -signal.SIGTERM, INTERRUPTED)
            if again or (code in FAILED and self._disk_was_full(name)):
                self._cluster.start(name)
            elif code is not None:
                assert code == 0, f"{name} ended with {code}:\n{self._cluster.log(name)[-3000:]}"
                del self._waiting[name]

    def _disk_was_full(self, name: str) -> bool:
        last = self._cluster.log(name).strip().splitlines()[-1:]
        return self.dealt["full"] > 0 and os.strerror(errno.ENOSPC) in "".join(last)
