"""The sender beside a run: whatever a library prints, and whether or not the run still listens,
the store gets all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from homo_dp.tracking.mlflow import store as store_module
from homo_dp.tracking.mlflow.spool import Spool

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# MLflow prints an address whenever a run on a server ends; a store in a file is made to do the same
# here.
PRINTS = """if True:
    import sys
    from homo_dp.tracking.mlflow import sender
    from homo_dp.tracking.mlflow import store

    end = store.MlflowStore._end
    store.MlflowStore._end = lambda self, line: (print("View run at: http://...", flush=True), end(self, line))
    sys.exit(sender.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("listens", [True, False])
def test_what_a_library_prints_reaches_nobody_and_stops_nothing(
    tmp_path: Path, store: str, client: MlflowClient, listens: bool
) -> None:
    spool = Spool(tmp_path / "unsent" / "one", store, tmp_path.name)
    spool.add("run", key="training", parent=None, name="one", tags={})
    spool.add("end", key="training", status="FINISHED")
    spool.close()
    command = [sys.executable, "-c", PRINTS, "--follow", str(spool.folder)]
    sender = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert sender.stdout is not None
    if listens:
        told = json.loads(sender.stdout.read())
        assert set(told["runs"]) == {"training"}
    sender.stdout.close()  # the run is over: its end of the pipe is gone
    assert sender.wait(60) == 0
    assert not spool.folder.exists()
    experiment = client.get_experiment_by_name(tmp_path.name)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"


def test_senders_that_find_no_store_make_one_together(tmp_path: Path) -> None:
    """As when aggregator and parties are started at once in a new folder: MLflow alone leaves
    half-made tables.
    """
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/stores/mlflow.db"
    spools = [
        Spool(tmp_path / name / "unsent" / "one", uri, "together") for name in ("a", "b", "c")
    ]
    for spool in spools:
        spool.add("run", key="training", parent=None, name=spool.folder.parts[-3], tags={})
        spool.add("end", key="training", status="FINISHED")
        spool.close()
    command = [sys.executable, "-m", "homo_dp.tracking.mlflow.sender"]
    senders = [subprocess.Popen([*command, str(spool.folder)]) for spool in spools]
    assert [sender.wait(120) for sender in senders] == [0, 0, 0]
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    assert experiment is not None
    assert {run.info.run_name for run in client.search_runs([experiment.experiment_id])} == {
        "a",
        "b",
        "c",
    }


def _told(spool: Spool) -> None:
    spool.add("run", key="training", parent=None, name="one", tags={})
    spool.add("end", key="training", status="FINISHED")
    spool.close()


def _tables(path: Path) -> int:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        return int(database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0])


def test_a_sender_that_ends_while_it_makes_the_store_leaves_none_or_a_whole_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "stores" / "mlflow.db"
    spool = Spool(tmp_path / "unsent" / "one", f"sqlite:///{path}", "e")
    _told(spool)
    command = [sys.executable, "-m", "homo_dp.tracking.mlflow.sender", str(spool.folder)]
    before = os.umask(0)
    try:
        sender = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not any(
            _tables(found) > 5
            for found in path.parent.glob("*mlflow.db*")
            if "journal" not in found.name
        ):
            assert sender.poll() is None
        sender.send_signal(signal.SIGTERM)
        assert sender.wait(60) == -signal.SIGTERM
        assert not path.exists()
        assert (
            subprocess.run(command, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode
            == 0
        )
    finally:
        os.umask(before)
    assert sorted(os.listdir(path.parent)) == ["mlflow.db"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT name, status FROM runs").fetchall() == [("one", "FINISHED")]


def test_a_store_that_was_half_made_before_is_set_aside(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "mlflow.db", list[Path]()
    monkeypatch.setattr(store_module, "_make_database", made.append)
    shutil.copy(empty_store, path)
    with store_module._in_turn(f"sqlite:///{path}"):
        assert made == []
    with sqlite3.connect(path) as half:
        half.execute("CREATE TABLE _alembic_tmp_params (key TEXT)")
    with store_module._in_turn(f"sqlite:///{path}"):
        assert made == [path]
    assert os.listdir(tmp_path) == ["mlflow.db.half_made"]
