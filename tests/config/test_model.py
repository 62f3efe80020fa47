"""The model section: tasks that fit their model, and options for factories only."""

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.model import ModelConfig
from homo_dp.core.errors import ConfigError


def test_the_task_follows_from_the_model_unless_it_is_said() -> None:
    assert ModelConfig().task == "classification"
    assert ModelConfig(name="linear_regression").task == "regression"
    assert ModelConfig(name="mlp", task="regression").task == "regression"
    assert ModelConfig(name="linear_regression", factory="mine.own:net").task == "classification"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model.name": "logistic_regression", "model.task": "regression"}, "does classification"),
        ({"model.name": "linear_regression", "model.task": "classification"}, "does regression"),
        ({"model.options": {"a": 1}}, "only a factory takes options"),
    ],
)
def test_contradictions_are_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, keys)
