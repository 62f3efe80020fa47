"""Small trainings, the one-row-at-a-time reference, and the sums that a training step really
used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.engine import engine as engine_module
from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.gradients.losses import Loss, squared_error
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.noise.source import NoiseSource, SeededNoise
from homo_dp.privacy.sampling.samplers import PoissonSampler

QUIET = 1e-7  # a noise multiplier so small that a step shows its clipped sum


class PrivateLoop:
    """What the engine makes private, and the ordinary training loop around it."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        features: Tensor,
        labels: Tensor,
        *,
        sampler: PoissonSampler,
        noise_multiplier: float,
        max_grad_norm: float,
        noise: NoiseSource | None = None,
        engine: type[PrivacyEngine] = PrivacyEngine,
        **options: Any,
    ) -> None:
        """Make a module private.

        Args:
            module: The module.
            optimizer: An optimizer of torch.
            loss: One loss a row.
            features: The rows.
            labels: Their labels.
            sampler: What the batches are drawn at.
            noise_multiplier: As for ``make_private``.
            max_grad_norm: As for ``make_private``.
            noise: The source of the engine.
            engine: Makes private.
            options: For ``make_private``.
        """
        self.module, self.optimizer, self.sampler = module, optimizer, sampler
        self.engine = engine(noise=noise, secure_mode=noise is None or noise.secure)
        self.noise = self.engine.noise
        made = self.engine.make_private(
            module=module,
            optimizer=optimizer,
            criterion=loss,
            data_loader=DataLoader(TensorDataset(features, labels)),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            sample_rate=sampler.sample_rate,
            expected_batch_size=sampler.expected_size,
            **options,
        )
        self.wrapped, self.private, self.criterion, self.loader = made
        self.steps_done = 0

    def run(self, steps: int, after_step: Callable[[], None] | None = None) -> None:
        """Take so many steps; ``after_step`` is called after each."""
        self.loader.batch_sampler.steps = steps
        for features, labels in self.loader:
            self.private.zero_grad()
            self.criterion(self.wrapped(features), labels).backward()
            self.private.step()
            if self.loader.batch_ended:
                self.steps_done += 1
                if after_step is not None:
                    after_step()

    def event(self, steps: int) -> DpEvent:
        return self.engine.event(steps)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights, as the module that a loop has names them."""
        return {name: weight.detach().clone() for name, weight in self.wrapped.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.wrapped.load_state_dict(weights)

    def close(self) -> None:
        """Take the hooks of the mode off the module."""
        self.wrapped.to_standard_module()

    @property
    def grad_sample_mode(self) -> str:
        return self.engine.grad_sample_mode

    @property
    def mode_reason(self) -> str:
        return self.engine.mode_reason

    @property
    def applied_sigma(self) -> float:
        return float(self.private.applied_sigma)

    @property
    def last_norms(self) -> Tensor:
        norms: Tensor = self.private.last_norms
        return norms

    @property
    def last_fraction_clipped(self) -> float:
        return float(self.private.last_fraction_clipped)

    @property
    def rows_not_finite(self) -> int:
        return int(self.private.rows_not_finite)

    @property
    def sums_not_finite(self) -> int:
        return int(self.private.sums_not_finite)


def reference_sum(
    module: nn.Module, loss: Loss, features: Tensor, labels: Tensor, clip_norm: float
) -> list[Tensor]:
    """Clip one row at a time by autograd, add up in float64: slow, and nothing of the package
    but BELOW is in it.
    """
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
    kind: Callable[..., PrivateLoop] = PrivateLoop,
    sample_rate: float = 1.0,
    noise_multiplier: float = QUIET,
    clip_norm: float = 1.0,
    **options: Any,
) -> PrivateLoop:
    """A training whose SGD step subtracts the noisy sum itself: the learning rate is the
    expected batch size.
    """
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


def step_sum(private: PrivateLoop) -> list[Tensor]:
    """Run one step and return the sum that it subtracted, one tensor a trainable parameter."""
    parameters = [parameter for parameter in private.module.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    private.run(1)
    return [old - new.detach() for old, new in zip(before, parameters, strict=True)]


def exact_sum(private: PrivateLoop) -> Tensor:
    """The clipped sum of one batch before it gets its noise, over all weights; weights stay."""
    optimizer, seen = private.private, list[Tensor]()
    add_noise, groups = optimizer.add_noise, private.optimizer.param_groups
    rates = [group["lr"] for group in groups]

    def look() -> None:
        clipped = getattr(optimizer, "clipped", None)
        parts = [p.summed_grad for p in optimizer.params] if clipped is None else [clipped.total]
        assert all(part.dtype is torch.float64 for part in parts)
        seen.append(flat(parts).clone())
        add_noise()

    optimizer.add_noise = look
    for group in groups:
        group["lr"] = 0.0
    private.run(1)
    del optimizer.add_noise
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    assert len(seen) == 1
    return seen[0]


@contextmanager
def unprobed() -> Iterator[None]:
    """Rows that are made for an attack by rounding are trained on: the probes before a training,
    and the comparisons in its first batches, take so much rounding for rows that meet.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine_module, "probe_once", lambda *_: None)
        patched.setattr(engine_module, "first_batches_of", lambda *_, **__: None)
        yield


def draw_batches(private: PrivateLoop, *batches: Tensor) -> None:
    """Let the next batches be of these row numbers."""
    coming = iter(batches)
    private.loader.batch_sampler.drawn.next = lambda: next(coming)


def flat(tensors: list[Tensor]) -> Tensor:
    """All tensors as one vector."""
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def silent_layer(weights: int = 4096, **options: Any) -> PrivateLoop:
    """A training whose gradients are all zero, so that a step is its noise."""
    features = torch.zeros(10, weights)
    return training(
        nn.Linear(weights, 1, bias=False), squared_error, features, torch.zeros(10), **options
    )


def counting_layer(rows: int, sample_rate: float, **options: Any) -> PrivateLoop:
    """A training in which every row has the same gradient, -1/8: a step's sum tells how many
    rows were drawn.
    """
    module = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    features, labels = (
        torch.ones(rows, 1, dtype=torch.float64),
        torch.ones(rows, dtype=torch.float64),
    )
    return training(module, _constant_slope, features, labels, sample_rate=sample_rate, **options)


def rows_of(private: PrivateLoop) -> float:
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
