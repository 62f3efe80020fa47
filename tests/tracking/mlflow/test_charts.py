"""Which numbers become charts, and in which order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from homo_dp.tracking.mlflow.charts import chart_names
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
        assert float(parent.data.params[f"round.{name}"]) == last[name]
        assert name not in parent.data.params, "a comparison would begin with it"
        assert name not in parent.data.metrics
    assert parent.data.params["rounds_done"] == str(ROUNDS)


def test_the_first_columns_have_figures_that_fit() -> None:
    found = chart_names({"test_acc": 0.956140350877193, "test_auc": 1.0, "epsilon": 3.9918001})
    assert found == {"accuracy": 0.9561, "auc": 1.0, "epsilon": 3.992}
    assert chart_names({"epsilon": float("inf"), "test_loss": 0.123456}) == {
        "epsilon": float("inf"),
        "test_loss": 0.123456,
    }
