"""What a solver is: which sums come first, the coordinates of rows, and the step that follows from
a released gradient.

A mechanism bounds, noises and accounts; its solver says what the sums are for. Data walk of a run:
``sums`` first -> parties: ``row_sum`` -> (the mechanism adds noise) -> aggregator: ``take`` ->
every later round: ``tensors`` go out with the weights -> parties: ``gradients`` in the coordinates
that they give -> (clipped, noised) -> aggregator: ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.config.schema import Config
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.party_plan import FederationFacts
from homo_dp.federation.protocol.round_sums import RoundSum, RoundSums
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.privacy.engine.release import named_parts
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.linear_rows import LinearTraining
from homo_dp.privacy.private_sum import NoiseShare


class PartyRows(Protocol):
    """What a solver uses of a party's rows and model."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    features: Tensor
    labels: Tensor
    start: Weights
    optimizer: torch.optim.Optimizer

    def rows(self) -> DataLoader[Any]:
        """The rows as a loader."""

    def linear_rows(self) -> Tensor:
        """The rows as a linear model multiplies them."""

    def weights(self) -> Weights:
        """A copy of the model's weights."""


@dataclass(frozen=True)
class Step:
    """The weights after a step; ``whole`` where they are the model and no step to average over."""

    weights: Weights
    whole: bool = False


class Gradients:
    """What a party takes gradients of: the model on its rows."""

    def __init__(self, fit: PartyRows) -> None:
        self.module, self.optimizer, self.criterion = fit.model, fit.optimizer, fit.loss
        self.loader = fit.rows()

    def begin(self, start: Weights) -> None:
        """Take gradients at the weights of a round; those of the model are loaded already."""

    def named(self, released: Tensor) -> Weights:
        """A released sum under the names of the model's weights."""
        return named_parts(self.module, released)


class LinearGradients(Gradients):
    """A linear layer on transformed rows, in place of the model.

    Args:
        fit: The party's model and rows.
        transform: The tensor that comes with the weights for rows to be transformed by; None where
            they stay as they are.
        row_norm: What rows are clipped to; None where gradients alone are clipped.
    """

    def __init__(self, fit: PartyRows, transform: str | None, row_norm: float | None) -> None:
        self._transform = transform
        self._linear = linear = LinearTraining(
            fit.model, fit.loss, fit.features, fit.labels, row_norm=row_norm
        )
        self.module, self.criterion = linear.module, linear.loss
        self.loader = DataLoader(TensorDataset(linear.features, linear.labels))
        # it hands out and never steps
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1.0)

    def begin(self, start: Weights) -> None:
        """Take gradients at these weights, in the coordinates that came with them."""
        transform = None if self._transform is None else start[self._transform]
        self._linear.set_round(start, transform)

    def named(self, released: Tensor) -> Weights:
        """A released sum under the names of the model's weights."""
        return self._linear.named(released)


class Solver:
    """Solver ``sgd``, for any model: no sum comes first, and a step is along the gradient.

    Guarantees every subclass must keep:
        - at the aggregator it goes by released and public numbers alone;
        - a row moves what ``row_sum`` gives by at most the clip norm of the sum that was asked.
    """

    def __init__(
        self,
        config: Config,
        facts: FederationFacts,
        share: NoiseShare | None,
        noise_of_mean: Callable[[], float],
    ) -> None:
        """Prepare a run.

        Args:
            config: That of the run.
            facts: Its public facts.
            share: How parties share the noise of sums; None where each adds its own.
            noise_of_mean: Gives the standard deviation of the noise in a mean gradient, which is
                solved once all sums are known.
        """
        self._config, self._facts, self._share = config, facts, share
        self._noise_of_mean = noise_of_mean
        self._width = facts.parameters // facts.outputs

    @property
    def sums(self) -> RoundSums:
        """What is asked before the first gradient, by round."""
        return {}

    # --- at the party ---

    def row_sum(self, fit: PartyRows, asked: RoundSum) -> Tensor:
        """What this party's rows add up to in one of the sums, bounded and without noise."""
        raise PrivacyError(f"train.solver={self._config.train.solver}: asks no {asked.name}")

    def gradients(self, fit: PartyRows) -> Gradients:
        """What the gradients of a party are of; it lives through all rounds."""
        return Gradients(fit)

    def signature(self, round_number: int) -> Signature:
        """Names, shapes and dtypes of what comes with the weights of a round."""
        return {}

    # --- at the aggregator ---

    def tensors(self, weights: Weights, round_number: int, trains: int | None) -> Weights:
        """What parties need with these weights.

        Args:
            weights: Of the round.
            round_number: Its number in the run.
            trains: Its number among those that train; None where it asks another sum.
        """
        return {}

    def take(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Weights:
        """Learn from one of the sums.

        Args:
            asked: The sum.
            parts: Its values by party; of all under masks.
            current: The global weights.
            round_number: The number of the round in the run.

        Returns:
            The weights to go on from.
        """
        return current

    def starts_from_mean(self, trains: int) -> bool:
        """Whether a round that trains goes on from the mean of the models before it."""
        return False

    def step(self, total: Weights, expected: float, current: Weights, trains: int) -> Step:
        """Move the weights.

        Args:
            total: The released sum of gradients.
            expected: The expected number of rows in it.
            current: The global weights.
            trains: The number of the round among those that train.
        """
        train = self._config.train
        rate = train.schedule.rate(
            train.learning_rate, trains - 1, self._facts.rounds, train.weight_decay
        )
        total = self._back(total, current)
        moved = {}
        for name, weight in current.items():
            # decay is added here, where no row has a part
            gradient = total[name] / expected + train.weight_decay * weight.double()
            moved[name] = (weight.double() - rate * gradient).to(weight.dtype)
        return Step(moved)

    def _back(self, total: Weights, current: Weights) -> Weights:
        """A sum of gradients as a direction for the model's own weights."""
        return total

    def state(self) -> Weights:
        """What a restart needs."""
        return {}

    def restore(self, state: Weights) -> None:
        """Go on from what ``state`` gave."""


def as_table(tensors: Weights) -> Tensor:
    """Weight and bias of a linear model as one table with a row an output and the bias behind."""
    # the weight has two dimensions
    parts = sorted(tensors.values(), key=lambda tensor: -tensor.dim())
    return torch.cat([part.double().reshape(parts[0].shape[0], -1) for part in parts], dim=1)


def as_weights(table: Tensor, like: Weights) -> Weights:
    """A table that ``as_table`` made, as weight and bias again."""
    names = sorted(like, key=lambda name: -like[name].dim())
    outputs = like[names[0]].shape[0]
    pieces = torch.split(table, [like[name].numel() // outputs for name in names], dim=1)
    return {
        name: piece.reshape(like[name].shape).to(like[name].dtype)
        for name, piece in zip(names, pieces, strict=True)
    }


def in_own_coordinates(
    back: Callable[[Tensor], Tensor], total: Weights, current: Weights
) -> Weights:
    """A sum of gradients of a linear model through a map of tables, in float64.

    Args:
        back: From a table in the rows' coordinates to one in the columns' own.
        total: The sum, by name of a weight.
        current: The weights, which say the shapes.
    """
    like = {name: weight.double() for name, weight in current.items()}
    return as_weights(back(as_table(total)), like)
