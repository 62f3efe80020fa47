"""The model as MLflow serves it: MLflow calls ``_load_pyfunc`` with our model file, and nothing is
unpickled.

``mlflow models predict -m models:/NAME/1 --env-manager local -i rows.csv -t csv`` and
``mlflow.pyfunc.load_model`` both end here. A model from a factory runs the factory's code, so it
loads only where HOMO_DP_TRUST_FACTORY=1 is set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from homo_dp.core.errors import DataError, printable
from homo_dp.data.encoding import Encoding
from homo_dp.data.unexpected_values import WARN_ABOVE, Strays
from homo_dp.models.files import load_model
from homo_dp.models.scoring import outputs_of
from homo_dp.tracking.mlflow.signature import output_columns

TRUST = "HOMO_DP_TRUST_FACTORY"
log = logging.getLogger(__name__)


class Scorer:
    """A saved model that turns raw rows (or images) into a table of predictions, named as in the
    predictions file.
    """

    def __init__(self, path: str) -> None:
        self.model = load_model(path, trust_factory=os.environ.get(TRUST) == "1")
        self.encoding = Encoding.from_json(self.model.card.encoding)
        self.model.check_encoding(self.encoding.input_shape, self.encoding.classes)

    def predict(self, rows: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Predictions of all rows; ``params={"threshold": 0.3}`` moves the threshold between two
        classes.
        """
        threshold = float((params or {}).get("threshold", self.model.card.threshold))
        outputs = outputs_of(self.model.module, self._encoded(rows))
        task, answers = self.model.task, self.model.task.predictions(outputs, threshold).numpy()
        names = output_columns(task.classes)
        if task.kind == "regression":
            return pd.DataFrame({"pred_y": answers.astype(np.float64)})
        probabilities = task.probabilities(outputs).double().numpy()
        columns: dict[str, Any] = {}
        if task.kind == "multiclass":
            columns = dict(zip(names, probabilities.T, strict=False))
            probabilities = probabilities[np.arange(len(answers)), answers]
        kept = task.classes if names["pred_y"] != "string" else tuple(map(str, task.classes))
        return pd.DataFrame(
            {**columns, "pred_prob": probabilities, "pred_y": np.array(kept)[answers]}
        )

    def _encoded(self, rows: Any) -> torch.Tensor:
        if self.encoding.pixel_bounds is not None:
            return self.encoding.encode_images(np.asarray(rows), "input")
        if not isinstance(rows, pd.DataFrame):
            raise DataError(
                "input: this model takes a table with named columns; give a pandas DataFrame"
            )
        strays = Strays()
        encoded = self.encoding.encode(rows, "input", strays=strays)
        for warning in strays.warnings(WARN_ABOVE):
            log.warning("%s", printable(warning))
        return encoded


def _load_pyfunc(path: str) -> Scorer:
    """What MLflow calls to open a model with ``loader_module: homo_dp.tracking.pyfunc``."""
    return Scorer(path)
