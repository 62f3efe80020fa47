"""Local training at one party: the loop over batches, with the mechanism's hooks around it.

Data walk: global weights in -> ``before_fit`` -> batches, ``after_batch`` each -> ``after_fit`` ->
release out. The loop is the same for private and plain training: a mechanism of records wraps what
the loop is made of with the privacy engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.config.schema import TrainConfig
from homo_dp.core.errors import ConfigError
from homo_dp.core.heavy_imports import keep_compiler_out, quick_imports
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, Release, Weights
from homo_dp.federation.mechanisms.train_hooks import (
    HookContext,
    HookedSteps,
    active_hooks,
)
from homo_dp.models.scoring import outputs_row_by_row
from homo_dp.models.task import Task
from homo_dp.privacy.engine.sgd import plain_sgd_step
from homo_dp.privacy.gradients.losses import per_sample
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.statistics.released_metrics import ReleasedMetrics

if TYPE_CHECKING:
    from homo_dp.privacy.engine.engine import PrivacyEngine

CHUNK = 1 << 22  # numbers of contributions to a sum that are held at a time
PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


class Batches(Protocol):
    """A loader as the training loop uses it: a batch may come as several blocks of rows."""

    @property
    def batch_ended(self) -> bool:
        """Whether the block that was handed out last is the last of its batch."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The blocks of one round."""


@dataclass(frozen=True)
class Training:
    """What a training loop is made of, private or plain.

    Attributes:
        module: Gives outputs for a block of rows.
        optimizer: Has ``zero_grad`` and ``step``, which waits for the last block of a batch.
        criterion: Gives a loss with ``backward()``.
        loader: The batches of a round.
    """

    module: nn.Module
    optimizer: Any
    criterion: Callable[[Any, Any], Any]
    loader: Batches


