"""A small convolutional network for image tensors: GroupNorm (per record), never BatchNorm (across records)."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn

from homo_dp.models.initial import convolution, group_norm, linear, zero_linear


def cnn(
    input_shape: Sequence[int],
    channels: Sequence[int],
    layers: Sequence[int],
    outputs: int,
    generator: torch.Generator | None,
    *,
    between: Callable[[], nn.Module] = nn.Tanh,
    bias: bool = True,
) -> nn.Sequential:
    """A block (3 x 3 convolution, GroupNorm, activation, halving) per entry of ``channels``, then dense ``layers``.

    Halving stops when a side would fall below 2, so the same description fits 8 x 8 and 28 x 28 images.

    >>> net = cnn((1, 8, 8), [8, 16], [], 10, torch.Generator().manual_seed(0))
    >>> net(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    inputs, height, width = input_shape
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number, count in enumerate(channels, start=1):
        parts[f"convolution_{number}"] = convolution(inputs, count, bias, generator)
        parts[f"norm_{number}"] = group_norm(count, generator)
        parts[f"activation_{number}"] = between()
        if min(height, width) >= 4:
            parts[f"pool_{number}"] = nn.AvgPool2d(2)
            height, width = height // 2, width // 2
        inputs = count
    parts["flatten"] = nn.Flatten()
    inputs = inputs * height * width
    for number, size in enumerate(layers, start=1):
        parts[f"hidden_{number}"] = linear(inputs, size, bias, generator)
        parts[f"hidden_activation_{number}"] = between()
        inputs = size
    parts["output"] = zero_linear(inputs, outputs, bias, generator)
    return nn.Sequential(parts)
