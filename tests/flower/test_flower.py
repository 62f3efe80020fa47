"""The default job on Flower: a stopped run, killed nodes, a killed SuperLink, TLS, SuperNode
authentication, masks.
"""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.privacy.ledger import Ledger, LedgerRow
from homo_dp.runs.run_status import status
from pipelines.demo_federation import PARTIES, ROOT
from pipelines.demo_flower import FlowerFederation, wait_for_outputs
from tests.flower.certificates import write_certificates, write_node_key

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]
RADIUS = 13.5791357913579  # of a feature
ALL_EVERY_ROUND = "federation.min_parties=3,federation.round_timeout=450"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FlowerFederation]:
    made = FlowerFederation(tmp_path)
    made.prepare()
    try:
        yield made
    finally:
        made.stop()


def conf(name: str) -> str:
    return str(ROOT / "conf" / f"{name}.yaml")


def until(
    condition: Callable[[], bool], federation: FlowerFederation, seconds: float = 450.0
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, {
            name: federation.said(name)[-1500:] for name in federation.running
        }
        time.sleep(0.05)


def releases(folder: Path, party: str) -> list[LedgerRow]:
    with Ledger(folder / "state" / party / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.verify().count == len(ledger.rows())
        return ledger.rows()


def rounds_kept(folder: Path, run: str) -> int:
    path = folder / "state" / "aggregator" / run / "rounds.jsonl"
    return sum(bool(line.strip()) for line in path.read_text().splitlines()) if path.exists() else 0


def is_free(state: Path) -> bool:
    """Whether no process runs from a state folder."""
    with (state / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def party_pid(folder: Path, party: str, run: str) -> int:
    return int((folder / "state" / party / run / "party.pid").read_text())


def indicators(folder: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "out" / name / "indicator.json").read_text())
    return found


def stop_run(federation: FlowerFederation) -> None:
    """`flwr stop` on the run that was started last."""
    number = re.findall(r"started run (\d+)", federation.said("flwr"))[-1]
    stop = federation.flwr("stop", number, "demo")
    subprocess.run(stop, env=federation.environment("flwr"), cwd=federation.folder, check=True)


def state_of_run(folder: Path) -> str:
    """What `homo-dp status` says of the aggregator's run."""
    config = load_config(
        conf("federation"), {"federation.state_dir": str(folder / "state" / "aggregator")}
    )
    (found,) = status(config)["runs"]
    return str(found["state"])


def plant(folder: Path) -> None:
    """Put the sentinel into every fifth row of party_a."""
    table = folder / "data" / "breast_cancer_party_1_train.csv"
    header, *rows = table.read_text().splitlines()
    for number in range(0, len(rows), 5):
        cells = rows[number].split(",")
        cells[1] = str(RADIUS)  # mean radius
        rows[number] = ",".join(cells)
    table.write_text("\n".join([header, *rows]) + "\n")


def sentinels_seen(folder: Path) -> list[str]:
    """Files of the SuperLink, the aggregator and whoever started the run that hold the sentinel."""
    places = [
        folder / "state" / "aggregator",
        folder / "out" / "aggregator",
        folder / "home" / "flwr",
    ]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    files += [*folder.glob("superlink*"), folder / "flwr.log"]
    assert len(files) > 5
    looks = (str(RADIUS).encode(), struct.pack("<d", RADIUS))
    return [path.name for path in files if any(look in path.read_bytes() for look in looks)]


def test_a_stop_and_kills_of_node_party_and_superlink_charge_every_round_once(
    federation: FlowerFederation,
) -> None:
    folder, run = federation.folder, "hospitals-1"
    plant(folder)
    federation.start_superlink()
    for name in PARTIES:
        federation.start_node(name, conf(name))
    params = f"train.rounds=3,{ALL_EVERY_ROUND}"
    federation.run(conf("federation"), params)
    until(lambda: rounds_kept(folder, run) >= 1, federation)
    stop_run(federation)
    until(lambda: is_free(folder / "state" / "aggregator" / run), federation)
    assert state_of_run(folder) == "stopped"
    assert federation.running.pop("flwr").wait(60) == 0
    federation.run(conf("federation"), params)
    until(lambda: "continues after round" in federation.said("flwr"), federation)
    federation.kill("party_a")  # the SuperNode, then the party beside another one
    os.kill(party_pid(folder, "party_b", run), signal.SIGKILL)
    federation.start_node("party_a", conf("party_a"))
    until(lambda: rounds_kept(folder, run) >= 2, federation)
    federation.kill("superlink")
    federation.kill("flwr")
    federation.start_superlink()
    # its ServerApp ends once it hears of it
    until(lambda: is_free(folder / "state" / "aggregator" / run), federation)
    assert federation.run(conf("federation"), params).wait(600) == 0, federation.said("flwr")[
        -3000:
    ]
    wait_for_outputs(folder, PARTIES)

    assert federation.said("flwr").count("continues after round") == 2
    rounds = indicators(folder, "aggregator")["rounds"]
    assert isinstance(rounds, list)
    assert [(row["round"], row["counted"]) for row in rounds] == [
        (number, True) for number in (1, 2, 3)
    ]
    for name in PARTIES:
        assert [row.round for row in releases(folder, name)] == [1, 2, 3]
        assert indicators(folder, name)["test_acc"]
        privacy = indicators(folder, name)["privacy"]
        assert isinstance(privacy, dict)
        assert 3.5 < privacy["epsilon"] <= 4.0
    assert sentinels_seen(folder) == []
    (folder / "out" / "aggregator" / "leak.json").write_text(f'{{"mean radius": {RADIUS}}}')
    assert sentinels_seen(folder) == ["leak.json"]


def test_tls_authenticated_nodes_and_masked_sums(tmp_path: Path) -> None:
    files = write_certificates(tmp_path / "tls")
    server = ["--ssl-ca-certfile", str(files["ca"]), "--ssl-certfile", str(files["cert"])]
    federation = FlowerFederation(
        tmp_path, [*server, "--ssl-keyfile", str(files["key"]), "--enable-supernode-auth"]
    )
    federation.trust(files["ca"])
    federation.prepare()
    try:
        federation.start_superlink()
        for name in (*PARTIES, "stranger"):
            private, public = write_node_key(tmp_path / "tls", name)
            options = [
                "--root-certificates",
                str(files["ca"]),
                "--auth-supernode-private-key",
                str(private),
            ]
            if name != "stranger":
                register = federation.flwr("supernode", "register", str(public), "demo")
                subprocess.run(
                    register, env=federation.environment("flwr"), cwd=tmp_path, check=True
                )
            recipe = "party_a" if name == "stranger" else name
            federation.start_node(name, conf(recipe.replace("party_", "party_secure_")), options)
        params = f"train.rounds=1,{ALL_EVERY_ROUND}"
        assert federation.run(conf("federation_secure"), params).wait(600) == 0, federation.said(
            "flwr"
        )[-3000:]
        wait_for_outputs(tmp_path, PARTIES)
    finally:
        federation.stop()
    for name in PARTIES:
        assert [row.round for row in releases(tmp_path, name)] == [1]
        assert "SuperNode ID" in federation.said(name)
    assert "SuperNode ID" not in federation.said("stranger")