class LocalFit:
    """The model, rows and optimiser of one party; they live through all rounds of a run.

    In ``before_fit`` a mechanism may set ``proximal_mu``, the pull to the global weights.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: PerSampleLoss,
        features: Tensor,
        labels: Tensor,
        facts: PartyFacts,
        train: TrainConfig,
        generator: torch.Generator,
    ) -> None:
        self.model = model
        self.loss = loss
        self.features = features
        self.labels = labels
        self.facts = facts
        self.train = train
        self.generator = generator
        self.optimizer = build_optimizer(model, train)
        self.proximal_mu = train.proximal_mu
        self._plain: Training | None = None
        self.start: Weights = {}
        self.round_number = 0
        self.broadcast: dict[str, float] = {}
        self.steps_done = 0
        # its test rows, where metrics of them are asked
        self.test: tuple[Task, Tensor, Tensor] | None = None
        self._hooks = active_hooks()
        self._hooked: HookedSteps | None = None
        self._adds_terms = False

    def fit(
        self, mechanism: Mechanism, weights: Weights, round_number: int, broadcast: dict[str, float]
    ) -> Release:
        """One round of local training from the given global weights."""
        self.round_number, self.broadcast = round_number, broadcast
        self.begin(weights)
        mechanism.before_fit(self)
        training = mechanism.training(self)
        self._hang_terms_on_steps()

        hooked = self._hooked = self._with_hooks(mechanism)

        def after_step() -> None:
            self.steps_done += 1
            self._set_learning_rate()
            mechanism.after_batch(self)
            if hooked is not None:
                hooked.end_of_batch()

        self._set_learning_rate()
        if hooked is not None:
            hooked.start()
        if training is None:
            after_step()
        else:
            self.train_round(training, after_step)
        if hooked is not None:
            hooked.end()
        return mechanism.after_fit(self)

    def train_round(self, training: Training, after_step: Callable[[], None]) -> None:
        """The batches of one round; ``after_step`` is called after each."""
        if training is self._plain and not len(self.features):
            for _ in range(self.facts.steps_per_round):
                after_step()
            return
        model, optimizer = training.module, training.optimizer
        criterion, loader = training.criterion, training.loader
        for features, labels in loader:
            optimizer.zero_grad()
            criterion(model(features), labels).backward()
            optimizer.step()
            if loader.batch_ended:
                after_step()

    def plain_training(self) -> Training:
        """Training without privacy of each step: for mechanisms that bound what comes of it."""
        if self._plain is None:
            loader = PlainBatches(self._batches, self)
            optimizer = PlainOptimizer(
                self.optimizer, loader, self.train.grad_clip, self._show_gradient
            )
            self._plain = Training(self.model, optimizer, PlainCriterion(self.loss, loader), loader)
        return self._plain

    def rows(self) -> DataLoader[Any]:
        """The rows as a loader, for the engine to draw from."""
        return loader_of(self.features, self.labels)

    def _show_gradient(self) -> None:
        if self._hooked is not None:
            self._hooked.gradient_is_there()

    def linear_rows(self) -> Tensor:
        """The rows as a linear model multiplies them, for sums over rows of solver
        second_moment.
        """
        from homo_dp.privacy.linear_rows import linear_layer, rows_of

        layer = linear_layer(self.model)
        if layer is None:
            raise ConfigError("train.solver=second_moment: needs a linear model; use solver: sgd")
        return rows_of(layer, self.features).cpu()

    def metric_parts(self, metrics: ReleasedMetrics) -> Iterator[Tensor]:
        """What the test rows add to the sum of released metrics, with the weights that are in
        the model.
        """
        if self.test is None:
            return
        task, features, labels = self.test
        size = max(1, min(10_000, CHUNK // metrics.dimension))
        for rows, truth in zip(torch.split(features, size), torch.split(labels, size), strict=True):
            yield metrics.parts(task, outputs_row_by_row(self.model, rows), truth)

    def _with_hooks(self, mechanism: Mechanism) -> HookedSteps | None:
        """The hooks of this round's steps, where the run has some."""
        if self._hooks is None:
            return None
        ours = type(mechanism).__module__.startswith("homo_dp.")
        frozen = not ours or mechanism.capabilities.works_on == "rows"
        steps = self.facts.steps_per_round
        context = HookContext(
            "train", self.facts.name, self.round_number, frozen, self.model, num_train_batch=steps
        )
        return HookedSteps(self._hooks, context, epoch=round(1 / self.facts.sample_rate))

    def begin(self, weights: Weights) -> None:
        """Load the global weights of a round, and keep them with whatever else came with them."""
        self.start = weights
        self.load(weights)

    def load(self, weights: Weights) -> None:
        """Copy weights into the model in place, so that hooks and optimiser keep pointing at the
        same tensors.
        """
        with torch.no_grad():
            for name, tensor in self.model.state_dict(keep_vars=True).items():
                tensor.copy_(weights[name])

    def weights(self) -> Weights:
        """A copy of the model's weights, detached and on the CPU."""
        return {
            name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
        }

    @property
    def after_gradient(self) -> Callable[[], None] | None:
        """Adds weight decay and the FedProx pull to finished gradients; None where there is nothing
        to add.

        Under DP-SGD this runs after clipping and noise: neither term depends on rows.
        """
        decay, pull = self.train.weight_decay, self.proximal_mu
        if not decay and not pull:
            return None
        parameters = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

        def add() -> None:
            with torch.no_grad():
                for name, parameter in parameters:
                    if parameter.grad is None:
                        continue
                    if decay:
                        parameter.grad.add_(parameter, alpha=decay)
                    if pull:
                        parameter.grad.add_(
                            parameter - self.start[name].to(parameter.device), alpha=pull
                        )

        return add

    def _set_learning_rate(self) -> None:
        train, total = self.train, self.facts.rounds * self.facts.steps_per_round
        rate = train.schedule.rate(train.learning_rate, self.steps_done, total, train.weight_decay)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _hang_terms_on_steps(self) -> None:
        """Let every step of the optimizer add weight decay and the FedProx pull before it moves
        weights: under DP-SGD that is after clipping and noise.
        """
        if not self._adds_terms and self.after_gradient is not None:
            self._adds_terms = True
            self.optimizer.register_step_pre_hook(lambda *_: self._add_terms())

    def _add_terms(self) -> None:
        add = self.after_gradient  # of now: a mechanism may change the pull from round to round
        if add is not None:
            add()

    def _batches(self) -> Iterator[Tensor]:
        """Shuffled epochs of fixed batches: for training that claims no amplification by
        sampling.
        """
        rows = len(self.features)
        size = max(1, min(rows, round(self.facts.sample_rate * rows)))
        while True:
            order = torch.randperm(rows, generator=self.generator)
            for start in range(0, rows, size) if rows else (0,):
                yield order[start : start + size]


