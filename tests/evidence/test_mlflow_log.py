"""An audit in MLflow: a store that is down costs a line, and its password is not in it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.evidence.mlflow_log import METRICS, log_audit


@pytest.fixture
def outcome() -> Any:
    values = dict.fromkeys(METRICS, 1.5) | {
        "attack": "canary_sum",
        "observer": "aggregator",
        "refuted": False,
    }
    return SimpleNamespace(attack="canary_sum", to_json=lambda: values | {"ceiling": None})


def test_figures_and_files_are_in_the_store(tmp_path: Path, outcome: Any) -> None:
    from mlflow.tracking import MlflowClient

    for name in ("audit.json", "roc.png"):
        (tmp_path / name).write_text("x")
    uri = f"sqlite:///{tmp_path}/m.db"
    said = log_audit(outcome, load_config(None, {"tracking.uri": uri}), tmp_path, None)
    run = MlflowClient(uri).get_run(said.split()[2])
    assert run.data.metrics == {f"audit_{name}": 1.5 for name in METRICS if name != "ceiling"}
    assert run.data.tags["audit_refuted"] == "False"


def test_a_store_that_fails_is_one_line_without_its_password(tmp_path: Path, outcome: Any) -> None:
    config = load_config(None, {"tracking.uri": "sqlite:////proc/none/secret-word.db"})
    assert log_audit(outcome, config, tmp_path, None).startswith("MLflow: not logged")
