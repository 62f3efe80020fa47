"""From the `model` block of a config to a module and its task."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from homo_dp.core.errors import ConfigError
from homo_dp.core.memory import too_large
from homo_dp.models.activations import activation
from homo_dp.models.architecture import Architecture, ModelSettings, architecture_of
from homo_dp.models.builtin import cnn, linear_regression, logistic_regression, mlp
from homo_dp.models.factory import check_loss, factory_model
from homo_dp.models.fixed_features import FixedFeatures, on_features
from homo_dp.models.scattering import Scattering
from homo_dp.models.second_order_scattering import SecondOrderScattering
from homo_dp.models.task import Loss, Task, task_for

BYTES_PER_WEIGHT = 4
FRONT_ENDS: dict[str, type[FixedFeatures]] = {
    "scattering": Scattering,
    "scattering2": SecondOrderScattering,
}
# the least that any run holds: the global weights, a party's model, and its gradient or update
COPIES = 3


@dataclass(frozen=True)
class BuiltModel:
    """A module, what it is for, and the description that its file keeps."""

    module: nn.Module
    task: Task
    architecture: Architecture


def build_model(
    settings: ModelSettings,
    input_shape: Sequence[int],
    classes: Sequence[Any] | None,
    seed: int = 0,
    target_bounds: tuple[float, float] | None = None,
    public_tensors: Collection[str] = (),
) -> BuiltModel:
    """The model for data of this shape and these classes (None: regression); ``seed`` alone decides
    its first weights.

    ``target_bounds`` is the public range of a regression target, so that predictions come in its
    own units; ``public_tensors`` names buffers of a factory's model that hold no data.

    >>> from homo_dp.config.model import ModelConfig
    >>> model = build_model(ModelConfig(name="logistic_regression"), (30,), [0, 1])
    >>> model.task.kind, model.architecture.outputs, sum(p.numel() for p in model.module.parameters())
    ('binary', 1, 31)
    """
    task = task_for(classes)
    if (
        settings.factory is None
        and settings.name == "linear_regression"
        and task.kind != "regression"
    ):
        raise ConfigError(
            "model.name=linear_regression: predicts a number; for classes use logistic_regression"
        )
    if (
        settings.factory is None
        and settings.name == "logistic_regression"
        and task.kind == "regression"
    ):
        raise ConfigError(
            "model.name=logistic_regression: predicts classes; for numbers use linear_regression"
        )
    architecture = architecture_of(settings, input_shape, task.outputs)
    check_memory(settings, input_shape, classes)
    module, loss = build_module(architecture, seed, public_tensors)
    task = task_for(classes, loss, target_bounds)
    if loss is not None:
        check_loss(module, task, architecture)
    return BuiltModel(module, task, architecture)


def check_memory(
    settings: ModelSettings, input_shape: Sequence[int], classes: Sequence[Any] | None
) -> None:
    """Refuse a model that does not fit, with the memory that it would need, before any of it is
    taken.
    """
    weights = size_of(settings, input_shape, classes)
    problem = too_large(COPIES * BYTES_PER_WEIGHT * weights)
    if problem is not None:
        asked = architecture_of(settings, input_shape, 1)
        sizes = {"layers": asked.layers, "channels": asked.channels}
        given = ", ".join(f"model.{key}={list(value)}" for key, value in sizes.items() if value)
        raise ConfigError(
            f"{given or f'model.name={settings.name}'}: {problem} ({weights} weights and "
            f"{COPIES - 1} copies); make the model smaller"
        )


def size_of(
    settings: ModelSettings, input_shape: Sequence[int], classes: Sequence[Any] | None
) -> int:
    """How many parameters the model would have, without taking memory for them; 0 for a factory's
    model.

    >>> from homo_dp.config.model import ModelConfig
    >>> size_of(ModelConfig(name="mlp", layers=(100_000, 100_000)), (30,), [0, 1])
    10003300001
    """
    if settings.factory is not None:
        return 0
    with torch.device("meta"):
        module, _ = build_module(
            architecture_of(settings, input_shape, task_for(classes).outputs), seed=None
        )
    return sum(parameter.numel() for parameter in module.parameters())


def build_module(
    architecture: Architecture, seed: int | None = 0, public_tensors: Collection[str] = ()
) -> tuple[nn.Module, Loss | None]:
    """The module of an architecture, and the loss that a factory gave with it, if it did; no
    seed: shapes only.
    """
    if architecture.factory is not None:
        return factory_model(architecture, seed or 0, public_tensors)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    flatten = len(architecture.input_shape) > 1
    between = partial(activation, architecture.activation)
    inputs, outputs, bias = architecture.inputs, architecture.outputs, architecture.bias
    if architecture.name == "logistic_regression":
        return logistic_regression(inputs, outputs, generator, bias=bias, flatten=flatten), None
    if architecture.name == "linear_regression":
        return linear_regression(inputs, generator, bias=bias, flatten=flatten), None
    if architecture.name in FRONT_ENDS:
        front = FRONT_ENDS[architecture.name](architecture.input_shape)
        return on_features(front, outputs, generator, bias=bias), None
    layers = architecture.layers
    if architecture.name == "mlp":
        return (
            mlp(inputs, layers, outputs, generator, between=between, bias=bias, flatten=flatten),
            None,
        )
    shape, channels = architecture.input_shape, architecture.channels
    return cnn(shape, channels, layers, outputs, generator, between=between, bias=bias), None
