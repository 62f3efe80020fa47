"""Tracking with real stores: everything arrives, nothing private leaves, and no store can hold up a training."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.tracking.mlflow import run_log
from homo_dp.tracking.mlflow.charts import chart_names
from homo_dp.tracking.mlflow.sender import main as send
from homo_dp.tracking.mlflow.spool import LINES, State, read_lines
from homo_dp.tracking.mlflow.tracker import MlflowTracker
from homo_dp.train import main as train
from tests.tracking.conftest import ROUNDS, Trained

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


PARTIES = ("party_1", "party_2", "party_3")


def runs_of(client: MlflowClient, experiment: str) -> tuple[Run, dict[str, Run]]:
    """The one parent run of an experiment and its children, by party."""
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    children = {run.data.tags["party"]: run for run in found if run is not parents[0]}
    assert all(run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id for run in children.values())
    return parents[0], children


def tell(tracker: MlflowTracker, rounds: int = 3) -> None:
    tracker.start({"train.rounds": "3"}, {"run": "run-1", "unit": "record"}, ["a", "b"])
    for number in range(1, rounds + 1):
        tracker.log_round(number, {"epsilon": float(number), "test_acc": 0.5}, {"a": {"epsilon_rdp": 1.0}, "b": {}})


def spools(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*_unsent/*/{LINES}"))


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_training_is_one_parent_and_a_child_for_every_party(trained: Trained, client: MlflowClient) -> None:
    parent, children = runs_of(client, "trained")
    assert parent.info.status == "FINISHED"
    assert set(children) == set(PARTIES)
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    assert parent.data.params["privacy.target_epsilon"] == "4.0"
    assert parent.data.params["train.rounds"] == str(ROUNDS)
    tags = {key: parent.data.tags[key] for key in ("unit", "mechanism", "privacy", "data.name", "version")}
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
    for name in ("epsilon", "epsilon_pld", "epsilon_rdp", "test_loss", "test_acc", "test_auc", "seconds"):
        history = client.get_metric_history(parent.info.run_id, chart_names({name: 0}).popitem()[0])
        assert [metric.step for metric in history] == list(range(1, ROUNDS + 1)), name
        assert [metric.value for metric in history] == [row[name] for row in indicators["rounds"]], name
    for run in children.values():
        history = client.get_metric_history(run.info.run_id, "epsilon_pld")
        assert len(history) == ROUNDS
        party = indicators["privacy"]["parties"][run.data.tags["party"]]
        assert history[-1].value == party["epsilon_pld"]
        assert float(run.data.params["applied_sigma"]) == party["applied_sigma"]
    assert parent.data.metrics["train_auc"] == indicators["train_auc"]


def test_the_first_charts_are_accuracy_and_epsilon_and_constants_are_parameters(
    trained: Trained, client: MlflowClient
) -> None:
    parent, _ = runs_of(client, "trained")
    assert sorted(parent.data.metrics)[:3] == ["accuracy", "auc", "epsilon"]
    last = json.loads((trained.out / "numbers.dat").read_text())["rounds"][-1]
    for name in ("applied_sigma", "clip_norm", "bytes"):
        assert float(parent.data.params[name]) == last[name]
        assert name not in parent.data.metrics
    assert parent.data.params["rounds_done"] == str(ROUNDS)


def test_a_run_is_told_apart_by_its_name_data_source_and_description(trained: Trained, client: MlflowClient) -> None:
    parent, children = runs_of(client, "trained")
    assert re.fullmatch("lr eps4 [0-9a-f]{6}", parent.info.run_name)
    assert {run.info.run_name for run in children.values()} == {f"{p} {parent.info.run_name[-6:]}" for p in PARTIES}
    assert parent.data.tags["mlflow.note.content"].startswith("logistic regression on breast_cancer, dp_sgd, ")
    assert parent.data.tags["mlflow.source.name"]
    (used,) = parent.inputs.dataset_inputs
    assert used.dataset.name == "breast_cancer"
    experiment = client.get_experiment(parent.info.experiment_id)
    view = json.loads(experiment.tags["mlflow.sharedViewState.homo_dp"])
    assert view["selectedColumns"][:3] == ["metrics.`epsilon`", "metrics.`accuracy`", "metrics.`auc`"]


def test_the_files_plots_and_report_are_artifacts(trained: Trained, client: MlflowClient) -> None:
    parent, _ = runs_of(client, "trained")
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {path.name for path in trained.out.iterdir()} | {"plots", "report.html"} == names
    plots = {Path(item.path).stem for item in client.list_artifacts(parent.info.run_id, "plots")}
    assert plots == {"learning", "epsilon", "accuracy_epsilon", "gradient_norms", "budget", "roc", "confusion"}


@pytest.mark.parametrize("public_test", [False, True])
def test_a_store_elsewhere_gets_nothing_of_private_rows(trained: Trained, tmp_path: Path, public_test: bool) -> None:
    uri = f"http://127.0.0.1:{closed_port()}"
    tracker = MlflowTracker(uri, "x", beside=tmp_path / "i.json", public_test=public_test)
    tell(tracker)
    found = {role: trained.out / name for role, name in files_of(trained).items()}
    rounds = json.loads(found["indicators"].read_text())["rounds"]
    numbers = {"indicators": {"privacy": {}, "rounds": rounds, "ledger": None}, "ledger": [], "norms": {"edges": []}}
    tracker.draw(numbers)
    tracker.finish("FINISHED", found, {}, {"train_acc": 1.0, "test_auc": 0.5, "rounds_done": 3.0})
    (spool,) = spools(tmp_path)
    lines = [line for line, _ in read_lines(spool, 0)]
    said = {name for line in lines if line["op"] == "metrics" for values in line["runs"].values() for name in values}
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


def test_a_store_that_is_down_costs_one_warning_and_gets_everything_later(
    tmp_path: Path, empty_store: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is a file in a folder that is not one yet, so that it can come up later at the same address."""
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    tracker = MlflowTracker(f"sqlite:///{blocked}/mlflow.db", "late", beside=tmp_path / "i.json")
    with caplog.at_level(logging.WARNING):
        tell(tracker)
        assert tracker.finish("FINISHED", {}, {"statement": "kept"}) is None
    assert len(caplog.records) == 1
    assert "goes with the next run" in caplog.messages[0]
    (spool,) = spools(tmp_path)
    assert send([str(spool)]) == 1  # still down
    assert spools(tmp_path) == [spool]

    blocked.unlink()
    blocked.mkdir()
    shutil.copy(empty_store, blocked)
    assert send([str(tmp_path / "i_unsent")]) == 0
    assert "sent" in capsys.readouterr().out
    assert not (tmp_path / "i_unsent").exists()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{blocked}/mlflow.db")
    parent, children = runs_of(client, "late")
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["statement"] == "kept"
    assert [m.step for m in client.get_metric_history(parent.info.run_id, "epsilon")] == [1, 2, 3]
    assert set(children) == {"a", "b"}