class PlainBatches:
    """The batches of a round without privacy, in blocks of ``physical_batch_size`` rows."""

    def __init__(self, batches: Callable[[], Iterator[Tensor]], fit: LocalFit) -> None:
        self._batches, self._fit = batches, fit
        self.rows = 0  # of the whole batch
        self.batch_opens = self.batch_ended = True

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        fit, batches = self._fit, self._batches()
        for _ in range(fit.facts.steps_per_round):
            batch = next(batches).to(fit.features.device)
            self.rows = len(batch)
            blocks = torch.split(batch, fit.train.physical_batch_size or max(1, len(batch)))
            for number, rows in enumerate(blocks, start=1):
                self.batch_opens, self.batch_ended = number == 1, number == len(blocks)
                yield fit.features[rows], fit.labels[rows]


@dataclass(frozen=True)
class PlainCriterion:
    """The mean loss of a batch; of a block, its part of that mean."""

    loss: PerSampleLoss
    batches: PlainBatches

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = per_sample(self.loss(outputs, labels), len(outputs))
        return losses.sum() / max(1, self.batches.rows)


@dataclass(frozen=True)
class PlainOptimizer:
    """An optimizer that adds up the gradients of the blocks of a batch and steps at its end.

    Attributes:
        optimizer: What steps.
        batches: Says where a batch ends.
        grad_clip: The largest norm of a batch's gradient; it bounds no record's part, so it gives
            no privacy.
        show_gradient: Called once the gradient of a batch is there.
    """

    optimizer: torch.optim.Optimizer
    batches: PlainBatches
    grad_clip: float | None
    show_gradient: Callable[[], None]

    def zero_grad(self) -> None:
        """Drop the gradient of the batch before."""
        if self.batches.batch_opens:
            self.optimizer.zero_grad()

    def step(self) -> None:
        """Step, at the end of a batch."""
        if not self.batches.batch_ended:
            return
        self.show_gradient()
        moved = [
            (parameter, parameter.grad)
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not moved:
            return
        if self.grad_clip is not None:
            nn.utils.clip_grad_norm_([parameter for parameter, _ in moved], self.grad_clip)
        if not plain_sgd_step(self.optimizer, *(list(part) for part in zip(*moved, strict=True))):
            self.optimizer.step()


def made_private(noise: NoiseSource, **options: Any) -> tuple[PrivacyEngine, Training]:
    """An engine, and what it wrapped for a training loop; ``options`` are those of
    ``make_private``.
    """
    with quick_imports():  # Opacus: 0.8 s, for parties that train and nobody else
        from homo_dp.privacy.engine.engine import PrivacyEngine
    engine = PrivacyEngine(noise=noise, secure_mode=noise.secure)
    return engine, Training(*engine.make_private(**options))


def loader_of(features: Tensor, labels: Tensor) -> DataLoader[Any]:
    """Rows as a loader of torch; the engine draws batches of its own."""
    return DataLoader(TensorDataset(features, labels))


def build_optimizer(model: nn.Module, train: TrainConfig) -> torch.optim.Optimizer:
    """The local optimiser; weight decay is not given to it but added to the finished gradient."""
    keep_compiler_out()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if train.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=train.learning_rate)
    return torch.optim.SGD(parameters, lr=train.learning_rate, momentum=train.momentum)
