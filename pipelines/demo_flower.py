"""A federation on Flower, on this machine: a SuperLink and three SuperNodes on loopback, one `flwr
run`, then compare.

python -m pipelines.demo_flower     (make demo-flower, in an environment of its own)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.demo_federation import PARTIES, ROOT, report

MOST_SECONDS = 300.0
APP = ROOT / "pipelines" / "flower"


class FlowerFederation:
    """Keys, a SuperLink and a SuperNode for each party, in one folder; all of it on 127.0.0.1,
    and stopped by pid.
    """

    def __init__(self, folder: Path, superlink: Sequence[str] = ("--insecure",)) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._superlink = superlink
        self._connection = "insecure = true\n"

    def prepare(self, parties: Sequence[str] = PARTIES) -> None:
        """The tables, and a fresh key for everybody."""
        from homo_dp.transport.keys import new_key_pair, write_key_pair

        shutil.copytree(ROOT / "data", self.folder / "data")
        for name in ("aggregator", *parties):
            write_key_pair(new_key_pair(name), self.folder / "keys")

    def trust(self, certificate: Path) -> None:
        """Let `flwr` talk TLS, with this certificate as the one to trust."""
        self._connection = f'root-certificates = "{certificate}"\n'

    def start_superlink(self) -> None:
        """The SuperLink, with a database, so that it can be killed and started again."""
        database = self.folder / "superlink.db"
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--database", str(database)]
        self._start(
            "superlink",
            [
                "flower-superlink",
                "--disable-runtime-dependency-installation",
                *self._superlink,
                *options,
            ],
        )
        wait_for_port(self.port)

    def start_node(self, name: str, config: str, options: Sequence[str] = ("--insecure",)) -> None:
        """The SuperNode beside a party, which names the party's config."""
        port = free_port()
        command = [
            "flower-supernode",
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--host",
            "127.0.0.1",
            *options,
        ]
        self._start(name, [*command, "--port", str(port), "--node-config", f'party="{config}"'])

    def run(self, config: str, params: str = "") -> subprocess.Popen[bytes]:
        """`flwr run`, which streams what the ServerApp says until the run is over."""
        return self._start(
            "flwr",
            self.flwr("run", str(APP), "demo", "--stream", *self.run_config(config, params)),
        )

    def run_config(self, config: str, params: str = "") -> list[str]:
        """The options that tell the ServerApp its config."""
        return ["--run-config", f'config="{config}" params="{params}"']

    def flwr(self, *arguments: str) -> list[str]:
        """A command of Flower's own, with the address of our SuperLink in its settings."""
        home = self.folder / "home" / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        settings = (
            '[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress ='
            f' "127.0.0.1:{self.port}"\n'
        )
        (home / "config.toml").write_text(settings + self._connection)
        return ["flwr", *arguments]

    def environment(self, name: str) -> dict[str, str]:
        """Telemetry and the look for updates off; a folder of its own for what Flower keeps."""
        scripts = str(Path(sys.executable).parent)
        return os.environ | {
            "FLWR_HOME": str(self.folder / "home" / name),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def said(self, name: str) -> str:
        """What a process has said so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a process without a word, as a power cut would."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Ask everything that was started to end, nodes first; what does not is killed."""
        for process in reversed(self.running.values()):
            _end(process)
        self.running.clear()
        for end in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, end)
            deadline = time.monotonic() + 5
            while self._left() and time.monotonic() < deadline:
                time.sleep(0.1)

    def _left(self) -> list[int]:
        """Processes that those we started have left: parties, and ClientApps whose SuperNode was
        killed.
        """
        ours, found = f"FLWR_HOME={self.folder / 'home'}{os.sep}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if ours in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as said:
            self.running[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(name),
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        return self.running[name]


def main(folder: Path, recipes: Mapping[str, str]) -> int:
    """Run the default job of processes on Flower and in memory; the same epsilon, and about the
    same accuracy.
    """
    federation, started = FlowerFederation(folder), time.monotonic()
    federation.prepare()
    try:
        federation.start_superlink()
        for name in PARTIES:
            federation.start_node(name, str(ROOT / "conf" / f"{recipes[name]}.yaml"))
        print(
            f"SuperLink on 127.0.0.1:{federation.port}, three SuperNodes; flwr run ...", flush=True
        )
        code = federation.run(str(ROOT / "conf" / f"{recipes['aggregator']}.yaml")).wait(
            MOST_SECONDS
        )
        print("\n".join(line for line in federation.said("flwr").splitlines() if line.strip()))
        wait_for_outputs(folder, PARTIES)
    finally:
        federation.stop()
    print(f"\nended after {time.monotonic() - started:.1f} s with {code}")
    # flwr ends with 0 also if a run failed
    if code or not (folder / "out" / "aggregator" / "indicator.json").exists():
        return code or 1
    return report(folder) or compare(folder, recipes)


def compare(folder: Path, recipes: Mapping[str, str]) -> int:
    """The same job in memory, from the same recipe."""
    aggregator = json.loads((folder / "out" / "aggregator" / "indicator.json").read_text())
    rounds = [row["seconds"] for row in aggregator["rounds"]]
    middle, shortest, longest = sorted(rounds)[len(rounds) // 2], min(rounds), max(rounds)
    print(f"seconds a round on Flower: median {middle:.1f}, from {shortest:.1f} to {longest:.1f}")
    files = ", ".join(
        f"{name}: data/breast_cancer_party_{number}_train.csv"
        for number, name in enumerate(PARTIES, 1)
    )
    tests = ", ".join(
        f"{name}: data/breast_cancer_party_{number}_test.csv"
        for number, name in enumerate(PARTIES, 1)
    )
    out = ",".join(
        f"{kind}FileName=out/memory/{kind}.{end}"
        for kind, end in (("predict", "csv"), ("indicator", "json"), ("model", "safetensors"))
    )
    command = [
        sys.executable,
        "-m",
        "homo_dp.train",
        "--config",
        str(ROOT / "conf" / f"{recipes['aggregator']}.yaml"),
    ]
    command += [
        "--quiet",
        "--params",
        f"transport.kind=memory,data.files={{{files}}},data.test_file={{{tests}}}",
    ]
    command += ["--params", f"federation.parties=[],privacy.ledger=out/memory/ledger.sqlite,{out}"]
    subprocess.run(command, cwd=folder, check=True)
    memory = json.loads((folder / "out" / "memory" / "indicator.json").read_text())
    parties = [
        json.loads((folder / "out" / name / "indicator.json").read_text()) for name in PARTIES
    ]
    epsilons = {round(found["privacy"]["epsilon"], 4) for found in (*parties, memory)}
    accuracy = sum(found["test_acc"] for found in parties) / len(parties)
    print(f"epsilon on Flower and in memory: {sorted(epsilons)}")
    print(
        f"test accuracy: {accuracy:.3f} on Flower (mean of the parties), {memory['test_acc']:.3f} "
        "in memory"
    )
    return 0 if len(epsilons) == 1 else 1


def wait_for_outputs(folder: Path, parties: Sequence[str]) -> None:
    """Parties write their files after the aggregator has ended."""
    paths = [folder / "out" / name / "indicator.json" for name in parties]
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.1)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_for_port(port: int, seconds: float = 60.0) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on 127.0.0.1:{port} after {seconds:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="homo_dp-flower-") as place:
        sys.exit(
            main(Path(place), {"aggregator": "federation", **{name: name for name in PARTIES}})
        )
