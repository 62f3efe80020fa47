"""Every number agrees with scikit-learn's or scipy's; nothing that is not a JSON number comes
out.
"""

import json
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from sklearn import metrics as reference

from homo_dp.models.metrics import (
    ROC_POINTS,
    auc,
    binary_metrics,
    evaluate,
    json_safe,
    multiclass_metrics,
    regression_metrics,
    roc_curve,
)
from homo_dp.models.task import task_for


def scored(rows: int, seed: int, ties: bool) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    scores = random.random(rows) * 0.7 + labels * 0.3
    return labels, np.round(scores, 1) if ties else scores


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 50, 999])
def test_binary_agrees_with_scikit_learn(rows: int, ties: bool) -> None:
    labels, scores = scored(rows, seed=rows, ties=ties)
    labels[:2] = [0, 1]
    found = binary_metrics(labels, scores, 0.6)
    guess = scores >= 0.6
    assert found["acc"] == pytest.approx(reference.accuracy_score(labels, guess))
    assert found["auc"] == pytest.approx(reference.roc_auc_score(labels, scores))
    assert found["ks"] == pytest.approx(
        ks_2samp(scores[labels == 1], scores[labels == 0]).statistic
    )
    for name, function in (
        ("f1", "f1_score"),
        ("precision", "precision_score"),
        ("recall", "recall_score"),
    ):
        assert found[name] == pytest.approx(
            getattr(reference, function)(labels, guess, zero_division=0)
        )
    fpr, tpr, thresholds = reference.roc_curve(labels, scores, drop_intermediate=False)
    assert found["fpr"] == pytest.approx(fpr)
    assert found["tpr"] == pytest.approx(tpr)
    assert found["thresholds"][1:] == pytest.approx(thresholds[1:])
    assert found["thresholds"][0] == pytest.approx(scores.max() + 1)


def test_a_long_curve_is_bounded_and_keeps_its_ends_and_its_area() -> None:
    labels, scores = scored(200_000, seed=5, ties=False)
    found = binary_metrics(labels, scores)
    assert len(found["fpr"]) == len(found["tpr"]) == len(found["thresholds"]) <= ROC_POINTS
    assert (found["fpr"][0], found["tpr"][0], found["fpr"][-1], found["tpr"][-1]) == (
        0.0,
        0.0,
        1.0,
        1.0,
    )
    shown = np.abs(np.array(found["tpr"]) - np.array(found["fpr"])).max()
    assert shown == pytest.approx(found["ks"])
    assert reference.auc(found["fpr"], found["tpr"]) == pytest.approx(found["auc"], abs=1e-3)
    assert found["auc"] == pytest.approx(reference.roc_auc_score(labels, scores))


def test_what_is_not_defined_is_null() -> None:
    one_class = binary_metrics(np.ones(3, dtype=np.int64), np.array([0.1, 0.2, 0.9]))
    assert one_class["auc"] is None
    assert one_class["ks"] is None
    assert one_class["fpr"] == []
    assert one_class["recall"] == pytest.approx(1 / 3)
    no_rows = binary_metrics(np.zeros(0, dtype=np.int64), np.zeros(0))
    assert set(map(str, no_rows.values())) == {"None", "[]"}
    broken = binary_metrics(np.array([0, 1]), np.array([np.nan, 0.5]))
    assert broken["auc"] is None
    assert auc(np.array([0, 1]), np.array([np.inf, 0.5])) is None
    assert all(len(part) == 0 for part in roc_curve(np.zeros(0, dtype=np.int64), np.zeros(0)))


