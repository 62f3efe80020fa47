"""The way from a run to its store: nothing is lost while the store is down, and nobody waits for
it.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from homo_dp.tracking.mlflow import run_log
from homo_dp.tracking.mlflow.sender import main as send
from homo_dp.tracking.mlflow.spool import State, read_lines
from homo_dp.tracking.mlflow.tracker import MlflowTracker

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
from tests.tracking.mlflow.parts import runs_of, spools, tell


def test_a_store_that_is_down_costs_one_warning_and_gets_everything_later(
    tmp_path: Path,
    empty_store: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The store is a file in a folder that is not one yet, so that it can come up later at the
    same address.
    """
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
        tracker = MlflowTracker(
            f"http://127.0.0.1:{silent.getsockname()[1]}", "x", beside=tmp_path / "i.json"
        )
        tell(tracker)
        with caplog.at_level(logging.WARNING):
            assert tracker.finish("FINISHED", {}, {}) is None
        assert len([text for text in caplog.messages if "i_unsent" in text]) == 1
        (spool,) = spools(tmp_path)
        assert read_lines(spool, 0)[-1][0]["op"] == "close"
        wait_for(lambda: State.load(spool).error == "does not answer")


def test_what_a_killed_training_left_open_is_ended(
    tmp_path: Path, client: MlflowClient, store: str
) -> None:
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


def test_a_run_that_never_started_leaves_nothing(
    tmp_path: Path, store: str, client: MlflowClient
) -> None:
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
