"""Layers whose first weights come from one given generator and from nowhere else.

Without a generator a layer has shapes only (torch's meta device): a model file is checked against it before any
memory is taken, and its weights are then put in place.
"""

import math

import torch
from torch import nn


def linear(inputs: int, outputs: int, bias: bool, generator: torch.Generator | None) -> nn.Linear:
    """A Linear layer with torch's usual uniform start."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    _start_uniform(layer, inputs, generator)
    return layer


def zero_linear(inputs: int, outputs: int, bias: bool, generator: torch.Generator | None) -> nn.Linear:
    """A Linear layer of zeros: the best data-free guess of a last layer, with nothing for noise to undo."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    if generator is not None:
        _take_memory(layer)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return layer


def convolution(inputs: int, outputs: int, bias: bool, generator: torch.Generator | None) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps height and width, with torch's usual uniform start."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias, device="meta")
    _start_uniform(layer, inputs * 9, generator)
    return layer


def group_norm(channels: int, generator: torch.Generator | None) -> nn.GroupNorm:
    """A GroupNorm of about 4 channels a group, that starts as no change of scale."""
    return nn.GroupNorm(norm_groups(channels), channels, device="cpu" if generator is not None else "meta")


def norm_groups(channels: int) -> int:
    """The number of groups: about 4 channels each, and a divisor of the channel count.

    >>> [norm_groups(count) for count in (1, 6, 8, 16, 32)]
    [1, 1, 2, 4, 8]
    """
    return math.gcd(channels, max(1, channels // 4))


def _start_uniform(layer: nn.Module, fan_in: int, generator: torch.Generator | None) -> None:
    if generator is None:
        return
    _take_memory(layer)
    # torch.nn.Linear.reset_parameters: kaiming_uniform(a=sqrt(5)) is U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)


def _take_memory(layer: nn.Module) -> None:
    """Put a layer of shapes on the CPU, with nothing in it yet.

    ``layer.to_empty`` does the same through torch's tracing code, which takes half a second to import.
    """
    for name, parameter in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
