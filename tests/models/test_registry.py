"""Built-in models: shapes, first weights, tasks."""

from typing import Any

import pytest
import torch
from torch import nn

from homo_dp.config.model import ModelConfig
from homo_dp.core.errors import ConfigError
from homo_dp.models.registry import build_model, build_module
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy, squared_error
from homo_dp.privacy.gradients.validation import check_module

TEN = list(range(10))


@pytest.mark.parametrize(
    ("settings", "shape", "classes", "kind", "loss"),
    [
        ({"name": "logistic_regression"}, (30,), ["B", "M"], "binary", binary_logistic),
        (
            {"name": "logistic_regression", "bias": False},
            (1, 8, 8),
            TEN,
            "multiclass",
            softmax_cross_entropy,
        ),
        ({"name": "linear_regression"}, (5,), None, "regression", squared_error),
        (
            {"name": "mlp", "layers": [16, 8], "activation": "relu"},
            (64,),
            TEN,
            "multiclass",
            softmax_cross_entropy,
        ),
        (
            {"name": "mlp", "layers": [4], "task": "regression"},
            (3,),
            None,
            "regression",
            squared_error,
        ),
        ({"name": "mlp", "layers": []}, (3,), [0, 1], "binary", binary_logistic),
        ({"name": "cnn"}, (1, 8, 8), TEN, "multiclass", softmax_cross_entropy),
        (
            {"name": "cnn", "channels": [4, 8, 16, 32, 64], "layers": []},
            (3, 28, 28),
            [0, 1],
            "binary",
            binary_logistic,
        ),
    ],
)
def test_a_model_fits_its_data(
    settings: dict[str, Any],
    shape: tuple[int, ...],
    classes: list[Any] | None,
    kind: str,
    loss: object,
) -> None:
    model = build_model(ModelConfig(**settings), shape, classes)
    outputs = model.module(torch.randn(7, *shape))
    assert outputs.shape == (7, 10 if classes == TEN else 1)
    assert (model.task.kind, model.task.loss) == (kind, loss)
    assert type(model.module) is nn.Sequential
    assert not [
        part for part in model.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)
    ]


@pytest.mark.parametrize(
    "activation", ["relu", "tanh", "tempered_sigmoid", "sigmoid", "elu", "gelu"]
)
def test_built_in_models_can_be_private_and_take_the_fast_path(activation: str) -> None:
    for name, shape in (("logistic_regression", (6,)), ("mlp", (1, 8, 8)), ("cnn", (1, 8, 8))):
        settings = ModelConfig(name=name, activation=activation)  # type: ignore[arg-type]
        module = build_model(settings, shape, TEN).module
        check_module(module)
        assert chain_of(module)[0] is not None


@pytest.mark.parametrize("name", ["relu", "tanh", "tempered_sigmoid", "sigmoid", "elu", "gelu"])
def test_the_seed_alone_decides_the_first_weights(name: str) -> None:
    settings = ModelConfig(name="cnn", activation=name)  # type: ignore[arg-type]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(settings, (1, 8, 8), TEN, seed=5).module.state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    again = build_model(settings, (1, 8, 8), TEN, seed=5).module.state_dict()
    other = build_model(settings, (1, 8, 8), TEN, seed=6).module.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["convolution_1.weight"], other["convolution_1.weight"])


def test_linear_models_and_last_layers_start_at_zero() -> None:
    assert not any(p.any() for p in build_model(ModelConfig(), (30,), [0, 1]).module.parameters())
    outputs = build_model(ModelConfig(name="mlp"), (30,), TEN).module(torch.randn(4, 30))
    assert not outputs.any()


def test_shapes_only_takes_no_memory() -> None:
    architecture = build_model(ModelConfig(name="cnn"), (1, 8, 8), TEN).architecture
    module, _ = build_module(architecture, seed=None)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("settings", "shape", "classes", "words"),
    [
        ({"name": "cnn"}, (30,), [0, 1], "needs images"),
        ({"name": "cnn", "channels": []}, (1, 8, 8), [0, 1], "needs at least one block"),
        ({"name": "linear_regression"}, (30,), [0, 1], "predicts a number"),
        ({"name": "logistic_regression"}, (30,), None, "predicts classes"),
        ({"name": "logistic_regression"}, (30,), [0], "at least 2 classes"),
        ({"name": "logistic_regression"}, (30,), [0, "0"], "named once"),
        ({"name": "logistic_regression"}, (), [0, 1], "no feature columns"),
        ({"name": "mlp", "layers": [1 << 25]}, (3,), [0, 1], "whole number from 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    settings: dict[str, Any], shape: tuple[int, ...], classes: list[Any] | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        build_model(ModelConfig(**settings), shape, classes)
    assert "\n" not in str(caught.value)