def test_a_server_that_never_answers_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes connections and says nothing; the run goes on and its lines stay."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(run_log, "REMOTE_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracker = MlflowTracker(f"http://127.0.0.1:{silent.getsockname()[1]}", "x", beside=tmp_path / "i.json")
        tell(tracker)
        with caplog.at_level(logging.WARNING):
            assert tracker.finish("FINISHED", {}, {}) is None
        assert len([text for text in caplog.messages if "i_unsent" in text]) == 1
        (spool,) = spools(tmp_path)
        assert read_lines(spool, 0)[-1][0]["op"] == "close"
        wait_for(lambda: State.load(spool).error == "does not answer")


def test_what_a_killed_training_left_open_is_ended(tmp_path: Path, client: MlflowClient, store: str) -> None:
    """The training dies without a word: its sender notices, and no run is left running for ever."""
    code = (
        "import os\n"
        "from homo_dp.tracking.mlflow.tracker import MlflowTracker\n"
        f"tracker = MlflowTracker({store!r}, 'killed', beside={str(tmp_path / 'i.json')!r})\n"
        "tracker.start({}, {'run': 'run-1'}, ['a'])\n"
        "tracker.log_round(1, {'epsilon': 1.0}, {})\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    wait_for(lambda: not spools(tmp_path))
    parent, children = runs_of(client, "killed")
    assert {run.info.status for run in (parent, *children.values())} == {"FAILED"}
    assert parent.data.metrics["epsilon"] == 1.0


def test_a_run_that_never_started_leaves_nothing(tmp_path: Path, store: str, client: MlflowClient) -> None:
    tracker = MlflowTracker(store, "nothing", beside=tmp_path / "i.json")
    assert tracker.finish("FAILED", {}, {}) is None
    assert list(tmp_path.iterdir()) == []
    assert client.get_experiment_by_name("nothing") is None


def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "out").write_text("a file where the folder should be")
    tracker = MlflowTracker(store, "x", beside=tmp_path / "out" / "i.json")
    tell(tracker)
    assert tracker.finish("FINISHED", {}, {}) is None
    assert len(caplog.records) == 1


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    """Until another process has done its part; a test that waits in vain fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_the_environment_of_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    from homo_dp.tracking.mlflow.environment import set_defaults

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    set_defaults()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


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
