"""The users of a cohort, trained: together as batched tensors, or one at a time by the hooks of a
party.

Both give the sum of what the users send, before the aggregator's noise, and the same sum to float
tolerance. Together means one row of a matrix for each user's weights; every step is one batched
product (a linear model) or one vectorised gradient (any other module), in pieces of the cohort that
stay within a memory limit.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.config.schema import TrainConfig
from homo_dp.federation.mechanisms.base import Update, Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism, CohortSum
from homo_dp.federation.mechanisms.flat_weights import Layout, check_module
from homo_dp.federation.mechanisms.local_fit import PerSampleLoss
from homo_dp.federation.users.user_rows import Batch, LocalPlan, UserFit, Users, users_at_once
from homo_dp.privacy.gradients.clipping import clip_rows, row_norms
from homo_dp.privacy.gradients.losses import per_sample

log = logging.getLogger(__name__)

# Up to this rate (over 1 - momentum) 100 epochs left a rounding at 1e-6 clip norms; at 3 it was
# 1e-4, at 10 it was 0.9.
MOST_RATE_TOGETHER = 1.0
MEMORY_BYTES = 64 << 20  # what one piece of a cohort may take beside the users' own rows

# (weights of each user as rows, features, labels, share of each row in its user's mean) ->
# gradients as rows
Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class CohortTraining(ABC):
    """Local training of the users of a table."""

    model: nn.Module
    loss: PerSampleLoss
    users: Users
    train: TrainConfig

    @abstractmethod
    def run(
        self, mechanism: CohortMechanism, chosen: Tensor, weights: Weights, round_number: int
    ) -> CohortSum:
        """Train the chosen users from the global weights; the sum of what they send.

        Numbers beyond the users of the table are users who never reply.
        """

    def _present(self, chosen: Tensor) -> Tensor:
        return chosen[chosen < len(self.users)]


class OneAtATime(CohortTraining):
    """One user after the other through ``LocalFit`` and the mechanism's hooks, as a party
    trains.
    """

    def run(
        self, mechanism: CohortMechanism, chosen: Tensor, weights: Weights, round_number: int
    ) -> CohortSum:
        total, layout = mechanism.open_sum(weights), mechanism.layout(weights)
        broadcast = dict(mechanism.broadcast_info())
        for user in self._present(chosen).tolist():
            fit = UserFit(self.model, self.loss, self.users, user, self.train)
            release = fit.fit(mechanism, weights, round_number, broadcast)
            sent = Update(fit.facts.name, release.tensors, 1.0, release.info)
            total.add(mechanism.received(sent, layout, total.clip_norm))
        return total


@dataclass(frozen=True)
class Together(CohortTraining):
    """Users as rows of one matrix, in pieces within ``memory_bytes``.

    How a float32 product rounds depends on the shape that it is part of, and many steps with a
    large learning rate make any difference large. So in a piece of several users the update of one
    depends, by a rounding, on who else is there, which no clip bounds; ``apart`` takes each user as
    a piece of its own.
    """

    memory_bytes: int = MEMORY_BYTES
    apart: bool = False
    _widths: dict[str, int] = field(default_factory=dict, repr=False)

    def run(
        self, mechanism: CohortMechanism, chosen: Tensor, weights: Weights, round_number: int
    ) -> CohortSum:
        check_module(self.model, mechanism.config.privacy.public_tensors)
        total = mechanism.open_sum(weights)
        present = self._present(chosen)
        # users of like sizes need little padding
        present = present[self.users.sizes[present].argsort()]
        pieces = (
            [1] * len(present) if self.apart else self._pieces(present, mechanism.layout(weights))
        )
        for piece in torch.split(present, pieces):
            rows, within = self._trained(mechanism, piece, weights, round_number)
            total.add(mechanism.contributions(rows, total.clip_norm, within))
        return total

    def _trained(
        self, mechanism: CohortMechanism, piece: Tensor, weights: Weights, round_number: int
    ) -> tuple[Tensor, Tensor]:
        """The difference to the global weights of each user, and whether no projection has
        clipped it.
        """
        layout, plan = mechanism.layout(weights), LocalPlan(self.train)
        start = layout.flatten(weights)
        rows = start.repeat(len(piece), 1)
        within = torch.ones(len(piece), dtype=torch.bool)
        gradient = self._gradient(layout, weights)
        sizes, offsets = self.users.sizes[piece].numpy(), self.users.offsets[piece].numpy()
        steps = plan.steps(sizes)
        velocity: Tensor | None = None
        for step, batch in enumerate(
            plan.batches(self.users.shuffled_by(piece.numpy()), sizes, round_number)
        ):
            moves = gradient(rows, *self._gathered(batch, offsets))
            if self.train.weight_decay:
                moves.add_(rows, alpha=self.train.weight_decay)
            if self.train.proximal_mu:
                moves.add_(rows - start, alpha=self.train.proximal_mu)
            if self.train.momentum:
                velocity = (
                    moves if velocity is None else velocity.mul_(self.train.momentum).add_(moves)
                )
                moves = velocity.clone()
            moves.mul_(self._rates(step, steps, round_number, rows.dtype))
            if not batch.active.all():
                moves.masked_fill_(torch.from_numpy(~batch.active).unsqueeze(1), 0.0)
            rows.sub_(moves)
            if keys_of(mechanism.config.privacy, UserKeys).clip_each_step:
                within &= self._project(rows, start, mechanism.clip_norm)
        return rows.sub_(start), within

    def _rates(
        self, step: int, steps: np.ndarray, round_number: int, dtype: torch.dtype
    ) -> Tensor | float:
        """The learning rate of each user: schedules run over all rounds of that user's own
        steps.
        """
        train = self.train
        if train.schedule.kind == "constant":
            return train.learning_rate
        rates = {
            count: train.schedule.rate(
                train.learning_rate,
                (round_number - 1) * count + step,
                train.rounds * count,
                train.weight_decay,
            )
            for count in set(steps.tolist())
        }
        return torch.tensor([rates[count] for count in steps.tolist()], dtype=dtype).unsqueeze(1)

    def _gathered(self, batch: Batch, offsets: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Features, labels and row weights of a step; padding repeats a row of the same user
        with weight zero.
        """
        flat = torch.from_numpy((batch.positions + offsets[:, None]).reshape(-1))
        users, width = batch.taken.shape
        features = self.users.features.index_select(0, flat)
        features = features.view(users, width, *features.shape[1:])
        labels = self.users.labels.index_select(0, flat).view(users, width)
        shares = batch.taken / batch.taken.sum(1, keepdims=True)
        return features, labels, torch.from_numpy(shares).to(features.dtype)

    def _gradient(self, layout: Layout, weights: Weights) -> Gradient:
        if _linear_layer(self.model, layout) is not None and hasattr(self.loss, "output_gradient"):
            return _linear_gradient(layout, self.loss.output_gradient)
        return _vectorised_gradient(self.model, self.loss, layout, weights)

    @staticmethod
    def _project(rows: Tensor, start: Tensor, clip_norm: float) -> Tensor:
        """Pull rows that left the ball around ``start`` back to it, in place; true for those
        that had not left it.
        """
        moved = rows - start
        norms = row_norms(moved)
        outside = (norms > clip_norm) & norms.isfinite()
        if bool(outside.any()):
            rows[outside] = start + clip_rows(moved[outside], clip_norm)
        return ~outside

    def _pieces(self, present: Tensor, layout: Layout) -> list[int]:
        """How many users go together, the smallest first: within the memory limit, and with about
        as many steps.

        A user takes its weights, gradients, the gathered batch and what the layers keep for the
        gradient.
        """
        plan, rows = LocalPlan(self.train), self.users.sizes[present].numpy()
        if "kept" not in self._widths:
            self._widths["kept"] = _kept_per_row(self.model, self.users.features[:1])
        widths, steps = plan.batch_sizes(rows), plan.steps(rows)
        each, limit = widths, self.train.physical_batch_size
        if limit is None:
            numbers = 6 * layout.size + widths * (
                3 * self.users.features[0].numel() + self._widths["kept"]
            )
            each, limit = 4 * numbers + 32 * rows, self.memory_bytes
        return users_at_once(each, steps, limit)


