"""The description of a model, also as a stranger wrote it: sizes and types are checked before
anything is built.
"""

import json

import pytest

from homo_dp.config.model import ModelConfig
from homo_dp.core.errors import ConfigError
from homo_dp.models.architecture import LARGEST_WIDTH, Architecture, architecture_of

CARD = Architecture("mlp", (30,), 1, layers=(16, 8))


def changed(**keys: object) -> str:
    return json.dumps({**json.loads(CARD.to_json()), **keys})


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        changed(extra=1),
        changed(layers=[LARGEST_WIDTH + 1]),
        changed(layers=[1.5]),
        changed(layers=[True]),
        changed(layers=[8] * 300),
        changed(layers="88"),
        changed(input_shape=[]),
        changed(input_shape=[5000, 5000]),
        changed(name="transformer"),
        changed(activation="swish"),
        changed(bias=1),
        changed(name="cnn"),  # rows of a table are not images
    ],
)
def test_a_description_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Architecture.from_json(text)


def test_only_what_decides_the_parameters_is_kept() -> None:
    plain = architecture_of(ModelConfig(layers=(5,)), (30,), 1)
    assert (plain.layers, plain.channels) == ((), ())


def test_options_that_are_not_json_are_refused() -> None:
    with pytest.raises(ConfigError, match="plain JSON"):
        Architecture("factory", (3,), 1, factory="mine:net", options={"a": object()}).to_json()
