"""What a model is for: two classes, more classes, or a number; and how its outputs are read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from homo_dp.core.errors import ConfigError
from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy, squared_error

Kind = Literal["binary", "multiclass", "regression"]
Loss = Callable[[Tensor, Tensor], Tensor]
# of two classes: no model is surer, as it knows next to nothing of a row unlike all others
LEAST_CHANCE = 1e-4
_SURE = math.log(1 / (2 * LEAST_CHANCE) - 1)  # the output from which on answers are held back
_SURER = math.log(1 / LEAST_CHANCE - 1) - _SURE  # by how much the surest ones pass it
LOSSES: dict[str, Loss] = {
    "binary": binary_logistic,
    "multiclass": softmax_cross_entropy,
    "regression": squared_error,
}


@dataclass(frozen=True)
class Task:
    """How outputs of a module become a loss per record, probabilities and predictions.

    Labels are class indices (position in ``classes``), or for regression the target scaled so that
    its public ``target_bounds`` are [-1, 1].

    >>> task = task_for(["benign", "malignant"])
    >>> logits = torch.tensor([[2.0], [-1.0]])
    >>> [task.classes[index] for index in task.predictions(logits)]
    ['malignant', 'benign']
    """

    kind: Kind
    classes: tuple[Any, ...]
    loss: Loss
    target_bounds: tuple[float, float] | None = None

    @property
    def outputs(self) -> int:
        """How many outputs a module of this task has."""
        return len(self.classes) if self.kind == "multiclass" else 1

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Probability of the second class, shape (n,), for two classes; of each class, shape (n,
        classes), for more.

        Of two classes each has ``LEAST_CHANCE`` at least: a row with a value far from all others
        would otherwise cost as much log loss as a hundred, since clipping keeps such rows from
        being heard in training.

        >>> task_for([0, 1]).probabilities(torch.tensor([-1e4, 0.0, 1e4]))
        tensor([1.0000e-04, 5.0000e-01, 9.9990e-01])
        """
        if self.kind == "regression":
            raise ValueError("task=regression: has no probabilities; use predictions")
        if self.kind == "multiclass":
            return torch.softmax(outputs, dim=1)
        return torch.sigmoid(_held_back(outputs.reshape(-1)))

    def test_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row as it is reported: that of training, but no more than the least
        chance costs.

        >>> task_for([0, 1]).test_loss(torch.tensor([0.0, 1e4]), torch.tensor([1, 0]))
        tensor([0.6931, 9.2103])
        """
        return self.loss(_held_back(outputs) if self.loss is LOSSES["binary"] else outputs, labels)

    def predictions(self, outputs: Tensor, threshold: float = 0.5) -> Tensor:
        """Class indices, shape (n,), or numbers in the target's own units; the threshold is for
        two classes.
        """
        if self.kind == "regression":
            return self.in_units(outputs.reshape(-1))
        if self.kind == "multiclass":
            return outputs.argmax(dim=1)
        return (self.probabilities(outputs) >= threshold).to(torch.int64)

    def in_units(self, scaled: Tensor) -> Tensor:
        """A scaled regression target in its own units."""
        if self.target_bounds is None:
            return scaled
        low, high = self.target_bounds
        return (scaled + 1.0) * ((high - low) / 2.0) + low


def _held_back(outputs: Tensor) -> Tensor:
    """Outputs of two classes, brought within the least chance; all in the same order, and those in
    between as they are.

    >>> _held_back(torch.tensor([-1e4, -12.0, -9.0, -8.0, 8.0]))
    tensor([-9.2102, -9.0952, -8.8017, -8.0000,  8.0000])
    """
    over = (outputs.abs() - _SURE).clamp(0.0, 1e30)  # a quotient of infinite numbers would be none
    held = outputs.sign() * (_SURE + over * _SURER / (over + _SURER))
    return torch.where(over > 0, held, outputs)


def task_for(
    classes: Sequence[Any] | None,
    loss: Loss | None = None,
    target_bounds: tuple[float, float] | None = None,
) -> Task:
    """The task that fits the declared classes: none means regression."""
    if not classes:
        return Task("regression", (), loss or squared_error, target_bounds)
    if len(classes) < 2:
        raise ConfigError(
            f"data.classes={list(classes)}: a classifier needs at least 2 classes; declare all of "
            "them"
        )
    if len(set(map(str, classes))) != len(classes):
        raise ConfigError(f"data.classes={list(classes)}: every class must be named once")
    kind: Kind = "binary" if len(classes) == 2 else "multiclass"
    return Task(kind, tuple(classes), loss or LOSSES[kind])
