"""Scoring in chunks is scoring at once, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from homo_dp.data.rows import Table
from homo_dp.models import scoring
from homo_dp.models.scoring import load_into, no_metrics, outputs_of, round_metrics
from homo_dp.models.task import task_for


def test_chunks_give_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, features = nn.Linear(4, 2), torch.randn(11, 4)
    whole = outputs_of(model, features)
    monkeypatch.setattr(scoring, "CHUNK_VALUES", 8)
    torch.testing.assert_close(outputs_of(model, features), whole)
    assert len(outputs_of(model, features[:0])) == 0
    assert model.training
    assert not whole.requires_grad


def test_metrics_of_a_round() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(5.0)
    table = Table(torch.tensor([[1.0], [-1.0], [2.0]]), torch.tensor([1, 0, 1]))
    found = round_metrics(model, task_for([0, 1]), [table])
    assert (found["test_acc"], found["test_auc"]) == (1.0, 1.0)
    assert set(round_metrics(model, task_for([0, 1]), []).values()) == {None}


def test_names_without_rows_are_those_with_rows() -> None:
    names = no_metrics(task_for([0, 1, 2]), "test_")
    assert {"test_acc", "test_auc", "test_f1", "test_confusion_matrix"} <= set(names)
    assert set(names.values()) == {None}


def test_weights_are_copied_in_place() -> None:
    model = nn.Linear(2, 1)
    weight = model.weight
    load_into(model, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    assert model.weight is weight
    assert weight.tolist() == [[1.0, 1.0]]
