"""A small saved model to log, what a tracker is told, and what a store then holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from homo_dp.config.model import ModelConfig
from homo_dp.data.columns import Categorical, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.registry import build_model
from homo_dp.tracking.mlflow.model_log import save_pyfunc
from homo_dp.tracking.mlflow.spool import LINES
from homo_dp.tracking.mlflow.tracker import MlflowTracker

COLUMNS = (
    Numeric("age", 0, 100, "middle"),
    Categorical("smokes", ("no", "yes")),
    Categorical("stage", (1, 2, 3)),
)


def saved(
    folder: Path, encoding: Encoding, model: dict[str, Any], classes: list[Any] | None
) -> Path:
    """A model file with random weights."""
    bounds = encoding.label.bounds
    built = build_model(ModelConfig(**model), encoding.input_shape, classes, 0, bounds)
    card = ModelCard(
        built.architecture,
        tuple(classes or ()),
        "y",
        encoding.to_json(),
        threshold=0.3,
        target_bounds=bounds,
    )
    torch.manual_seed(3)
    weights = {name: torch.randn_like(value) for name, value in built.module.state_dict().items()}
    save_model(folder / "model.bin", weights, card)
    return folder / "model.bin"


def loaded(path: Path, folder: Path) -> Any:
    import mlflow.pyfunc

    save_pyfunc(path, folder / "pyfunc")
    return mlflow.pyfunc.load_model(str(folder / "pyfunc"))


def runs_of(client: MlflowClient, experiment: str) -> tuple[Run, dict[str, Run]]:
    """The one parent run of an experiment and its children, by party."""
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    children = {run.data.tags["party"]: run for run in found if run is not parents[0]}
    assert all(
        run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id for run in children.values()
    )
    return parents[0], children


def tell(tracker: MlflowTracker, rounds: int = 3) -> None:
    tracker.start({"train.rounds": "3"}, {"run": "run-1", "unit": "record"}, ["a", "b"])
    for number in range(1, rounds + 1):
        tracker.log_round(
            number,
            {"epsilon": float(number), "test_acc": 0.5},
            {"a": {"epsilon_rdp": 1.0}, "b": {}},
        )


def spools(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*_unsent/*/{LINES}"))
