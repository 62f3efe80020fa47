"""One line for everything that pydantic refuses."""

from __future__ import annotations

import pytest

from homo_dp.config.explain import all_keys, dotted, show, takes_text
from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.round", 3, "train.rounds"),
        ("train.rounds", -1, "train.rounds=-1"),
        ("privacy.detla", 1e-5, "privacy.delta"),
        ("lerning_rate", 0.1, "train.learning_rate"),
        ("model.layers", ["a"], "model.layers"),
    ],
)
def test_the_line_names_the_key_and_what_to_do(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {key: value})
    line = str(refused.value)
    assert words in line
    assert "\n" not in line


def test_every_key_of_the_schema_is_found() -> None:
    keys = set(all_keys(Config))
    assert {"train.rounds", "privacy.target_epsilon", "data.columns", "transport.nats.servers"} <= keys


def test_values_as_they_stand_in_a_message() -> None:
    assert [show(value) for value in (None, True, 5, "5", "", "plain")] == ["null", "true", "5", '"5"', '""', "plain"]
    assert len(show("x" * 1000)) < 200
    assert dotted(("data", "columns", "mean radius")) == "data.columns.'mean radius'"


def test_which_keys_hold_text() -> None:
    assert takes_text(Config, "data.label")
    assert not takes_text(Config, "train.rounds")
