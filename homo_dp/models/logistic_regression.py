"""Logistic regression: one logit for two classes, one per class for more."""

from collections import OrderedDict

import torch
from torch import nn

from homo_dp.models.initial import zero_linear


def logistic_regression(
    inputs: int, outputs: int, generator: torch.Generator | None, *, bias: bool = True, flatten: bool = False
) -> nn.Sequential:
    """A linear layer of logits that starts at zero.

    >>> logistic_regression(30, 1, torch.Generator())
    Sequential(
      (linear): Linear(in_features=30, out_features=1, bias=True)
    )
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if flatten:
        layers["flatten"] = nn.Flatten()
    layers["linear"] = zero_linear(inputs, outputs, bias, generator)
    return nn.Sequential(layers)
