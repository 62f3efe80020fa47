"""Jobs of other mechanisms on one SuperLink, at parties that serve: NbAFL and DP-FedAvg under
masks, and a late join.

Minutes: .venv-flower/bin/python -m pytest -m "flower and slow" --confcutdir=tests/flower
tests/flower
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pipelines.demo_federation import PARTIES, ROOT
from pipelines.demo_flower import FlowerFederation, wait_for_outputs
from tests.flower.test_flower import (
    conf,
    federation,
    indicators,
    is_free,
    releases,
    rounds_kept,
    stop_run,
    until,
)

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(1800)]
__all__ = ["federation"]
USERS = 60  # of each party
NBAFL = (
    "privacy={mechanism: nbafl, secure_aggregation: true, delta: 1e-5},train={rounds: 2, "
    "local_steps: 2, "
    + "batch_size: 50},nbafl={epsilon: 10, clip_norm: 3, exposures: 1, min_dataset_size: 100, "
    "noise_at_upload: false}"
)
FEDAVG = (
    "train={rounds: 1, local_steps: 2, batch_size: 50},privacy={mechanism: dp_fedavg, unit: user, "
    + "noise_at: parties, secure_aggregation: true, "
)
ONE_EACH = FEDAVG + "population: 3, sampling: everyone, delta: 0.1, noise_multiplier: 20}"
MANY = (
    FEDAVG
    + "population: 180, sampling: poisson, cohort_size: 60, delta: 1e-3, noise_multiplier: 4}"
)


def write_party(folder: Path, name: str, delta: float, users: bool = False) -> str:
    """A party that serves whatever comes, in whose table a column may say whose each row is."""
    config: dict[str, Any] = yaml.safe_load(
        Path(conf(name.replace("party_", "party_secure_"))).read_text()
    )
    del config["federation"]["run"]
    config["party"] |= {
        "serve": {"approve": "always"},
        "caps": {"epsilon": 1e9, "secure_aggregation": "required"},
    }
    config["privacy"] |= {"delta": delta, "lifetime_epsilon": 1e9}
    if delta > 1e-5:  # of users: rows have no say in it
        del config["data"]["rows"]
        config["data"]["counts"] = "public"
    if users:
        table = pd.read_csv(ROOT / "data" / Path(config["data"]["files"][name]).name)
        table["patient"] = [f"{name}-{number % USERS}" for number in range(len(table))]
        table.to_csv(folder / f"{name}.csv", index=False)
        config["data"] = {
            "name": name,
            "files": {name: f"{name}.csv"},
            "columns_from": "breast_cancer",
        }
        config["data"] |= {"user_column": "patient", "test_fraction": 0.0, "counts": "public"}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def job(federation: FlowerFederation, run: str, params: str) -> dict[str, Any]:
    """Write the aggregator's config of a job and run it to its end; its privacy statement."""
    path = federation.folder / f"{run}.yaml"
    config: dict[str, Any] = yaml.safe_load(Path(conf("federation_secure")).read_text())
    for part in yaml.safe_load("{" + params.replace("=", ": ") + "}").items():
        config[part[0]] = part[1]
    config["federation"] |= {"run": run, "min_parties": 3, "round_timeout": 450}
    config["output"] = {
        "indicatorFileName": f"out/{run}.json",
        "modelFileName": f"out/{run}.safetensors",
    }
    path.write_text(yaml.safe_dump(config))
    assert federation.run(str(path)).wait(600) == 0, federation.said("flwr")[-3000:]
    assert (federation.folder / "out" / f"{run}.json").exists(), federation.said("flwr")[-3000:]
    until(
        lambda: all(
            (federation.folder / "out" / name / run / "indicator.json").exists() for name in PARTIES
        ),
        federation,
    )
    found: dict[str, Any] = json.loads((federation.folder / "out" / f"{run}.json").read_text())
    return found


def test_nbafl_and_dp_fedavg_under_masks_at_parties_that_serve(
    federation: FlowerFederation,
) -> None:
    folder = federation.folder
    federation.start_superlink()
    for name in PARTIES:
        federation.start_node(name, write_party(folder, name, 1e-5))
    found = job(federation, "nbafl-1", NBAFL)
    assert found["rounds_counted"] == 2
    for name in PARTIES:
        assert sorted(row.kind for row in releases(folder, name)) == ["noise", "update"]
    for run, params, delta in (("users-1", ONE_EACH, 0.1), ("users-2", MANY, 1e-3)):
        for name in PARTIES:  # read anew when the party of a run is started
            write_party(folder, name, delta, users=run == "users-2")
        privacy = job(federation, run, params)["privacy"]
        assert privacy["unit"] == "user"
        assert privacy["observers"]["aggregator"] == privacy["observers"]["model_reader"]
        for name in PARTIES:
            rows = [row for row in releases(folder, name) if row.run == run]
            assert [(row.round, row.kind, row.unit) for row in rows] == [(1, "update", "user")]


def test_a_node_that_comes_late_joins_where_the_run_is(federation: FlowerFederation) -> None:
    folder, run, rounds = federation.folder, "hospitals-1", 6
    federation.start_superlink()
    for name in PARTIES[:2]:
        federation.start_node(name, conf(name))
    params = f"train.rounds={rounds},federation.min_parties=2,federation.round_timeout="
    # how long the first round waits for the one that is not there
    federation.run(conf("federation"), params + "20")
    until(lambda: rounds_kept(folder, run) >= 1, federation)
    stop_run(federation)
    until(lambda: is_free(folder / "state" / "aggregator" / run), federation)
    before = rounds_kept(folder, run)
    assert before < rounds
    # from here on nobody is late for being slow
    running = federation.run(conf("federation"), params + "450")
    until(lambda: "continues after round" in federation.said("flwr"), federation)
    federation.start_node(PARTIES[2], conf(PARTIES[2]))
    assert running.wait(750) == 0, federation.said("flwr")[-3000:]
    wait_for_outputs(folder, PARTIES)
    answered = {name: [row.round for row in releases(folder, name)] for name in PARTIES}
    late = answered[PARTIES[2]]
    assert late == list(range(late[0], rounds + 1))
    assert late[0] > before
    counted = indicators(folder, "aggregator")["rounds"]
    assert isinstance(counted, list)
    # of a machine that is busy, one of the others may have been late for a round before
    for name in PARTIES:
        assert len(set(answered[name])) == len(answered[name])
        assert {row["round"] for row in counted if name in row["replied"]} <= set(answered[name])
