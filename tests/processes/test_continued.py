"""An aggregator that continues a saved model: the same rule as in one process."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import homo_dp.commands.aggregator as aggregator
from homo_dp.config.load import load_config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import ModelCard, save_model
from homo_dp.runs.aggregator_process import AggregatorProcess
from tests.processes.parts import Cluster

FIRST: dict[str, Any] = {"private": True, "epsilon": 2.0, "delta": 1e-5, "data": "breast_cancer"}


def test_a_model_without_privacy_is_not_continued_as_a_private_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.change(AGGREGATOR, "data", name="breast_cancer")
    path, model = tmp_path / "aggregator.yaml", tmp_path / "first"
    path.write_text(yaml.safe_dump(cluster.configs[AGGREGATOR]))
    fresh = AggregatorProcess(load_config([str(path)]), Screen())
    weights, architecture = fresh.model.module.state_dict(), fresh.model.architecture
    card = ModelCard(
        architecture, (0, 1), "y", fresh.encoding.to_json(), privacy={**FIRST, "private": False}
    )
    save_model(model, weights, card)
    cluster.change(AGGREGATOR, "train", init_from=str(model))
    path.write_text(yaml.safe_dump(cluster.configs[AGGREGATOR]))
    with pytest.raises(
        ConfigError, match=r"trained without privacy on the same data \(data\.name=breast_cancer\)"
    ):
        aggregator.main(["--config", str(path)])
    # what rows are called is no part of the model
    encoding = {**fresh.encoding.to_json(), "id": "patient"}
    save_model(model, weights, ModelCard(architecture, (0, 1), "y", encoding, privacy=FIRST))
    process = AggregatorProcess(load_config([str(path)]), Screen())
    assert process.earlier is not None
    assert [one["epsilon"] for one in process.earlier.ancestors] == [2.0]
