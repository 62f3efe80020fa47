"""DP-FedAvg between processes: noise at either site by the hooks of a simulation, and silence
about cohorts.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.zygote import Zygote

COMMON = {"mechanism": "dp_fedavg", "unit": "user", "population": 3, "delta": 0.1}
SITES: dict[str, tuple[bool, dict[str, Any]]] = {
    "server": (
        True,
        {"noise_at": "server", "sampling": "poisson", "sample_rate": 0.7, "noise_multiplier": 2.0},
    ),
    "parties": (
        False,
        {"noise_at": "parties", "sampling": "fixed", "cohort_size": 2, "noise_multiplier": 9.0},
    ),
}


@pytest.mark.parametrize("site", list(SITES))
def test_a_federation_of_processes_hides_its_parties(
    site: str, tmp_path: Path, zygote: Zygote
) -> None:
    trust, keys = SITES[site]
    with Cluster(tmp_path, rounds=4, zygote=zygote) as cluster:
        ledger = tmp_path / AGGREGATOR / "ledger.sqlite"
        cluster.change(
            AGGREGATOR, "privacy", **COMMON, **keys, trust_aggregator=trust, ledger=str(ledger)
        )
        for party in PARTIES:
            # delta is one for users, so the party's own config asks to hide them; epsilon: up to 4
            own = {**COMMON, **keys, "noise_multiplier": None}
            cluster.change(party, "privacy", **own, trust_aggregator=trust)
        cluster.start_all()
        codes = cluster.wait()
        assert set(codes.values()) == {0}, cluster.log(AGGREGATOR)
        assert "whoever can list the folder" in cluster.log(AGGREGATOR)
        assert "replies" not in cluster.log(AGGREGATOR)  # the size of a drawn cohort
    found = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())
    assert len(found["rounds"]) == 4
    assert all(row["clip_norm"] == 1.0 for row in found["rounds"])
    assert not {"replied", "missing", "refused"} & {key for row in found["rounds"] for key in row}
    assert found["ledger_heads"] == found["refused"] == {}
    own = {party: ledger_rows(tmp_path / party / "ledger.sqlite") for party in PARTIES}
    if trust:
        rows = ledger_rows(ledger)
        assert [(row.party, row.kind, row.observer, row.sigma) for row in rows] == [
            (AGGREGATOR, "model", "model_reader", 2.0)
        ] * 4
        assert own == {party: [] for party in PARTIES}
        assert found["privacy"]["observers"]["aggregator"]["epsilon"] is None
    else:
        assert sum(map(len, own.values())) == 8  # two parties a round, each on its own ledger
        assert {row.sigma for rows in own.values() for row in rows} == {9.0 / 2**0.5}
        assert {(row.observer, row.relation) for rows in own.values() for row in rows} == {
            ("aggregator", "replace_one")
        }