def test_multiclass_agrees_with_scikit_learn() -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, 4, 500)
    probabilities = random.dirichlet(np.ones(4), 500)
    probabilities[np.arange(500), labels] += 0.3
    probabilities /= probabilities.sum(1, keepdims=True)
    guess = probabilities.argmax(1)
    found = multiclass_metrics(labels, probabilities, ["a", "b", "c", "d"])
    assert found["auc"] == pytest.approx(
        reference.roc_auc_score(labels, probabilities, multi_class="ovr")
    )
    assert found["acc"] == pytest.approx(reference.accuracy_score(labels, guess))
    assert found["confusion_matrix"] == reference.confusion_matrix(labels, guess).tolist()
    for ending, average in (("", "macro"), ("_weighted", "weighted")):
        for name in ("f1", "precision", "recall"):
            expected = getattr(reference, f"{name}_score")(labels, guess, average=average)
            assert found[name + ending] == pytest.approx(expected)
    each = reference.f1_score(labels, guess, average=None)
    assert [part["f1"] for part in found["per_class"].values()] == pytest.approx(each)
    assert sum(part["rows"] for part in found["per_class"].values()) == 500


def test_a_class_that_never_occurs_does_not_pull_the_mean_down() -> None:
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.8, 0.2, 0.0], [0.7, 0.3, 0.0], [0.1, 0.9, 0.0], [0.6, 0.4, 0.0]])
    found = multiclass_metrics(labels, probabilities, [0, 1, 2])
    assert found["f1"] == pytest.approx(
        reference.f1_score(labels, probabilities.argmax(1), average="macro")
    )
    assert found["per_class"]["2"]["auc"] is None
    assert found["auc"] is not None
    empty = multiclass_metrics(np.zeros(0, dtype=np.int64), np.zeros((0, 3)), [0, 1, 2])
    assert empty["acc"] is None
    assert empty["f1"] is None


def test_regression_agrees_with_scikit_learn() -> None:
    random = np.random.default_rng(4)
    labels = random.random(301) * 50 + 1
    guess = np.abs(labels + random.normal(0, 5, 301))
    found = regression_metrics(labels, guess)
    names = {
        "ev": "explained_variance_score",
        "maxe": "max_error",
        "mae": "mean_absolute_error",
        "mse": "mean_squared_error",
        "rmse": "root_mean_squared_error",
        "msle": "mean_squared_log_error",
        "medae": "median_absolute_error",
        "mape": "mean_absolute_percentage_error",
        "r2": "r2_score",
    }
    assert list(found) == list(names)
    for name, function in names.items():
        assert found[name] == pytest.approx(getattr(reference, function)(labels, guess)), name


def test_regression_without_meaning_is_null() -> None:
    constant = regression_metrics(np.zeros(3), np.array([0.0, -1.0, 1.0]))
    assert (constant["r2"], constant["ev"], constant["msle"], constant["mape"]) == (
        None,
        None,
        None,
        None,
    )
    assert set(regression_metrics(np.zeros(0), np.zeros(0)).values()) == {None}


def test_regression_is_reported_in_the_units_of_the_target() -> None:
    task = task_for(None, target_bounds=(0.0, 100.0))
    outputs, labels = torch.tensor([[0.0], [0.5]]), torch.tensor([0.2, 0.5])
    found = evaluate(task, outputs, labels, "test_")
    assert found["test_mae"] == pytest.approx(5.0)  # truth 60 and 75, predicted 50 and 75
    assert found["test_loss"] == pytest.approx(float(task.loss(outputs, labels).mean()))


@pytest.mark.parametrize("outputs", [[[float("nan")], [1.0]], [[float("inf")], [-float("inf")]]])
def test_a_model_that_diverged_still_gives_valid_json(outputs: list[list[float]]) -> None:
    found = evaluate(task_for([0, 1]), torch.tensor(outputs), torch.tensor([0, 1]), "test_")
    json.dumps(found, allow_nan=False)
    assert all(name.startswith("test_") for name in found)


def test_json_safe_takes_numpy_and_torch_numbers() -> None:
    value = json_safe(
        {"a": np.float32(0.5), 1: torch.tensor([1, 2]), "c": (np.int64(3), np.array([np.nan]))}
    )
    assert value == {"a": 0.5, "1": [1, 2], "c": [3, [None]]}
    json.dumps(value, allow_nan=False)
