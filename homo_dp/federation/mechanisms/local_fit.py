"""Local training at one party: the loop over batches, with the mechanism's hooks around it.

Data walk: global weights in -> ``before_fit`` -> batches, ``after_batch`` each -> ``after_fit`` -> release out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from homo_dp.config.schema import TrainConfig
from homo_dp.core.errors import ConfigError
from homo_dp.core.heavy_imports import keep_compiler_out
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, Release, Weights
from homo_dp.federation.mechanisms.train_hooks import (
    BOUNDS_THE_RESULT,
    HookContext,
    HookedSteps,
    active_hooks,
)
from homo_dp.models.scoring import outputs_row_by_row
from homo_dp.models.task import Task
from homo_dp.privacy.gradients.losses import per_sample
from homo_dp.privacy.training.sgd import step_optimizer
from homo_dp.statistics.released_metrics import ReleasedMetrics

CHUNK = 1 << 22  # numbers of contributions to a sum that are held at a time
PerSampleLoss = Callable[[Tensor, Tensor], Tensor]
Steps = Callable[[int, Callable[[], None]], None]


class LocalFit:
    """The model, rows and optimiser of one party; they live through all rounds of a run.

    In ``before_fit`` a mechanism may replace ``run_steps`` (the batches), as DP-SGD does with its private training, and
    set ``proximal_mu``, the pull to the global weights.
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
        self.run_steps: Steps = self._plain_steps
        self.start: Weights = {}
        self.round_number = 0
        self.broadcast: dict[str, float] = {}
        self.steps_done = 0
        self.test: tuple[Task, Tensor, Tensor] | None = (
            None  # its test rows, where metrics of them are asked
        )
        self._hooks = active_hooks()
        self._hooked: HookedSteps | None = None

    def fit(
        self, mechanism: Mechanism, weights: Weights, round_number: int, broadcast: dict[str, float]
    ) -> Release:
        """One round of local training from the given global weights."""
        self.round_number, self.broadcast = round_number, broadcast
        self.begin(weights)
        mechanism.before_fit(self)

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
        self.run_steps(self.facts.steps_per_round, after_step)
        if hooked is not None:
            hooked.end()
        return mechanism.after_fit(self)

    def linear_rows(self) -> Tensor:
        """The rows as a linear model multiplies them, for sums over rows of solver second_moment."""
        from homo_dp.privacy.training.linear_gradient import linear_layer, rows_of

        layer = linear_layer(self.model)
        if layer is None:
            raise ConfigError("train.solver=second_moment: needs a linear model; use solver: sgd")
        return rows_of(layer, self.features).cpu()

    def metric_parts(self, metrics: ReleasedMetrics) -> Iterator[Tensor]:
        """What the test rows add to the sum of released metrics, with the weights that are in the model."""
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
        frozen = not ours or mechanism.name not in BOUNDS_THE_RESULT
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
        """Copy weights into the model in place, so that hooks and optimiser keep pointing at the same tensors."""
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
        """Adds weight decay and the FedProx pull to finished gradients; None where there is nothing to add.

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

    def _plain_steps(self, steps: int, after_step: Callable[[], None]) -> None:
        add_terms = self.after_gradient
        batches = self._batches()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self._add_gradient(next(batches).to(self.features.device))
            if self._hooked is not None:
                self._hooked.gradient_is_there()
            if (
                self.train.grad_clip is not None
            ):  # of the batch: bounds no record's part, so it gives no privacy
                nn.utils.clip_grad_norm_(self.model.parameters(), self.train.grad_clip)
            if add_terms:
                add_terms()
            self._step()
            after_step()

    def _add_gradient(self, batch: Tensor) -> None:
        """The gradient of the batch's mean loss, over at most ``physical_batch_size`` rows at a time; none, of none."""
        for rows in (
            torch.split(batch, self.train.physical_batch_size or len(batch)) if len(batch) else ()
        ):
            losses = per_sample(
                self.loss(self.model(self.features[rows]), self.labels[rows]), len(rows)
            )
            (losses.sum() / len(batch)).backward()  # type: ignore[no-untyped-call]

    def _step(self) -> None:
        moved = [
            (p, p.grad)
            for group in self.optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if moved:
            step_optimizer(self.optimizer, *(list(part) for part in zip(*moved, strict=True)))

    def _batches(self) -> Iterator[Tensor]:
        """Shuffled epochs of fixed batches: for training that claims no amplification by sampling."""
        rows = len(self.features)
        size = max(1, min(rows, round(self.facts.sample_rate * rows)))
        while True:
            order = torch.randperm(rows, generator=self.generator)
            for start in range(0, rows, size) if rows else (0,):
                yield order[start : start + size]


def build_optimizer(model: nn.Module, train: TrainConfig) -> torch.optim.Optimizer:
    """The local optimiser; weight decay is not given to it but added to the finished gradient."""
    keep_compiler_out()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if train.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=train.learning_rate)
    return torch.optim.SGD(parameters, lr=train.learning_rate, momentum=train.momentum)
