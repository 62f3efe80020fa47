"""DP-FedAvg under masks between processes: parties that are users, and parties that hold many."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import DATA, PARTIES, Cluster, ledger_rows
from tests.processes.surviving import Victim, survive
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

USERS = 60  # of each holder
ONE_EACH: dict[str, Any] = {
    "population": 3,
    "sampling": "everyone",
    "delta": 0.1,
    "noise_multiplier": 20.0,
}
MANY: dict[str, Any] = {"population": 180, "sampling": "poisson", "cohort_size": 60, "delta": 1e-3}
ADAPTIVE: dict[str, Any] = {"clipping": "adaptive", "clip_norm": 0.5, "noise_multiplier": 4.0}


def masked_users(
    folder: Path, zygote: Zygote, keys: dict[str, Any], nats: NatsServer | None = None
) -> Cluster:
    cluster = Cluster(folder, nats, 2, zygote)
    asked = {
        "mechanism": "dp_fedavg",
        "unit": "user",
        "noise_at": "parties",
        "secure_aggregation": True,
    }
    cluster.change(AGGREGATOR, "privacy", **asked, **keys)
    for party in PARTIES:
        # delta is one for users, so the party's own config asks to hide them; epsilon: up to 4
        cluster.change(party, "privacy", **asked, **keys | {"noise_multiplier": None})
        cluster.change(
            party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
        )
        if keys is not ONE_EACH:
            hold_users(cluster, party)
    return cluster


def hold_users(cluster: Cluster, party: str) -> None:
    """Give a party a table in which a column says whose each row is."""
    cluster.folder.mkdir(exist_ok=True)
    table = pd.read_csv(DATA / f"breast_cancer_{party}_train.csv")
    table["patient"] = [f"{party}-{number % USERS}" for number in range(len(table))]
    path = cluster.folder / f"{party}.csv"
    table.to_csv(path, index=False)
    cluster.change(
        party,
        "data",
        files={party: str(path)},
        test_file=None,
        user_column="patient",
        test_fraction=0.0,
    )


def check_complete(folder: Path) -> dict[str, Any]:
    for party in PARTIES:
        rows = ledger_rows(folder / party / "ledger.sqlite")
        assert [(row.round, row.unit, row.observer) for row in rows] == [
            (n, "user", "aggregator") for n in (1, 2)
        ]
        assert all("shared by 3 parties" in row.noise for row in rows)
    found: dict[str, Any] = json.loads((folder / AGGREGATOR / "out" / "indicator.json").read_text())
    assert found["rounds_counted"] == 2
    privacy = found["privacy"]
    assert privacy["observers"]["aggregator"] == privacy["observers"]["model_reader"]
    assert privacy["noise_shared_by"] == 3
    return found


@pytest.mark.parametrize(
    "keys", [ONE_EACH, MANY | ADAPTIVE], ids=["one user each", "many users each"]
)
def test_the_aggregator_learns_what_a_reader_of_the_model_learns(
    tmp_path: Path, zygote: Zygote, keys: dict[str, Any]
) -> None:
    with masked_users(tmp_path, zygote, keys) as cluster:
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log("party_1") + cluster.log(AGGREGATOR)
    found = check_complete(tmp_path)
    if keys is not ONE_EACH:
        assert found["rounds"][1]["clip_norm"] != 0.5  # it moved by what the masked bits said


@pytest.mark.faults
def test_users_over_nats_with_kills(tmp_path: Path, zygote: Zygote) -> None:
    victims = [
        Victim("party_1", ["outbox.after_charge", "party.before_sums:1"]),
        Victim(AGGREGATOR, ["aggregator.received:5", "aggregator.before_save"]),
    ]
    with (
        NatsServer(tmp_path / "nats", PARTIES) as server,
        masked_users(tmp_path, zygote, MANY | ADAPTIVE, server) as cluster,
    ):
        survive(cluster, victims, 100)
    assert [victim.unused for victim in victims] == [[], []]
    check_complete(tmp_path)
