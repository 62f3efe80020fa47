"""Activations; bounded ones keep per-sample gradients small, so that clipping takes less away."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.core.errors import ConfigError


class TemperedSigmoid(nn.Module):
    """``scale * sigmoid(inverse_temperature * x) - offset`` (Papernot et al. 2021,
    arXiv:2007.14191, section 4).

    The values 2, 2, 1 are tanh exactly; the defaults are the non-tanh member that DP code bases
    commonly use.

    >>> tanh = TemperedSigmoid(scale=2.0, inverse_temperature=2.0, offset=1.0)
    >>> bool(torch.allclose(tanh(torch.tensor([0.5])), torch.tanh(torch.tensor([0.5]))))
    True
    """

    def __init__(
        self, scale: float = 1.58, inverse_temperature: float = 3.0, offset: float = 0.71
    ) -> None:
        super().__init__()
        self.scale = scale
        self.inverse_temperature = inverse_temperature
        self.offset = offset

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(self.inverse_temperature * inputs) - self.offset

    def extra_repr(self) -> str:
        return (
            f"scale={self.scale}, inverse_temperature={self.inverse_temperature}, "
            f"offset={self.offset}"
        )


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "tempered_sigmoid": TemperedSigmoid,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}


def activation(name: str, tempered: tuple[float, float, float] | None = None) -> nn.Module:
    """The activation of that name; ``tempered`` is scale, inverse temperature and offset of a
    tempered sigmoid.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"model.activation={name}: unknown; choose one of {', '.join(sorted(ACTIVATIONS))}"
        )
    if name == "tempered_sigmoid" and tempered is not None:
        return TemperedSigmoid(*tempered)
    return ACTIVATIONS[name]()
