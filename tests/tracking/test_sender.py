"""The sender beside a run: whatever a library prints, and whether or not the run still listens, the store gets all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from homo_dp.tracking.spool import Spool

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# MLflow prints an address whenever a run on a server ends; a store in a file is made to do the same here.
PRINTS = """if True:
    import sys
    from homo_dp.tracking import sender, store

    end = store.Store._end
    store.Store._end = lambda self, line: (print("View run at: http://...", flush=True), end(self, line))
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
    """As when aggregator and parties are started at once in a new folder: MLflow alone leaves half-made tables."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/stores/mlflow.db"
    spools = [Spool(tmp_path / name / "unsent" / "one", uri, "together") for name in ("a", "b", "c")]
    for spool in spools:
        spool.add("run", key="training", parent=None, name=spool.folder.parts[-3], tags={})
        spool.add("end", key="training", status="FINISHED")
        spool.close()
    command = [sys.executable, "-m", "homo_dp.tracking.sender"]
    senders = [subprocess.Popen([*command, str(spool.folder)]) for spool in spools]
    assert [sender.wait(120) for sender in senders] == [0, 0, 0]
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("together")
    assert experiment is not None
    assert {run.info.run_name for run in client.search_runs([experiment.experiment_id])} == {"a", "b", "c"}
