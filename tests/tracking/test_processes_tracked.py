"""Aggregator and parties as processes: each tells its own store as much as a training in one
process does.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import PARTIES, Cluster
from tests.processes.zygote import Zygote

TAGS = {
    "run": "run-1",
    "unit": "record",
    "mechanism": "dp_sgd",
    "privacy": "private",
    "version": "0.1.0",
}


def tracked(uri: str) -> tuple[Any, dict[str, list[tuple[int, float]]], set[str]]:
    """The only run of a store, the history of its metrics, and its files."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("homo_dp")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = {
        name: [
            (metric.step, metric.value)
            for metric in client.get_metric_history(run.info.run_id, name)
        ]
        for name in run.data.metrics
    }
    return run, history, {item.path for item in client.list_artifacts(run.info.run_id)}


def test_every_process_tells_its_own_store(tmp_path: Path, empty_store: Path) -> None:
    with Zygote() as zygote, Cluster(tmp_path, zygote=zygote) as cluster:
        uris = {}
        for name in (AGGREGATOR, "party_1"):
            path = tmp_path / "stores" / name / empty_store.name
            path.parent.mkdir(parents=True)
            shutil.copy(empty_store, path)
            uris[name] = f"sqlite:///{path}"
            cluster.change(name, "tracking", enabled=True, uri=uris[name])
        for name in PARTIES:
            cluster.change(name, "data", rows={name: 150}, name="hospital")
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}
        assert "MLflow run: " in cluster.log("party_1")
        rounds = list(range(1, cluster.rounds + 1))

    run, history, files = tracked(uris["party_1"])
    wanted = TAGS | {"role": "party party_1", "party": "party_1", "data.name": "hospital"}
    assert run.info.run_name == "run-1/party_1"
    assert {key: run.data.tags.get(key) for key in wanted} == wanted
    assert run.data.params["train.local_steps"] == "2"  # from the plan, not from its own config
    per_round = {"epsilon", "epsilon_pld", "epsilon_rdp", "seconds"}
    for metric in per_round | {"test_loss", "accuracy", "auc"}:
        assert [step for step, _ in history[metric]] == rounds, metric
    assert "train_acc" in history
    indicators = json.loads((tmp_path / "party_1" / "out" / "indicator.json").read_text())
    assert (
        history["epsilon_rdp"][-1][1] == indicators["privacy"]["parties"]["party_1"]["epsilon_rdp"]
    )
    assert (
        float(run.data.params["round.applied_sigma"])
        == indicators["privacy"]["parties"]["party_1"]["applied_sigma"]
    )
    assert {"indicator_gradient_norms.json", "predict.csv", "report.html", "plots"} <= files

    run, history, files = tracked(uris[AGGREGATOR])
    wanted = TAGS | {"role": "aggregator"}
    assert run.info.run_name == "run-1"
    assert {key: run.data.tags.get(key) for key in wanted} == wanted
    assert "round.bytes" in run.data.params
    for metric in ("epsilon", "epsilon_pld", "epsilon_rdp", "seconds"):
        assert [step for step, _ in history[metric]] == rounds, metric
    assert not {name for name in history if name.startswith(("train_", "test_", "acc", "auc"))}
    assert "round" not in history
    assert not files & {"predict.csv", "indicator_gradient_norms.json"}


def test_a_process_that_was_killed_goes_on_in_its_run(tmp_path: Path, empty_store: Path) -> None:
    """Killed while its sender may still be on the way to make the run, so that two senders meet."""
    store = Path(shutil.copy(empty_store, tmp_path))
    with Zygote() as zygote, Cluster(tmp_path / "cluster", zygote=zygote) as cluster:
        cluster.change("party_1", "tracking", enabled=True, uri=f"sqlite:///{store}", plots=False)
        cluster.start_all({"party_1": "party.before_handle:3"})
        assert cluster.processes["party_1"].wait(60) == -signal.SIGKILL
        cluster.start("party_1")
        assert set(cluster.wait().values()) == {0}
        rounds = set(range(1, cluster.rounds + 1))
    deadline = time.monotonic() + 60  # the first sender sends what it has in its own time
    while {step for step, _ in tracked(f"sqlite:///{store}")[1].get("epsilon", [])} != rounds:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    run, _, _ = tracked(f"sqlite:///{store}")
    assert run.info.status == "FINISHED"
