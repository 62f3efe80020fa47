"""The models that ship with homo_dp: logistic and linear regression, a multilayer perceptron, a
small CNN.

First weights come from one given generator and from nowhere else. Without a generator a layer has
shapes only (torch's meta device): a model file is checked against it before any memory is taken,
and its weights are then put in place.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn


def logistic_regression(
    inputs: int,
    outputs: int,
    generator: torch.Generator | None,
    *,
    bias: bool = True,
    flatten: bool = False,
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


def linear_regression(
    inputs: int, generator: torch.Generator | None, *, bias: bool = True, flatten: bool = False
) -> nn.Sequential:
    """A linear layer with one output that starts at zero, the middle of the declared target
    range.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if flatten:
        layers["flatten"] = nn.Flatten()
    layers["linear"] = zero_linear(inputs, 1, bias, generator)
    return nn.Sequential(layers)


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
    """Hidden ``layers``, each followed by the activation ``between``, then a linear output that
    starts at zero.

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
    """A block (3 x 3 convolution, GroupNorm, activation, halving) per entry of ``channels``, then
    dense ``layers``.

    Halving stops when a side would fall below 2, so the same description fits 8 x 8 and 28 x 28
    images.

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


def linear(inputs: int, outputs: int, bias: bool, generator: torch.Generator | None) -> nn.Linear:
    """A Linear layer with torch's usual uniform start."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    _start_uniform(layer, inputs, generator)
    return layer


def zero_linear(
    inputs: int, outputs: int, bias: bool, generator: torch.Generator | None
) -> nn.Linear:
    """A Linear layer of zeros: the best data-free guess of a last layer, with nothing for noise
    to undo.
    """
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    if generator is not None:
        _take_memory(layer)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return layer


def convolution(
    inputs: int, outputs: int, bias: bool, generator: torch.Generator | None
) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps height and width, with torch's usual uniform start."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias, device="meta")
    _start_uniform(layer, inputs * 9, generator)
    return layer


def group_norm(channels: int, generator: torch.Generator | None) -> nn.GroupNorm:
    """A GroupNorm of about 4 channels a group, that starts as no change of scale."""
    return nn.GroupNorm(
        norm_groups(channels), channels, device="cpu" if generator is not None else "meta"
    )


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
    # torch.nn.Linear.reset_parameters: kaiming_uniform(a=sqrt(5)) is U(-1/sqrt(fan_in),
    # 1/sqrt(fan_in)).
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)


def _take_memory(layer: nn.Module) -> None:
    """Put a layer of shapes on the CPU, with nothing in it yet.

    ``layer.to_empty`` does the same through torch's tracing code, which takes half a second to
    import.
    """
    for name, parameter in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
