"""Lines into a store: once each, however often they are sent, and past what the store refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from homo_dp.tracking.mlflow.spool import Spool, State, read_lines
from homo_dp.tracking.mlflow.store import MlflowStore

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


@pytest.fixture
def spool(tmp_path: Path, store: str) -> Spool:
    made = Spool(tmp_path / "spool", store, tmp_path.name)
    made.add("run", key="training", parent=None, name="one", tags={"unit": "record"})
    made.add("run", key="party/a", parent="training", name="two", tags={})
    made.add(
        "params",
        key="training",
        params={"data.columns.größe (cm).bounds": "[0, 1]", "p": "x" * 9000},
    )
    for step in range(1, 1201):
        made.add(
            "metrics", step=step, runs={"training": {"loss": float(step)}, "unknown": {"loss": 1.0}}
        )
    made.add("metrics", step=1, runs={"training": {"bad": float("nan")}})
    made.add("end", key="training", status="FINISHED")
    return made


def sent(spool: Spool, store: str, state: State) -> MlflowStore:
    made = MlflowStore(spool.folder, store, spool.folder.parent.name, state)
    made.apply(read_lines(spool.folder, state.offset))
    return made


def test_a_line_is_sent_once(spool: Spool, store: str, client: MlflowClient) -> None:
    state = State.load(spool.folder)
    sent(spool, store, state)
    again = State.load(spool.folder)
    assert again == state
    assert read_lines(spool.folder, again.offset) == []
    run = client.get_run(again.runs["training"])
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 1200
    assert run.data.params["data.columns.größe _cm_.bounds"] == "[0, 1]"
    assert len(run.data.params["p"]) == 6000
    assert run.info.status == "FINISHED"


def test_a_lost_answer_makes_no_second_run(spool: Spool, store: str, client: MlflowClient) -> None:
    """The store has made the run, but nobody knows: the state on disk is from before."""
    first = State.load(spool.folder)
    sent(spool, store, first)
    forgetful = State(offset=read_lines(spool.folder, 0)[0][1], experiment_id=first.experiment_id)
    sent(spool, store, forgetful)
    assert forgetful.runs == first.runs
    assert len(client.search_runs([first.experiment_id])) == 2
    assert len(client.get_metric_history(first.runs["training"], "loss")) == 1200


def test_what_a_store_refuses_does_not_keep_the_rest_back(
    spool: Spool, store: str, client: MlflowClient
) -> None:
    spool.add("params", key="training", params={"p": "another value"})
    spool.add("artifact", key="training", path="files/gone.csv")
    spool.add("tags", key="training", tags={"after": "all"})
    state = State()
    sent(spool, store, state)
    assert len(state.refused) == 2
    assert client.get_run(state.runs["training"]).data.tags["after"] == "all"


def test_half_a_line_is_left_for_later(spool: Spool) -> None:
    lines = read_lines(spool.folder, 0)
    with (spool.folder / "lines.jsonl").open("a") as file:
        file.write('{"op": "met')
    assert read_lines(spool.folder, 0) == lines
    assert read_lines(spool.folder, lines[-1][1]) == []


def test_an_open_run_is_ended_with_its_writer(
    spool: Spool, store: str, client: MlflowClient
) -> None:
    state = State()
    sent(spool, store, state).end_all("FAILED", 1_900_000_000_000)
    assert client.get_run(state.runs["party/a"]).info.status == "FAILED"
    assert client.get_run(state.runs["training"]).info.status == "FINISHED"


def test_a_run_of_before_goes_on(
    spool: Spool, store: str, client: MlflowClient, tmp_path: Path
) -> None:
    state = State()
    sent(spool, store, state)
    later = Spool(tmp_path / "later", store, tmp_path.name)
    later.add("run", key="again", parent=None, name="one", tags={}, existing=state.runs["training"])
    later.add("run", key="gone", parent=None, name="one", tags={}, existing="0" * 32)
    found = State()
    sent(later, store, found)
    assert found.runs["again"] == state.runs["training"]
    assert client.get_run(found.runs["again"]).info.status == "RUNNING"
    assert found.runs["gone"] != "0" * 32


@pytest.mark.parametrize(
    "order", [(1, 2), (2, 1)], ids=["as they ran", "the first was left behind"]
)
def test_a_process_that_is_started_again_goes_on_in_its_run(
    tmp_path: Path, store: str, client: MlflowClient, order: tuple[int, ...]
) -> None:
    """Killed after round 2, started again with another setting: one run, all rounds; the newest
    has the last word.
    """
    for number, status in ((1, "FAILED"), (2, "FINISHED")):
        spool = Spool(tmp_path / f"spool-{number}", store, tmp_path.name)
        spool.add("run", key="training", parent=None, name="one", tags={}, mark="a-mark")
        spool.add(
            "params",
            key="training",
            params={"rounds": "4", "patience": str(number), f"only.{number}": "1"},
        )
        for step in (2 * number - 1, 2 * number):
            spool.add("metrics", step=step, runs={"training": {"loss": float(step)}})
        spool.add("end", key="training", status=status)
    states = {}
    for number in order:
        folder = tmp_path / f"spool-{number}"
        states[number] = State.load(folder)
        MlflowStore(folder, store, tmp_path.name, states[number]).apply(read_lines(folder, 0))
    (run,) = client.search_runs([states[1].experiment_id])
    assert run.info.status == "FINISHED"
    assert {metric.step for metric in client.get_metric_history(run.info.run_id, "loss")} == {
        1,
        2,
        3,
        4,
    }
    assert {"rounds", "patience", "only.1", "only.2"} <= run.data.params.keys()
    assert run.data.params["patience"] == str(order[0])  # MLflow lets no parameter change
    assert not states[1].refused + states[2].refused


def test_files_of_private_rows_stay_where_a_local_store_keeps_its_files_elsewhere(
    tmp_path: Path, store: str, client: MlflowClient
) -> None:
    client.create_experiment(tmp_path.name, artifact_location="s3://bucket/folder")
    spool = Spool(tmp_path / "spool", store, tmp_path.name)
    spool.add("run", key="training", parent=None, name="one", tags={})
    for role in ("predictions", "gradient_norms", "indicators", "ledger", None):
        spool.add("artifact", key="training", path="files/x", role=role)
    spool.add("pictures", key="training", files={"indicators": "files/x"})
    state = State()
    sent(spool, store, state)
    assert len(state.refused) == 6
    assert all(
        "must stay on this machine" in reason and "s3://bucket" in reason
        for reason in state.refused
    )
