"""Weights of an Opacus loop under their own names, and its checkpoints without pickle: tensors
in safetensors.
"""

import json
from pathlib import Path
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from homo_dp.core.files import write_file
from homo_dp.privacy.engine.optimizer_state import pack_optimizer, unpack_optimizer
from homo_dp.privacy.errors import PrivacyError

_WEIGHT = "module."
_WRAPPED = "_module."  # what Opacus puts before every name


def use_plain_names(wrapped: nn.Module) -> None:
    """Let ``state_dict`` of a wrapped module give the names of the module inside, and
    ``load_state_dict`` take them.

    >>> from opacus.grad_sample import GradSampleModule
    >>> wrapped = GradSampleModule(nn.Linear(2, 1))
    >>> use_plain_names(wrapped)
    >>> list(wrapped.state_dict())
    ['weight', 'bias']
    >>> wrapped.load_state_dict(nn.Linear(2, 1).state_dict())
    <All keys matched successfully>
    """
    wrapped.register_state_dict_post_hook(_give_plain_names)  # type: ignore[no-untyped-call]
    wrapped.register_load_state_dict_pre_hook(_take_plain_names)  # type: ignore[no-untyped-call]


def _give_plain_names(
    wrapped: nn.Module, state: dict[str, Any], prefix: str, metadata: Any
) -> None:
    for name in [name for name in state if name.startswith(prefix + _WRAPPED)]:
        state[prefix + name.removeprefix(prefix + _WRAPPED)] = state.pop(name)


def _take_plain_names(
    wrapped: nn.Module, state: dict[str, Any], prefix: str, *details: Any
) -> None:
    for name in _plain(wrapped).state_dict():
        if prefix + name in state:
            state[prefix + _WRAPPED + name] = state.pop(prefix + name)


def save_checkpoint(
    path: str | Path, module: nn.Module, optimizer: Any, accountant: dict[str, Any]
) -> None:
    """Write weights (without ``_module.``), optimiser state and the accountant's state to one
    file, atomically.
    """
    tensors: dict[str, Tensor] = {
        _WEIGHT + name: parameter.detach().contiguous()
        for name, parameter in _plain(module).named_parameters()
    }
    if optimizer is not None:
        tensors.update(pack_optimizer(_original(optimizer)))
    data = save(tensors, metadata={"accountant": json.dumps(accountant)})
    write_file(Path(path), data, point="checkpoint")


def load_checkpoint(path: str | Path, module: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Read a checkpoint into module and optimiser, in place, and return the accountant's state."""
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            accountant: dict[str, Any] = json.loads((file.metadata() or {})["accountant"])
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PrivacyError(
            f"checkpoint {path} cannot be read ({reason}); give one written by save_checkpoint"
        ) from error
    own = dict(_plain(module).named_parameters())
    stored = {
        name.removeprefix(_WEIGHT): tensor
        for name, tensor in tensors.items()
        if name.startswith(_WEIGHT)
    }
    if {name: tensor.shape for name, tensor in stored.items()} != {
        name: tensor.shape for name, tensor in own.items()
    }:
        raise PrivacyError(
            f"checkpoint {path} is of another model; give the checkpoint of this one"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])
    if optimizer is not None:
        unpack_optimizer(_original(optimizer), tensors)
    return accountant


def _plain(module: nn.Module) -> nn.Module:
    inner: nn.Module = module._module if isinstance(module, AbstractGradSampleModule) else module
    return inner


def _original(optimizer: Any) -> torch.optim.Optimizer:
    original: torch.optim.Optimizer = (
        optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer
    )
    return original