def cohort_training(
    model: nn.Module, loss: PerSampleLoss, users: Users, train: TrainConfig, *, apart: bool = False
) -> CohortTraining:
    """Users together where the optimiser and the module allow it, else one at a time.

    Guarantees:
        - with ``apart``, or steps so large that rounding grows from step to step, no number of one
          user depends on another.
    """
    if train.optimizer != "sgd":
        log.info(
            "train.optimizer=%s: users are trained one at a time; sgd trains them together",
            train.optimizer,
        )
        return OneAtATime(model, loss, users, train)
    together = Together(model, loss, users, train, apart=apart or _moves_far(train))
    try:
        weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        trained = {name for name, tensor in model.named_parameters() if tensor.requires_grad}
        layout = Layout.of(weights, set(weights) - trained)
        features, labels = (tensor[:1].unsqueeze(0) for tensor in (users.features, users.labels))
        together._gradient(layout, weights)(
            layout.flatten(weights).unsqueeze(0), features, labels, torch.ones(1, 1)
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        log.warning(
            "users are trained one at a time, since the model cannot be vectorised: %s", reason
        )
        return OneAtATime(model, loss, users, train)
    return together


def _moves_far(train: TrainConfig) -> bool:
    """Whether steps are so large that rounding grows; by settings alone, since it decides how
    users are trained.
    """
    # no schedule raises it later
    first = train.schedule.rate(train.learning_rate, 0, train.rounds, train.weight_decay)
    return not first <= MOST_RATE_TOGETHER * (1 - train.momentum) * (1 + 1e-9)


def _linear_layer(model: nn.Module, layout: Layout) -> nn.Linear | None:
    """The only layer with weights of a model that is linear in flattened features; None for any
    other.
    """
    layers = [
        layer
        for layer in model.modules()
        if not list(layer.children()) and not isinstance(layer, nn.Flatten)
    ]
    plain = isinstance(model, nn.Linear) or type(model) is nn.Sequential
    if not plain or len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    return layers[0] if len(layout.shapes) == len(list(layers[0].parameters())) else None


def _linear_gradient(
    layout: Layout, output_gradient: Callable[[Tensor, Tensor], Tensor]
) -> Gradient:
    """Closed form: outputs X W' + b, gradients G' X and the sum of G, for all users in one
    product each.
    """

    def gradient(rows: Tensor, features: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        flat = features.flatten(2)
        weight, *bias = _weight_first(layout.views(rows))
        outputs = (
            flat @ weight.mT if not bias else torch.baddbmm(bias[0].unsqueeze(1), flat, weight.mT)
        )
        at_outputs = output_gradient(outputs.flatten(0, 1), labels.flatten(0, 1)).view_as(outputs)
        at_outputs = at_outputs * shares.unsqueeze(2)
        result = torch.empty_like(rows)
        to_weight, *to_bias = _weight_first(layout.views(result))
        to_weight.copy_(at_outputs.mT @ flat)
        for each in to_bias:
            each.copy_(at_outputs.sum(1))
        return result

    return gradient


def _weight_first(parts: Weights) -> list[Tensor]:
    return sorted(parts.values(), key=Tensor.dim, reverse=True)


def _vectorised_gradient(
    model: nn.Module, loss: PerSampleLoss, layout: Layout, weights: Weights
) -> Gradient:
    """Any module: the gradient of one user's weighted loss, over all users at once
    (``torch.func``).
    """
    public = {name: tensor for name, tensor in weights.items() if name not in layout.shapes}

    def loss_of(parts: Weights, features: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        outputs = functional_call(model, (parts, public), (features,))
        return (per_sample(loss(outputs, labels), len(shares)) * shares).sum()

    each = vmap(grad(loss_of), randomness="different")

    def gradient(rows: Tensor, features: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        parts: Weights = each(layout.views(rows), features, labels, shares)
        return torch.cat([parts[name].reshape(len(rows), -1) for name in layout.shapes], dim=1).to(
            rows.dtype
        )

    return gradient


def _kept_per_row(model: nn.Module, features: Tensor) -> int:
    """Numbers that all layers put out for one row, times three for their gradients and what they
    save.
    """
    kept: list[int] = []

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            kept.append(math.prod(output.shape))

    handles = [
        layer.register_forward_hook(count)
        for layer in model.modules()
        if not list(layer.children())
    ]
    try:
        with torch.no_grad():
            model.eval()(features)
    finally:
        model.train()
        for handle in handles:
            handle.remove()
    return 3 * sum(kept)
