"""Optimiser state as named tensors, so that it can be stored in safetensors and read back
without pickle.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError

_STATE = "optimizer.state."
_RATE = "optimizer.lr."


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Momentum, Adam moments, step counts and learning rates as a flat dict of tensors.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> sorted(pack_optimizer(torch.optim.SGD([weight], lr=0.5)))
    ['optimizer.lr.0']
    """
    packed: dict[str, Tensor] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if value is None:
                continue
            if not isinstance(value, Tensor | int | float):
                raise PrivacyError(
                    f"optimizer state {name} of type {type(value).__name__} cannot be stored; use "
                    "sgd or adam"
                )
            packed[f"{_STATE}{index}.{name}"] = torch.as_tensor(value).detach().clone()
    for index, group in enumerate(optimizer.param_groups):
        packed[f"{_RATE}{index}"] = torch.tensor(float(group["lr"]), dtype=torch.float64)
    return packed


def unpack_optimizer(optimizer: torch.optim.Optimizer, packed: Mapping[str, Tensor]) -> None:
    """Put a packed state back into an optimiser of the same kind over parameters of the same
    shapes.
    """
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in packed.items():
        if not key.startswith(_STATE):
            continue
        index, name = key.removeprefix(_STATE).split(".", 1)
        if not index.isdigit() or int(index) >= len(shapes):
            raise PrivacyError(
                f"{key} belongs to no parameter of this optimizer; restore the state of the same "
                "model"
            )
        if value.dim() > 0 and value.shape != shapes[int(index)]:
            raise PrivacyError(
                f"{key} has shape {tuple(value.shape)}, the parameter {tuple(shapes[int(index)])}; "
                "restore the state of the same model"
            )
        state.setdefault(int(index), {})[name] = value.clone()
    current = optimizer.state_dict()
    current["state"] = state
    for position, group in enumerate(current["param_groups"]):
        rate = packed.get(f"{_RATE}{position}")
        if rate is None:
            raise PrivacyError(
                f"{_RATE}{position} is missing; restore a state made by the same version"
            )
        group["lr"] = float(rate)
    optimizer.load_state_dict(current)
