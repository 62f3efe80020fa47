"""Linear regression: one output, the target scaled by its public bounds."""

from collections import OrderedDict

import torch
from torch import nn

from homo_dp.models.initial import zero_linear


def linear_regression(
    inputs: int, generator: torch.Generator | None, *, bias: bool = True, flatten: bool = False
) -> nn.Sequential:
    """A linear layer with one output that starts at zero, the middle of the declared target range."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if flatten:
        layers["flatten"] = nn.Flatten()
    layers["linear"] = zero_linear(inputs, 1, bias, generator)
    return nn.Sequential(layers)
