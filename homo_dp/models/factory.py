"""The user's own model: a function that returns a torch module, and a loss if it likes; checked
before training.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from homo_dp.core.errors import ConfigError, error_text
from homo_dp.models.architecture import Architecture
from homo_dp.models.task import Loss, Task
from homo_dp.privacy.gradients.validation import has_opacus_layers


def factory_model(
    architecture: Architecture, seed: int = 0, public_tensors: Collection[str] = ()
) -> tuple[nn.Module, Loss | None]:
    """Call the factory and check what it returns: this runs the user's code.

    The function may take any of ``input_shape``, ``outputs`` and the keys of ``model.options`` as
    arguments, and returns a `torch.nn.Module` or a pair of module and loss per record. ``seed``
    decides its initial weights; ``public_tensors`` names the buffers that hold no data.
    """
    path = architecture.factory or ""
    function = load_function(path)
    arguments = _arguments(path, function, architecture)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = function(**arguments)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"model.factory={path}: failed with {type(error).__name__}: "
                f"{error_text(error, 300)}; {_given(architecture)}"
            ) from error
        module, loss = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, nn.Module) or not (loss is None or callable(loss)):
            raise ConfigError(
                f"model.factory={path}: returned {type(made).__name__}; return a torch.nn.Module, "
                "or (module, loss) with loss(outputs, labels) of shape (n,)"
            )
        try:
            module = validate_private(module, architecture.fix, public_tensors)
        except ValueError as error:
            raise ConfigError(f"model.factory={path}: {error_text(error, 300)}") from error
        _check_outputs(path, module, architecture)
    return module, loss


def load_function(path: str) -> Callable[..., Any]:
    """Import ``package.module:function``; modules in the working directory are found."""
    name, _, attribute = path.partition(":")
    if not name or not attribute.isidentifier():
        raise ConfigError(f"model.factory={path}: write it as package.module:function")
    with _working_directory_importable():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"model.factory={path}: cannot import {name} ({error_text(error, 300)}); install "
                "it or run from its folder"
            ) from error
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"model.factory={path}: importing {name} failed with {type(error).__name__}: "
                f"{error_text(error, 300)}"
            ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(
            f"model.factory={path}: {name} has no function {attribute}; check the spelling"
        )
    result: Callable[..., Any] = function
    return result


def validate_private(
    module: nn.Module, fix: bool = False, public_tensors: Collection[str] = ()
) -> nn.Module:
    """The module, if each record's gradient can be bounded on its own; ``fix`` replaces what cannot
    be private.

    Guarantees:
        - the check is the one that private training itself makes (Opacus' validator, and every
          layer and buffer);
        - with ``fix``, everybody who builds the model gets the same fixed model.
    """
    from homo_dp.privacy.gradients.validation import (
        compatible_module,  # imports Opacus, which a built-in model does not need
    )

    _check_shared(_with_one_name_each(module))
    try:
        return _with_one_name_each(
            compatible_module(module.train(), fix=fix, public=public_tensors)
        )
    except ValueError:
        raise
    except Exception as error:  # copying and replacing layers of foreign code may raise any error
        raise ConfigError(
            f"the layers cannot be copied and replaced ({type(error).__name__}: "
            f"{error_text(error, 300)}); define classes at the top level of their file, or "
            "replace the layers yourself and leave model.fix out"
        ) from error


def check_loss(module: nn.Module, task: Task, architecture: Architecture) -> None:
    """Try the factory's loss on two made-up records, so that a wrong one is a line and not a
    crash in training.
    """
    path = architecture.factory
    labels = (
        torch.zeros(2) if task.kind == "regression" else torch.tensor([0, len(task.classes) - 1])
    )
    module.eval()
    try:
        with torch.no_grad():
            losses = task.loss(module(torch.zeros(2, *architecture.input_shape)), labels)
    except Exception as error:
        raise ConfigError(
            f"model.factory={path}: its loss fails on {architecture.outputs} output(s) and "
            f"{_kind_of(labels)} with {type(error).__name__}: {error_text(error, 300)}"
        ) from error
    finally:
        module.train()
    if not isinstance(losses, torch.Tensor) or losses.numel() != 2 or losses.shape[:1] != (2,):
        shape = tuple(getattr(losses, "shape", ()))
        raise ConfigError(
            f"model.factory={path}: its loss gives shape {shape} for 2 records, not (2,); return "
            "one loss per record, with reduction='none'"
        )


def _kind_of(labels: torch.Tensor) -> str:
    return (
        "labels that are floats"
        if labels.is_floating_point()
        else "labels that are class numbers (int64)"
    )


def _with_one_name_each(module: nn.Module) -> nn.Module:
    """Opacus' recurrent layers register every weight twice, under torch's name too; keep the
    name that computes.
    """
    if not has_opacus_layers(module):
        return module
    from opacus.layers.param_rename import RenameParamsMixin

    for layer in module.modules():
        if isinstance(layer, RenameParamsMixin):
            for name in layer.new_to_old:
                layer._parameters.pop(name, None)
            layer.old_to_new = layer.new_to_old = {}
    return module


def _check_shared(module: nn.Module) -> None:
    """Refuse a weight that is used under two names: messages and model files hold each weight
    once.
    """
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            raise ConfigError(
                f"{other} and {name} are one shared weight; give each layer a weight of its own"
            )


def _arguments(
    path: str, function: Callable[..., Any], architecture: Architecture
) -> dict[str, Any]:
    offered: dict[str, Any] = {
        "input_shape": architecture.input_shape,
        "outputs": architecture.outputs,
        **architecture.options,
    }
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return offered
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if parameter.kind is parameter.POSITIONAL_ONLY or (
            required and parameter.name not in offered
        ):
            raise ConfigError(
                f"model.factory={path}: argument {parameter.name} is not given; the function may "
                "take input_shape, outputs and the keys of model.options"
            )
    if not open_ended and (strangers := sorted(set(architecture.options) - names)):
        raise ConfigError(
            f"model.options.{strangers[0]}: {path} has no such argument; remove it or check the "
            "spelling"
        )
    return {name: value for name, value in offered.items() if open_ended or name in names}


def _check_outputs(path: str, module: nn.Module, architecture: Architecture) -> None:
    """Refuse outputs of a wrong shape, for one record too: a random batch may hold a single one."""
    module.eval()
    try:
        with torch.no_grad():
            found = {
                count: module(torch.zeros(count, *architecture.input_shape)) for count in (2, 1)
            }
    except Exception as error:
        raise ConfigError(
            f"model.factory={path}: fails on records of shape {architecture.input_shape} with "
            f"{type(error).__name__}: {error_text(error, 300)}; {_given(architecture)}"
        ) from error
    finally:
        module.train()
    for count, outputs in found.items():
        shape, expected = tuple(getattr(outputs, "shape", ())), (count, architecture.outputs)
        if shape != expected and not (architecture.outputs == 1 and shape == (count,)):
            raise ConfigError(
                f"model.factory={path}: {'1 record gives' if count == 1 else '2 records give'} "
                f"outputs of shape {shape}, not {expected}; keep the axis of records and end with "
                f"{architecture.outputs} output(s): one logit for two classes, one per class for "
                "more, one for a number"
            )


def _given(architecture: Architecture) -> str:
    flat = " (for images as (channels, height, width) declare data.image.shape)"
    return (
        "input_shape is "
        f"{architecture.input_shape}{flat if len(architecture.input_shape) == 1 else ''}"
    )


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)
