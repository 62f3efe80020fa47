"""Which numbers become charts, and in which order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.tracking.conftest import ROUNDS, Trained
from tests.tracking.mlflow.parts import runs_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


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
