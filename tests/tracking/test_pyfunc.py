"""A served model reads typed booleans and dates as it read their text in training."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest
import torch
from mlflow.models.utils import _enforce_schema

from homo_dp.config.model import ModelConfig
from homo_dp.data.columns import Categorical, Date, Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.registry import build_model
from homo_dp.tracking.mlflow.signature import Description, describe, example_of, signature_of
from homo_dp.tracking.pyfunc import Scorer

ENCODING = Encoding(
    (
        Categorical("member", ("false", "true")),
        Date("since", "2020-01-01", "2021-12-31"),
        Numeric("age", 0, 100),
    ),
    Label("y", (0, 1)),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    built = build_model(ModelConfig(), ENCODING.input_shape, ENCODING.classes, 0)
    weights = {
        name: torch.arange(1.0, tensor.numel() + 1).reshape(tensor.shape) / 5
        for name, tensor in built.module.state_dict().items()
    }
    card = ModelCard(
        built.architecture, (0, 1), "y", ENCODING.to_json(), 0.5, None, {"private": False}
    )
    save_model(tmp_path / "m.safetensors", weights, card)
    return tmp_path / "m.safetensors"


def test_typed_and_written_values_score_the_same(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: Description = describe(model)
    schema, scorer = signature_of(found).inputs, Scorer(str(model))
    text = pd.DataFrame(
        {"member": ["false", "true"], "since": ["2020-05-01", "2021-05-01"], "age": [40.0, 50.0]}
    )
    typed = text.assign(member=[False, True], since=pd.to_datetime(text["since"]))
    objects = text.assign(member=pd.Series([False, True], dtype=object))
    expected = scorer.predict(_enforce_schema(text, schema))
    assert expected["pred_prob"].nunique() == 2
    for rows in (typed, objects):
        pd.testing.assert_frame_equal(scorer.predict(_enforce_schema(rows, schema)), expected)
    scorer.predict(_enforce_schema(example_of(found), schema))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        scorer.predict(text.assign(member="perhaps"))
    assert "'member': 2 of 2 values (100 %) are none of the declared categories" in caplog.text
