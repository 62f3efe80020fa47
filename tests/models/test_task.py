"""How outputs are read."""

import pytest
import torch

from homo_dp.models.task import LEAST_CHANCE, task_for


def test_binary() -> None:
    task = task_for(["no", "yes"])
    outputs = torch.tensor([[0.0], [2.0], [-2.0]])
    assert task.probabilities(outputs).tolist() == pytest.approx([0.5, 0.8808, 0.1192], abs=1e-4)
    assert task.predictions(outputs).tolist() == [1, 1, 0]
    assert task.predictions(outputs, threshold=0.9).tolist() == [0, 0, 0]
    assert task.predictions(outputs.reshape(-1), threshold=0.1).tolist() == [1, 1, 1]
    assert task.loss(outputs, torch.tensor([1, 1, 0])).shape == (3,)


def test_multiclass() -> None:
    task = task_for(["a", "b", "c"])
    outputs = torch.tensor([[1.0, 2.0, 0.0]])
    assert task.outputs == 3
    assert float(task.probabilities(outputs).sum()) == pytest.approx(1.0)
    assert task.predictions(outputs).tolist() == [1]


def test_regression() -> None:
    task = task_for(None, target_bounds=(10.0, 30.0))
    assert task.predictions(torch.tensor([[0.0], [1.0], [-1.0]])).tolist() == [20.0, 30.0, 10.0]
    assert task_for([]).predictions(torch.tensor([[0.5]])).tolist() == [0.5]
    with pytest.raises(ValueError, match="no probabilities"):
        task.probabilities(torch.zeros(1, 1))


def test_no_model_of_two_classes_is_surer_than_the_least_chance() -> None:
    task = task_for(["no", "yes"])
    outputs = torch.tensor([[-300.0], [300.0], [9.0], [-9.0]])
    chances = task.probabilities(outputs)
    assert chances.tolist()[:2] == pytest.approx([LEAST_CHANCE, 1 - LEAST_CHANCE], rel=1e-3)
    assert torch.equal(chances[2:], torch.sigmoid(outputs[2:].reshape(-1)))  # all others are as they were
    losses = task.test_loss(outputs, torch.tensor([1, 0, 1, 1]))
    assert losses.tolist() == pytest.approx([9.2103, 9.2103, 0.00012, 9.00012], abs=1e-4)
    assert torch.equal(task.loss(outputs, torch.tensor([1, 0, 1, 1])) > 200, torch.tensor([True, True, False, False]))
    own = task_for(["no", "yes"], loss=lambda outputs, labels: outputs.reshape(-1))
    assert own.test_loss(outputs, torch.tensor([1, 0, 1, 1])).tolist() == [-300.0, 300.0, 9.0, -9.0]
