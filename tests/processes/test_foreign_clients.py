"""Clients of another framework as parties between processes: our messages, clip, noise and
ledger around their fit.
"""

from __future__ import annotations

from pathlib import Path

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import load_model
from tests.processes.foreign_client import ROWS
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.zygote import Zygote

MODEL: dict[str, object] = {
    "factory": "homo_dp.models.arrays:array_model",
    "options": {"shapes": [[2, 2], [2]]},
}
DATA: dict[str, object] = {
    "columns": {"none": {"bounds": [0, 1]}},
    "classes": [0, 1],
    "bounds_source": "public",
    "name": "clients",
}
GONE: dict[str, object] = {"files": {}, "columns_from": None, "embedded": None, "test_file": None}
PRIVACY = {
    "mechanism": "dp_fedavg",
    "unit": "user",
    "population": 3,
    "delta": 0.1,
    "clip_norm": 50.0,
}
NOISE = {"noise_at": "parties", "sampling": "fixed", "cohort_size": 2, "noise_multiplier": 0.001}


def test_a_federation_of_foreign_clients(tmp_path: Path, zygote: Zygote) -> None:
    with Cluster(tmp_path, rounds=4, zygote=zygote) as cluster:
        cluster.change(AGGREGATOR, "privacy", **PRIVACY, **NOISE)
        cluster.change(AGGREGATOR, "model", **MODEL)
        cluster.change(AGGREGATOR, "data", **GONE, **DATA)
        for party in PARTIES:
            cluster.change(party, "privacy", delta=0.1, target_epsilon=1e9)
            cluster.change(party, "model", **MODEL)
            cluster.change(party, "data", **GONE, **DATA)
            cluster.change(party, "party", client="tests.processes.foreign_client:make")
        cluster.start_all()
        codes = cluster.wait()
        assert set(codes.values()) == {0}, cluster.log("party_1") + cluster.log(AGGREGATOR)
        logs = "".join(cluster.log(name) for name in (AGGREGATOR, *PARTIES))
        assert str(ROWS) not in logs
    rows = {party: ledger_rows(tmp_path / party / "ledger.sqlite") for party in PARTIES}
    assert sum(map(len, rows.values())) == 8  # two parties a round, each on its own ledger
    weights = load_model(
        tmp_path / AGGREGATOR / "out" / "model.safetensors", True
    ).module.state_dict()
    # from zero, four rounds of one
    assert all(abs(float(value) - 4.0) < 1.5 for value in weights["array_0001"])
