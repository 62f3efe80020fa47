"""A multilayer perceptron."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn

from homo_dp.models.initial import linear, zero_linear


def mlp(
    inputs: int,
    layers: Sequence[int],
    outputs: int,
    generator: torch.Generator | None,
    *,
    between: Callable[[], nn.Module] = nn.Tanh,
    bias: bool = True,
    flatten: bool = False,
) -> nn.Sequential:
    """Hidden ``layers``, each followed by the activation ``between``, then a linear output that starts at zero.

    >>> list(mlp(64, [32], 10, torch.Generator().manual_seed(0)).state_dict())
    ['hidden_1.weight', 'hidden_1.bias', 'output.weight', 'output.bias']
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if flatten:
        parts["flatten"] = nn.Flatten()
    for number, width in enumerate(layers, start=1):
        parts[f"hidden_{number}"] = linear(inputs, width, bias, generator)
        parts[f"activation_{number}"] = between()
        inputs = width
    parts["output"] = zero_linear(inputs, outputs, bias, generator)
    return nn.Sequential(parts)
