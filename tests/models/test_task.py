"""How outputs are read."""

import math

import pytest
import torch

from homo_dp.models.metrics import evaluate
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
    outputs = torch.tensor([[-3e5], [math.inf], [8.0], [-8.0]])
    chances = task.probabilities(outputs)
    assert chances.tolist()[:2] == pytest.approx([LEAST_CHANCE, 1 - LEAST_CHANCE], rel=1e-3)
    # all others are as they were
    assert torch.equal(chances[2:], torch.sigmoid(outputs[2:].reshape(-1)))
    labels = torch.tensor([1, 0, 1, 1])
    assert task.test_loss(outputs, labels).tolist() == pytest.approx(
        [9.2103, 9.2103, 0.000335, 8.000335], abs=1e-4
    )
    assert torch.equal(task.loss(outputs, labels) > 200, torch.tensor([True, True, False, False]))
    assert task.test_loss(outputs.reshape(-1), labels).shape == (4,)
    # what is not a number is not hidden
    assert bool(task.probabilities(torch.tensor([math.nan])).isnan().all())
    own = task_for(["no", "yes"], loss=lambda outputs, labels: outputs.reshape(-1))
    assert own.test_loss(outputs, labels).tolist() == [-3e5, math.inf, 8.0, -8.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sure_answers_keep_their_order(dtype: torch.dtype) -> None:
    # Cut off at the least chance they were all the same: a model that is three times too sure lost
    # 4 points of AUC.
    outputs = torch.linspace(-40.0, 0.0, 401, dtype=dtype)
    chances = task_for([0, 1]).probabilities(outputs)
    assert bool((chances.diff() > 0).all())
    assert float(chances.min()) >= LEAST_CHANCE
    other = task_for([0, 1]).probabilities(-outputs.double())
    assert torch.allclose(chances.double(), 1 - other, rtol=1e-5, atol=0.0)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20_000, generator=generator, dtype=torch.float64) * 1.5 - 4
    labels = (torch.rand(20_000, generator=generator) < scores.sigmoid()).long()
    found = [
        evaluate(task_for([0, 1]), scores.to(dtype) * times, labels)["auc"] for times in (1, 3)
    ]
    assert found[1] == pytest.approx(found[0], abs=1e-5)
