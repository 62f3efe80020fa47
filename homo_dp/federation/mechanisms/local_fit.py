"""Local training at one party: the loop over batches, with the mechanism's hooks around it.

Data walk: global weights in -> ``before_fit`` -> batches, ``after_batch`` each -> ``after_fit`` -> release out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from homo_dp.config.schema import TrainConfig
from homo_dp.core.eager import keep_compiler_out
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, Release, Weights
from homo_dp.privacy.gradients.losses import per_sample
from homo_dp.privacy.training.sgd import step_optimizer

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

    def fit(self, mechanism: Mechanism, weights: Weights, round_number: int, broadcast: dict[str, float]) -> Release:
        """One round of local training from the given global weights."""
        self.start, self.round_number, self.broadcast = weights, round_number, broadcast
        self.load(weights)
        mechanism.before_fit(self)

        def after_step() -> None:
            self.steps_done += 1
            self._set_learning_rate()
            mechanism.after_batch(self)

        self._set_learning_rate()
        self.run_steps(self.facts.steps_per_round, after_step)
        return mechanism.after_fit(self)

    def load(self, weights: Weights) -> None:
        """Copy weights into the model in place, so that hooks and optimiser keep pointing at the same tensors."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict(keep_vars=True).items():
                tensor.copy_(weights[name])

    def weights(self) -> Weights:
        """A copy of the model's weights, detached and on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

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
                        parameter.grad.add_(parameter - self.start[name].to(parameter.device), alpha=pull)

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
            if add_terms:
                add_terms()
            self._step()
            after_step()

    def _add_gradient(self, batch: Tensor) -> None:
        """The gradient of the batch's mean loss, over at most ``physical_batch_size`` rows at a time; none, of none."""
        for rows in torch.split(batch, self.train.physical_batch_size or len(batch)) if len(batch) else ():
            losses = per_sample(self.loss(self.model(self.features[rows]), self.labels[rows]), len(rows))
            (losses.sum() / len(batch)).backward()  # type: ignore[no-untyped-call]

    def _step(self) -> None:
        moved = [(p, p.grad) for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
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
