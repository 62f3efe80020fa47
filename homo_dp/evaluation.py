"""Scoring rows with a model: loss, indicators and predictions, in chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from homo_dp.data.rows import Table
from homo_dp.models.task import Task

CHUNK_ROWS = 65_536


def outputs_of(model: nn.Module, features: Tensor) -> Tensor:
    """The model's raw outputs for all rows, without gradients."""
    model.eval()
    with torch.inference_mode():
        parts = [model(chunk) for chunk in _chunks(features)]
    model.train()
    return torch.cat(parts) if parts else torch.empty(0)


def score_tables(model: nn.Module, tables: Sequence[Table]) -> tuple[Tensor, Tensor]:
    """Outputs and labels of several tables, one after the other."""
    outputs = [outputs_of(model, table.features) for table in tables]
    labels = [table.labels for table in tables if table.labels is not None]
    return torch.cat(outputs), torch.cat(labels)


def loss_and_accuracy(model: nn.Module, task: Task, tables: Sequence[Table]) -> tuple[float | None, float | None]:
    """Mean loss and accuracy (None for regression): the two numbers that every round reports."""
    if not tables:
        return None, None
    outputs, labels = score_tables(model, tables)
    loss = float(task.loss(outputs, labels).mean())
    if task.kind == "regression":
        return loss, None
    return loss, float((task.predictions(outputs) == labels.long()).double().mean())


def load_into(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module in place."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            tensor.copy_(weights[name])


def _chunks(features: Tensor) -> Iterator[Tensor]:
    for start in range(0, len(features), CHUNK_ROWS):
        yield features[start : start + CHUNK_ROWS]
