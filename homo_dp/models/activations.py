"""Activations; bounded ones keep per-sample gradients small, so that clipping takes less away."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.core.errors import ConfigError


class TemperedSigmoid(nn.Module):
    """``1.58 * sigmoid(3 * x) - 0.71``: the tempered sigmoid that is not tanh and that DP code
    bases commonly use (Papernot et al. 2021, arXiv:2007.14191, section 4).
    """

    def forward(self, inputs: Tensor) -> Tensor:
        return 1.58 * torch.sigmoid(3.0 * inputs) - 0.71


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "tempered_sigmoid": TemperedSigmoid,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}


def activation(name: str) -> nn.Module:
    """The activation of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"model.activation={name}: unknown; choose one of {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name]()
