"""What a model is for: two classes, more classes, or a number; and how its outputs are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from homo_dp.core.errors import ConfigError
from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy, squared_error

Kind = Literal["binary", "multiclass", "regression"]
Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "binary": binary_logistic,
    "multiclass": softmax_cross_entropy,
    "regression": squared_error,
}


@dataclass(frozen=True)
class Task:
    """How outputs of a module become a loss per record, probabilities and predictions.

    Labels are class indices (position in ``classes``), or for regression the target scaled so that its public
    ``target_bounds`` are [-1, 1].

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
        """Probability of the second class, shape (n,), for two classes; of each class, shape (n, classes), for more."""
        if self.kind == "regression":
            raise ValueError("task=regression: has no probabilities; use predictions")
        if self.kind == "multiclass":
            return torch.softmax(outputs, dim=1)
        return torch.sigmoid(outputs.reshape(-1))

    def predictions(self, outputs: Tensor, threshold: float = 0.5) -> Tensor:
        """Class indices, shape (n,), or numbers in the target's own units; the threshold is for two classes."""
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


def task_for(
    classes: Sequence[Any] | None, loss: Loss | None = None, target_bounds: tuple[float, float] | None = None
) -> Task:
    """The task that fits the declared classes: none means regression."""
    if not classes:
        return Task("regression", (), loss or squared_error, target_bounds)
    if len(classes) < 2:
        raise ConfigError(f"data.classes={list(classes)}: a classifier needs at least 2 classes; declare all of them")
    if len(set(map(str, classes))) != len(classes):
        raise ConfigError(f"data.classes={list(classes)}: every class must be named once")
    kind: Kind = "binary" if len(classes) == 2 else "multiclass"
    return Task(kind, tuple(classes), loss or LOSSES[kind])
