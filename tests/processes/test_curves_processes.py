"""Curves of numbers by the aggregator's rules: parties follow its plan, and the model file says
how to score.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from homo_dp import infer
from homo_dp.config.load import config_from
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import read_card
from homo_dp.runs.simulation import Simulation
from tests.processes.parts import DATA, PARTIES, Cluster
from tests.processes.surviving import Victim, check_survivors, survive
from tests.processes.zygote import Zygote

ROWS = 5000  # declared: enough for curves


def by_rule(cluster: Cluster) -> Cluster:
    """The cluster with every setting left to the rules."""
    cluster.configs[AGGREGATOR]["train"] = {}
    # 16 gradients and 2 that mend scores; before them scales of columns and a second moment
    cluster.rounds = 20
    for party in PARTIES:
        cluster.change(party, "data", rows={party: ROWS})
    return cluster


def simulated(folder: Path) -> Simulation:
    """The same job in one process."""
    files = {party: str(DATA / f"breast_cancer_{party}_train.csv") for party in PARTIES}
    data = {"columns_from": "breast_cancer", "files": files, "rows": dict.fromkeys(PARTIES, ROWS)}
    ledger = {"ledger": str(folder / "simulated.sqlite")}
    return Simulation(config_from({"data": data, "privacy": ledger}), lambda row, numbers: None)


def test_the_rules_take_curves_and_a_killed_aggregator_takes_them_again(
    tmp_path: Path, zygote: Zygote
) -> None:
    with by_rule(Cluster(tmp_path, zygote=zygote)) as cluster:
        victim = Victim(AGGREGATOR, ["aggregator.before_plan", "aggregator.after_save"])
        survive(cluster, [victim])
        assert victim.killed_at == ["aggregator.before_plan", "aggregator.after_save"]
        check_survivors(cluster)
        assert "squares and roots of 30 numbers beside them" in cluster.log(AGGREGATOR)
    model = tmp_path / AGGREGATOR / "out" / "model.safetensors"
    run = simulated(tmp_path)
    assert read_card(model).encoding == run.federation.encoding.to_json()
    assert read_card(model).architecture == run.model.architecture
    table, scored = DATA / "breast_cancer_party_1_test.csv", tmp_path / "scored.csv"
    params = (
        f"modelFileName={model},predictFileName={scored},indicatorFileName={tmp_path / 'i.json'}"
    )
    assert infer.main(["--quiet", "--data", str(table), "--params", params]) == 0
    own = pd.read_csv(tmp_path / "party_1" / "out" / "predict.csv")
    found = pd.read_csv(scored)
    shared = [name for name in own.columns if name in found.columns]
    assert len(own) > 30
    pd.testing.assert_frame_equal(own[shared], found[shared])


@pytest.mark.parametrize(
    "keys", [{"data": {"curves": False}}, {"party": {"caps": {"columns": 89}}}]
)
def test_a_party_that_states_otherwise_or_caps_columns_refuses(
    tmp_path: Path, zygote: Zygote, keys: dict[str, dict[str, object]]
) -> None:
    with by_rule(Cluster(tmp_path, zygote=zygote)) as cluster:
        for party in PARTIES:
            for section, values in keys.items():
                cluster.change(party, section, **values)
        cluster.start_all()
        codes = cluster.wait()
        assert all(codes[party] != 0 for party in PARTIES)
        words = (
            "curves, classes or label differ" if "data" in keys else "a row would become 90 numbers"
        )
        assert words in cluster.log("party_1")
        assert not (tmp_path / AGGREGATOR / "out" / "model.safetensors").exists()
