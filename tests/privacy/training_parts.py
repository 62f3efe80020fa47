"""Small trainings, the one-row-at-a-time reference, and the sums that a training step really used."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.losses import Loss, squared_error
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.privacy.training.private_training import PrivateTraining

QUIET = 1e-7  # a noise multiplier so small that a step shows its clipped sum


def reference_sum(
    module: nn.Module, loss: Loss, features: Tensor, labels: Tensor, clip_norm: float
) -> list[Tensor]:
    """Clip one row at a time by autograd, add up in float64: slow, and nothing of the package but BELOW is in it."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    for row in range(len(features)):
        gradients = _row_gradients(module, loss, features[row : row + 1], labels[row : row + 1])
        norm = float(flat(gradients).norm())
        factor = min(1.0, BELOW * clip_norm / norm) if norm > 0 else 1.0
        for sum_so_far, gradient in zip(total, gradients, strict=True):
            sum_so_far += factor * gradient.double()
    return total


def middle_norm(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> float:
    """The median norm of the rows' gradients: as a clip norm it clips every second row."""
    rows = range(len(features))
    norms = [
        flat(_row_gradients(module, loss, features[row : row + 1], labels[row : row + 1])).norm()
        for row in rows
    ]
    return float(torch.stack(norms).median())


def training(
    module: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    *,
    kind: Callable[..., PrivateTraining] = PrivateTraining,
    sample_rate: float = 1.0,
    noise_multiplier: float = QUIET,
    clip_norm: float = 1.0,
    **options: Any,
) -> PrivateTraining:
    """A training whose SGD step subtracts the noisy sum itself: the learning rate is the expected batch size."""
    sampler = PoissonSampler(len(features), sample_rate)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=sampler.expected_size)
    return kind(
        module,
        optimizer,
        loss,
        features,
        labels,
        sampler=sampler,
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip_norm,
        **options,
    )


def step_sum(private: PrivateTraining) -> list[Tensor]:
    """Run one step and return the sum that it subtracted, one tensor a trainable parameter."""
    parameters = [parameter for parameter in private.module.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    private.run(1)
    return [old - new.detach() for old, new in zip(before, parameters, strict=True)]


def flat(tensors: list[Tensor]) -> Tensor:
    """All tensors as one vector."""
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def silent_layer(weights: int = 4096, **options: Any) -> PrivateTraining:
    """A training whose gradients are all zero, so that a step is its noise."""
    features = torch.zeros(10, weights)
    return training(
        nn.Linear(weights, 1, bias=False), squared_error, features, torch.zeros(10), **options
    )


def counting_layer(rows: int, sample_rate: float, **options: Any) -> PrivateTraining:
    """A training in which every row has the same gradient, -1/8: a step's sum tells how many rows were drawn."""
    module = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    features, labels = (
        torch.ones(rows, 1, dtype=torch.float64),
        torch.ones(rows, dtype=torch.float64),
    )
    return training(module, _constant_slope, features, labels, sample_rate=sample_rate, **options)


def rows_of(private: PrivateTraining) -> float:
    """How many rows one step of a counting layer used, as its noisy sum says."""
    return float(step_sum(private)[0]) * -8.0


def _row_gradients(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> list[Tensor]:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss(module(features), labels).sum(), parameters, allow_unused=True)
    return [
        torch.zeros_like(p) if gradient is None else gradient
        for p, gradient in zip(parameters, found, strict=True)
    ]


def _constant_slope(outputs: Tensor, labels: Tensor) -> Tensor:
    return -outputs.reshape(-1) / 8.0 * labels


def seeded(seed: int) -> SeededNoise:
    """NOT PRIVATE noise, for tests that have to be repeatable."""
    return SeededNoise(seed)
