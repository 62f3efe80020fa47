"""A small saved model to log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from homo_dp.config.model import ModelConfig
from homo_dp.data.columns import Categorical, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.registry import build_model
from homo_dp.tracking.mlflow.model_log import save_pyfunc

COLUMNS = (Numeric("age", 0, 100, "middle"), Categorical("smokes", ("no", "yes")), Categorical("stage", (1, 2, 3)))


def saved(folder: Path, encoding: Encoding, model: dict[str, Any], classes: list[Any] | None) -> Path:
    """A model file with random weights."""
    bounds = encoding.label.bounds
    built = build_model(ModelConfig(**model), encoding.input_shape, classes, 0, bounds)
    card = ModelCard(
        built.architecture, tuple(classes or ()), "y", encoding.to_json(), threshold=0.3, target_bounds=bounds
    )
    torch.manual_seed(3)
    weights = {name: torch.randn_like(value) for name, value in built.module.state_dict().items()}
    save_model(folder / "model.bin", weights, card)
    return folder / "model.bin"


def loaded(path: Path, folder: Path) -> Any:
    import mlflow.pyfunc

    save_pyfunc(path, folder / "pyfunc")
    return mlflow.pyfunc.load_model(str(folder / "pyfunc"))
