"""The worked example of docs/deploy.md: the files of deploy/conf, with other folders, another
port and fewer rounds.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homo_dp.commands.party import main as party_command
from homo_dp.config.load import load_config
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.runs.run_status import status
from homo_dp.transport.keys import new_key_pair, write_key_pair
from tests.processes.parts import DATA, ledger_rows
from tests.transport.nats_server import NatsServer
from tests.transport.test_nats_login import certificate

CONF = Path(__file__).parents[2] / "deploy" / "conf"
HOSPITALS = ("hospital_a", "hospital_b", "hospital_c")
RUN = "study-1"


class Sites:
    """Three hospitals and an institute, each with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = NatsServer(folder / "nats", [])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        certificate(folder / "nats", "server", certificate(folder / "nats", "ca", None))
        users = (AGGREGATOR, *HOSPITALS)
        # without quotes the server would take it for a number
        passwords = {name: f"12e4{name}" for name in users}
        lines = [f'{name.upper()}_PASSWORD: "{password}"\n' for name, password in passwords.items()]
        (folder / "nats" / "passwords.conf").write_text("".join(lines))
        (folder / "nats" / "server.conf").write_text(self.moved(CONF / "nats.conf", ""))
        pairs = {name: new_key_pair(name) for name in users}
        for name, pair in pairs.items():
            keys = folder / name / "etc" / "keys"
            write_key_pair(pair, keys)
            for other in users:
                (keys / f"{other}.pub").write_text(pairs[other].public.line + "\n")
            (keys / "nats.password").write_text(passwords[name] + "\n")
            (keys / "nats.password").chmod(0o600)
            shutil.copy(folder / "nats" / "ca.pem", keys)
            (folder / name / "etc" / "revoked").mkdir()
            shutil.copy(CONF / "revoked", folder / name / "etc" / "revoked" / "keys")
            conf = CONF / ("aggregator.yaml" if name == AGGREGATOR else "party.yaml")
            self.config(name).write_text(self.moved(conf, name))
        for number, name in enumerate(HOSPITALS, 1):
            (folder / name / "srv").mkdir()
            shutil.copy(
                DATA / f"breast_cancer_party_{number}_train.csv",
                folder / name / "srv" / "train.csv",
            )

    def moved(self, path: Path, site: str) -> str:
        """A file of deploy/conf with the folders of a site, and its name where it is a hospital."""
        text, places = (
            path.read_text(),
            {"/etc/homo_dp_nats": "nats", "/var/lib/homo_dp_nats": "nats/store"},
        )
        if site in HOSPITALS:
            text = text.replace("hospital_a", site)
        for place, own in {
            **places,
            "/etc/homo_dp": f"{site}/etc",
            "/var/lib/homo_dp": f"{site}/lib",
        }.items():
            text = text.replace(place, str(self.folder / own))
        text = text.replace("/srv/homo_dp", str(self.folder / site / "srv"))
        address = f"127.0.0.1:{self.server.port}"
        return text.replace("nats.research.example:4222", address).replace("0.0.0.0:4222", address)

    def config(self, name: str) -> Path:
        return self.folder / name / "etc" / "config.yaml"

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        module = "homo_dp.aggregator" if name == AGGREGATOR else "homo_dp.party"
        command = [
            sys.executable,
            "-m",
            module,
            "--log-format",
            "json",
            "--config",
            str(self.config(name)),
            *options,
        ]
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        return self.processes[name]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def state(self, name: str) -> str:
        """What `homo-dp status` calls the run at a site."""
        runs = status(load_config(self.config(name)))["runs"]
        return str(runs[0]["state"]) if runs else ""

    def until(self, condition: Callable[[], bool], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, {
                name: self.log(name).read_text()[-1500:] for name in self.processes
            }
            time.sleep(0.1)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)
        self.server.kill()


def unexpected_warnings(log: Path) -> list[str]:
    """Warnings of a party's log, but for the one that depends on the noise: after two rounds the
    model may be no better than a constant.
    """
    events = [json.loads(line) for line in log.read_text().splitlines()]
    warnings = [event["event"] for event in events if event["level"] == "WARNING"]
    return [text for text in warnings if not text.startswith("the model is not better than")]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    made.server.start()
    try:
        yield made
    finally:
        made.stop()


def test_three_hospitals_approve_a_study_and_train(sites: Sites) -> None:
    assert party_command(["--dry-run", "--quiet", "--config", str(sites.config("hospital_a"))]) == 0
    for name in HOSPITALS:
        sites.start(name, "--serve")
    institute = sites.start(AGGREGATOR, "--params", "train.rounds=2")
    sites.until(lambda: all(sites.state(name) == "waits for approval" for name in HOSPITALS))
    for name in HOSPITALS:
        assert party_command(["approve", RUN, "--quiet", "--config", str(sites.config(name))]) == 0
    assert institute.wait(240) == 0, sites.log(AGGREGATOR).read_text()[-3000:]
    sites.until(lambda: all(sites.state(name) == "over" for name in HOSPITALS))
    assert (
        sites.folder / AGGREGATOR / "lib" / "aggregator" / "out" / RUN / "model.safetensors"
    ).exists()
    for name in HOSPITALS:
        own = sites.folder / name / "lib" / name
        assert [row.round for row in ledger_rows(own / "ledger" / "ledger.sqlite")] == [1, 2]
        assert (own / "out" / RUN / "indicator.json").exists()
        assert unexpected_warnings(sites.log(name)) == []
