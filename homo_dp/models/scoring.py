"""Scoring rows with a model: loss, indicators and predictions, in chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from homo_dp.data.rows import Table
from homo_dp.models.fixed_features import front_end
from homo_dp.models.task import Task

CHUNK_VALUES = 1 << 20  # features scored at a time: a layer of a network holds a multiple of them
MOST_ROWS_FOR_AUC = 200_000  # beyond, sorting them every round costs more than a round of training


def outputs_of(model: nn.Module, features: Tensor) -> Tensor:
    """The model's raw outputs for all rows, without gradients: computed where the model is, and
    on the CPU.
    """
    model.eval()
    device = next(model.parameters()).device
    with torch.inference_mode():
        parts = [model(chunk.to(device)).cpu() for chunk in _chunks(features)]
    model.train()
    return torch.cat(parts) if parts else torch.empty(0)


def outputs_row_by_row(model: nn.Module, features: Tensor) -> Tensor:
    """The raw outputs, of each row on its own.

    Guarantees:
        - the output of a row depends on the row and the weights alone. In a batch its last bits
          depend on where it stands, and weights can be made such that these bits decide: one row
          less would then move all others.
    """
    model.eval()
    parameter = next(model.parameters())
    place = torch.empty_like(features[:1], device=parameter.device)
    with torch.inference_mode():
        parts = [model(place.copy_(row.unsqueeze(0))).cpu() for row in features]
    model.train()
    return torch.cat(parts) if parts else torch.empty(0)


def score_tables(model: nn.Module, tables: Sequence[Table]) -> tuple[Tensor, Tensor]:
    """Outputs and labels of several tables, one after the other."""
    outputs = [outputs_of(model, table.features) for table in tables]
    labels = [table.labels for table in tables if table.labels is not None]
    return torch.cat(outputs), torch.cat(labels)


def with_features(model: nn.Module, table: Table) -> Table:
    """A table with the features of a model's fixed front end instead of its images, so that they
    are made once.
    """
    fixed = front_end(model)
    if fixed is None or table.features.dim() == 2:
        return table
    return replace(table, features=fixed(table.features))


def round_metrics(model: nn.Module, task: Task, tables: Sequence[Table]) -> dict[str, float | None]:
    """What every round reports of the test rows: loss, accuracy, AUC; None where there is none."""
    if not tables:
        return {"test_loss": None, "test_acc": None, "test_auc": None}
    outputs, labels = score_tables(model, tables)
    accuracy = area = None
    if task.kind != "regression":
        accuracy = float((task.predictions(outputs) == labels.long()).double().mean())
        area = area_under_curve(task, outputs, labels) if len(labels) <= MOST_ROWS_FOR_AUC else None
    loss = float(task.test_loss(outputs, labels).double().mean())
    return {"test_loss": loss, "test_acc": accuracy, "test_auc": area}


def area_under_curve(task: Task, outputs: Tensor, labels: Tensor) -> float | None:
    """AUC of two classes; of more, the mean of each class against the rest."""
    from homo_dp.models.metrics import auc

    truth, scores = labels.long().cpu().numpy(), task.probabilities(outputs.double()).cpu().numpy()
    if task.kind == "binary":
        return auc(truth, scores)
    found = [
        auc((truth == index).astype("int64"), scores[:, index])
        for index in range(len(task.classes))
    ]
    areas = [area for area in found if area is not None]
    return sum(areas) / len(areas) if areas else None


def no_metrics(task: Task, prefix: str) -> dict[str, None]:
    """The names of the indicators, all null: for somebody who has no rows to compute them from."""
    from homo_dp.models.metrics import evaluate

    outputs = torch.zeros(0, len(task.classes) if len(task.classes) > 2 else 1)
    return dict.fromkeys(evaluate(task, outputs, torch.zeros(0).long(), prefix))


def load_into(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module in place."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            tensor.copy_(weights[name])


def _chunks(features: Tensor) -> Iterator[Tensor]:
    size = max(1, CHUNK_VALUES // max(1, features[:1].numel()))
    for start in range(0, len(features), size):
        yield features[start : start + size]
