"""What a result is worth: the share of the most frequent class, and a plain fit where rows are
public.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from homo_dp.data.rows import Table
from homo_dp.models.metrics import evaluate
from homo_dp.models.task import Task, task_for

# features of the plain fit; beyond, it would take longer than the training
MOST_VALUES = 20_000_000
_STEPS, _PENALTY = 100, 1e-4
WHAT = "linear model without privacy, fitted to what all parties hold together"


def majority(labels: Tensor) -> float | None:
    """The accuracy of always answering the most frequent class of these labels.

    >>> majority(torch.tensor([0, 1, 1, 1]))
    0.75
    """
    return float(torch.bincount(labels.long()).max() / len(labels)) if len(labels) else None


def plain_fit(task: Task, train: Sequence[Table], test: Sequence[Table]) -> dict[str, Any] | None:
    """Test metrics of a linear model fitted without privacy; for public rows only. None if there
    is nothing to fit.
    """
    if not train or not test or sum(table.features.numel() for table in train) > MOST_VALUES:
        return None
    linear = task_for(task.classes, None, task.target_bounds)
    features, labels = _joined(train)
    held, truth = _joined(test)
    weights = torch.zeros(
        features.shape[1] + 1, linear.outputs, dtype=torch.float64, requires_grad=True
    )
    optimizer = torch.optim.LBFGS([weights], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        outputs = features @ weights[:-1] + weights[-1]
        loss = linear.loss(outputs, labels).mean() + _PENALTY * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    outputs = held @ weights.detach()[:-1] + weights.detach()[-1]
    found = evaluate(linear, outputs, truth, "test_")
    return {
        "what": WHAT,
        **{name: found[name] for name in ("test_acc", "test_auc", "test_r2") if name in found},
    }


def _joined(tables: Sequence[Table]) -> tuple[Tensor, Tensor]:
    features = torch.cat([table.features.flatten(1) for table in tables]).double()
    labels = torch.cat([table.labels for table in tables if table.labels is not None])
    return features, labels.double() if labels.is_floating_point() else labels
