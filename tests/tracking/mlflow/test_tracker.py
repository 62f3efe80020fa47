"""Tracking with real stores: everything arrives, nothing private leaves, and no store can hold
up a training.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.tracking.mlflow.charts import chart_names
from homo_dp.tracking.mlflow.spool import read_lines
from homo_dp.tracking.mlflow.tracker import MlflowTracker
from homo_dp.train import main as train
from tests.ports import free_port
from tests.tracking.conftest import ROUNDS, Trained
from tests.tracking.mlflow.parts import runs_of, spools, tell

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


PARTIES = ("party_1", "party_2", "party_3")


def test_a_training_is_one_parent_and_a_child_for_every_party(
    trained: Trained, client: MlflowClient
) -> None:
    parent, children = runs_of(client, "trained")
    assert parent.info.status == "FINISHED"
    assert set(children) == set(PARTIES)
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    assert parent.data.params["privacy.target_epsilon"] == "4.0"
    assert parent.data.params["train.rounds"] == str(ROUNDS)
    tags = {
        key: parent.data.tags[key]
        for key in ("unit", "mechanism", "privacy", "data.name", "version")
    }
    assert tags == {
        "unit": "record",
        "mechanism": "dp_sgd",
        "privacy": "private",
        "data.name": "breast_cancer",
        "version": "0.1.0",
    }
    assert "epsilon" in parent.data.tags["statement"]
    assert not spools(trained.out)


def test_every_round_has_its_numbers(trained: Trained, client: MlflowClient) -> None:
    parent, children = runs_of(client, "trained")
    indicators = json.loads((trained.out / "numbers.dat").read_text())
    for name in (
        "epsilon",
        "epsilon_pld",
        "epsilon_rdp",
        "test_loss",
        "test_acc",
        "test_auc",
        "seconds",
    ):
        chart = chart_names({name: 0}).popitem()[0]
        history = client.get_metric_history(parent.info.run_id, chart)
        assert [metric.step for metric in history] == list(range(1, ROUNDS + 1)), name
        assert [metric.value for metric in history] == [
            chart_names({name: row[name]})[chart] for row in indicators["rounds"]
        ], name
    for run in children.values():
        history = client.get_metric_history(run.info.run_id, "epsilon_pld")
        assert len(history) == ROUNDS
        party = indicators["privacy"]["parties"][run.data.tags["party"]]
        assert history[-1].value == party["epsilon_pld"]
        assert float(run.data.params["round.applied_sigma"]) == party["applied_sigma"]
    assert parent.data.metrics["train_auc"] == indicators["train_auc"]


def test_a_run_is_told_apart_by_its_name_data_source_and_description(
    trained: Trained, client: MlflowClient
) -> None:
    parent, children = runs_of(client, "trained")
    assert re.fullmatch("lr eps4 [0-9a-f]{6}", parent.info.run_name)
    assert {run.info.run_name for run in children.values()} == {
        f"{p} {parent.info.run_name[-6:]}" for p in PARTIES
    }
    assert parent.data.tags["mlflow.note.content"].startswith(
        "logistic regression on breast_cancer, dp_sgd, "
    )
    assert parent.data.tags["mlflow.source.name"]
    (used,) = parent.inputs.dataset_inputs
    assert used.dataset.name == "breast_cancer"
    experiment = client.get_experiment(parent.info.experiment_id)
    view = json.loads(experiment.tags["mlflow.sharedViewState.homo_dp"])
    assert view["selectedColumns"][:3] == [
        "metrics.`epsilon`",
        "metrics.`accuracy`",
        "metrics.`auc`",
    ]


def test_the_files_plots_and_report_are_artifacts(trained: Trained, client: MlflowClient) -> None:
    parent, _ = runs_of(client, "trained")
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {path.name for path in trained.out.iterdir()} | {"plots", "report.html"} == names
    plots = {Path(item.path).stem for item in client.list_artifacts(parent.info.run_id, "plots")}
    assert plots == {
        "learning",
        "epsilon",
        "accuracy_epsilon",
        "gradient_norms",
        "budget",
        "roc",
        "confusion",
    }


@pytest.mark.parametrize("public_test", [False, True])
def test_a_store_elsewhere_gets_nothing_of_private_rows(
    trained: Trained, tmp_path: Path, public_test: bool
) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    tracker = MlflowTracker(uri, "x", beside=tmp_path / "i.json", public_test=public_test)
    tell(tracker)
    found = {role: trained.out / name for role, name in files_of(trained).items()}
    rounds = json.loads(found["indicators"].read_text())["rounds"]
    numbers = {
        "indicators": {"privacy": {}, "rounds": rounds, "ledger": None},
        "ledger": [],
        "norms": {"edges": []},
    }
    tracker.draw(numbers)
    tracker.finish("FINISHED", found, {}, {"train_acc": 1.0, "test_auc": 0.5, "rounds_done": 3.0})
    (spool,) = spools(tmp_path)
    lines = [line for line, _ in read_lines(spool, 0)]
    said = {
        name
        for line in lines
        if line["op"] == "metrics"
        for values in line["runs"].values()
        for name in values
    }
    assert {"epsilon", "epsilon_rdp"} <= said
    assert {"rounds_done": 3.0} in [line["params"] for line in lines if line["op"] == "params"]
    assert "train_acc" not in said
    assert ("accuracy" in said) == ("auc" in said) == public_test
    assert not said & {"test_acc", "test_auc"}
    kept = {path.name for path in (spool / "files").iterdir()}
    assert not kept & {"scores.txt", "numbers_gradient_norms.json"}
    left = json.loads((spool / "files" / "numbers.dat").read_text())
    assert not [key for key in left if key.startswith(("train_", "test_"))]
    drawn = next(line for line in lines if line["op"] == "draw")["record"]
    assert drawn["norms"] is None
    assert ("test_acc" in drawn["indicators"]["rounds"][0]) == public_test


def files_of(trained: Trained) -> dict[str, str]:
    return {
        "predictions": "scores.txt",
        "indicators": "numbers.dat",
        "model": "weights",
        "config": "numbers_config.yaml",
        "ledger": "numbers_ledger.json",
        "gradient_norms": "numbers_gradient_norms.json",
    }


def test_a_refused_run_says_why(
    store: str, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = f"tracking.uri={store},tracking.experiment=refused,privacy.lifetime_epsilon=1,train.rounds=2"
    with pytest.raises(BudgetExceeded):
        train(["--quiet", "--params", keys])
    parent, _ = runs_of(client, "refused")
    assert parent.info.status == "FAILED"
    assert "lifetime_epsilon=1" in parent.data.tags["reason"]
    assert "lifetime_epsilon=1" in parent.data.tags["mlflow.note.content"]
