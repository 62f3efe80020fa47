"""A federation on disk for tests: keys, configs and processes that a test can start, kill and
start again.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.privacy.ledger import Ledger, LedgerRow
from homo_dp.transport.keys import new_key_pair, write_key_pair
from tests.processes.zygote import Forked, Zygote
from tests.transport.nats_server import NatsServer

Running = subprocess.Popen[bytes] | Forked

PARTIES = ("party_1", "party_2", "party_3")
RUN = "run-1"
DATA = Path(__file__).parents[2] / "data"


class Cluster:
    """The files of one aggregator and its parties below ``folder``, and the processes that run
    from them.
    """

    def __init__(
        self,
        folder: Path,
        nats: NatsServer | None = None,
        rounds: int = 3,
        zygote: Zygote | None = None,
        run: str = RUN,
        exchange: Path | None = None,
        parties: Sequence[str] = PARTIES,
    ) -> None:
        self.folder = folder
        self.parties = parties
        self.run = run
        self.exchange = exchange or folder / "exchange"
        self.nats = nats
        self.zygote = zygote
        self.rounds = rounds
        self.processes: dict[str, Running] = {}
        # by process: what is put between it and the operating system or its peers (shims.py)
        self.shims: dict[str, dict[str, list[Any]]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        pairs = {name: new_key_pair(name) for name in (AGGREGATOR, *parties)}
        for pair in pairs.values():
            write_key_pair(pair, folder / "keys")
        lines = {name: pair.public.line for name, pair in pairs.items()}
        common: dict[str, Any] = {"federation": {"run": run}, "tracking": {"enabled": False}}
        aggregator = {
            "data": {"columns_from": "breast_cancer"},
            "train": {"auto": False, "rounds": rounds, "local_steps": 2, "batch_size": 50},
            "federation": {
                "run": run,
                "key_file": str(folder / "keys" / "aggregator.key"),
                "parties": {name: lines[name] for name in parties},
                "state_dir": str(folder / "state-aggregator"),
                "round_timeout": 240,
            },
        }
        self.configs = {AGGREGATOR: common | aggregator}
        for number, name in enumerate(parties):
            table = f"breast_cancer_{PARTIES[number % len(PARTIES)]}"
            self.configs[name] = common | {
                "data": {
                    "files": {name: str(DATA / f"{table}_train.csv")},
                    "test_file": {name: str(DATA / f"{table}_test.csv")},
                    "counts": "public",
                },
                "privacy": {"ledger": str(folder / name / "ledger.sqlite")},
                "party": {
                    "name": name,
                    "key_file": str(folder / "keys" / f"{name}.key"),
                    "aggregator_key": lines[AGGREGATOR],
                    "state_dir": str(folder / name / "state"),
                    "patience": 120,
                },
            }
        for name, config in self.configs.items():
            config["transport"] = self._transport(name)
            out = folder / name / "out"
            names = {
                "predict": "predict.csv",
                "indicator": "indicator.json",
                "model": "model.safetensors",
            }
            config["output"] = {f"{key}FileName": str(out / file) for key, file in names.items()}

    def _transport(self, name: str) -> dict[str, Any]:
        if self.nats is None:
            return {"kind": "directory", "directory": str(self.exchange)}
        return {"kind": "nats", "nats": self.nats.config(name).model_dump(mode="json")}

    def change(self, name: str, section: str, /, **values: Any) -> None:
        """Change keys of one process's config."""
        self.configs[name] = {
            **self.configs[name],
            section: {**self.configs[name].get(section, {}), **values},
        }

    def bound_lifetime(self, name: str, epsilon: float = 50.0) -> None:
        """Give a party a lifetime budget."""
        self.change(name, "data", name="clinic")
        self.change(name, "privacy", lifetime_epsilon=epsilon)

    def start(
        self,
        name: str,
        crash_at: str | None = None,
        arguments: Sequence[str] = (),
        largest_file: int | None = None,
        bound: bool = False,
    ) -> Running:
        """Start (or start again) one process; its output is appended to ``<name>.log``."""
        path, log = self.folder / f"{name}.yaml", self.folder / f"{name}.log"
        path.write_text(yaml.safe_dump(self.configs[name]))
        module = "homo_dp.aggregator" if name == AGGREGATOR else "homo_dp.party"
        options = ["--config", str(path), *arguments]
        if self.zygote is not None:
            self.processes[name] = self.zygote.start(
                module, options, log, crash_at, largest_file, bound, self.shims.get(name)
            )
            return self.processes[name]
        environment = {key: value for key, value in os.environ.items() if key != "HOMO_DP_CRASH_AT"}
        environment |= {"OMP_NUM_THREADS": "1"} | (
            {"HOMO_DP_CRASH_AT": crash_at} if crash_at else {}
        )
        with open(log, "ab") as file:
            command = [sys.executable, "-m", module, *options]
            self.processes[name] = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, cwd=self.folder
            )
        return self.processes[name]

    def start_all(self, crash_at: Mapping[str, str] | None = None) -> None:
        for name in (AGGREGATOR, *self.parties):
            self.start(name, (crash_at or {}).get(name))

    def wait(self, timeout: float = 120.0) -> dict[str, int]:
        """Exit codes of all processes, once they have all ended."""
        deadline = time.monotonic() + timeout
        for name, process in self.processes.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} does not end:\n{self._ends()}") from None
        return {name: int(process.wait()) for name, process in self.processes.items()}

    def _ends(self) -> str:
        """Each process's exit code, None while it runs, and the end of its output."""
        return "\n".join(
            f"{name} ({process.poll()}):\n{self.log(name)[-1500:]}"
            for name, process in self.processes.items()
        )

    def stop(self) -> None:
        """Kill what still runs."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def ledger_rows(path: Path) -> list[LedgerRow]:
    """All rows of the ledger that a process has left."""
    with Ledger(path, read_only=True) as ledger:
        return ledger.rows()


# what a party that takes plans without asking has to give
BOUNDED = {"data.name": "clinic", "privacy.lifetime_epsilon": 50.0}


def served(**rules: Any) -> dict[str, Any]:
    """A party that serves by these rules."""
    return {"party.name": "party_1", "party.serve": rules, **BOUNDED}
