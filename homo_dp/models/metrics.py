"""Indicators of how well a model predicts: PrimiHub's names, plain numbers, null where a number is
not defined.

Written with numpy and one sort, because importing scikit-learn's metrics would add a third to the
CPU time of a training (docs/adr/0012); the tests hold every number to scikit-learn's.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homo_dp.models.task import Task

Metrics = dict[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROC_POINTS = 1000


def evaluate(
    task: Task, outputs: Tensor, labels: Tensor, prefix: str = "", threshold: float = 0.5
) -> Metrics:
    """All indicators of a task from a module's raw outputs and the labels of the same rows, as a
    flat dict.

    >>> from homo_dp.models.task import task_for
    >>> evaluate(task_for([0, 1]), torch.tensor([[2.0], [-2.0]]), torch.tensor([1, 0]), "test_")["test_auc"]
    1.0
    """
    outputs, labels = outputs.detach().cpu(), labels.detach().cpu()
    loss = task.test_loss(outputs, labels).to(torch.float64).mean().item() if len(labels) else None
    outputs = outputs.to(torch.float64)
    if task.kind == "regression":
        truth = task.in_units(labels.to(torch.float64))
        found = regression_metrics(_floats(truth), _floats(task.predictions(outputs)))
    elif task.kind == "binary":
        found = binary_metrics(_ints(labels), _floats(task.probabilities(outputs)), threshold)
    else:
        found = multiclass_metrics(_ints(labels), _table(task.probabilities(outputs)), task.classes)
    return {prefix + name: json_safe(value) for name, value in {"loss": loss, **found}.items()}


def binary_metrics(labels: Ints, scores: Floats, threshold: float = 0.5) -> Metrics:
    """Accuracy, AUC, KS, F1, precision, recall and the ROC curve of scores for class 1."""
    predicted = scores >= threshold
    positive = labels == 1
    hits = int((predicted & positive).sum())
    precision = _ratio(hits, int(predicted.sum()))
    recall = _ratio(hits, int(positive.sum()))
    fpr, tpr, thresholds = roc_curve(labels, scores)
    defined = bool(0 < positive.sum() < len(labels) and np.isfinite(scores).all())
    shown = _bounded(fpr, tpr, ROC_POINTS)
    return {
        "acc": _mean(predicted == positive),
        "auc": _area(fpr, tpr) if defined else None,
        "ks": float(np.max(np.abs(tpr - fpr))) if defined else None,
        "f1": _f1(precision, recall) if len(labels) else None,
        "precision": precision if len(labels) else None,
        "recall": recall if len(labels) else None,
        "fpr": fpr[shown].tolist() if defined else [],
        "tpr": tpr[shown].tolist() if defined else [],
        "thresholds": thresholds[shown].tolist() if defined else [],
        "confusion_matrix": (
            np.bincount(labels * 2 + predicted, minlength=4).reshape(2, 2).tolist()
            if len(labels)
            else []
        ),
    }


def roc_curve(labels: Ints, scores: Floats) -> tuple[Floats, Floats, Floats]:
    """False and true positive rates at every distinct score, from (0, 0) to (1, 1).

    The first threshold stands above all scores: the largest plus 1 (JSON has no infinity).

    >>> [list(map(float, row)) for row in roc_curve(np.array([0, 1]), np.array([0.2, 0.6]))]
    [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.6, 0.6, 0.2]]
    """
    if not len(labels):
        empty = np.zeros(0)
        return empty, empty, empty
    order = np.argsort(scores, kind="stable")[::-1]
    ranked = scores[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    true_positives = np.cumsum(labels[order] == 1)[last]
    false_positives = last + 1 - true_positives
    thresholds = np.concatenate(([ranked[0] + 1.0], ranked[last]))
    return _rates(false_positives), _rates(true_positives), thresholds


def auc(labels: Ints, scores: Floats) -> float | None:
    """Area under the ROC curve of class 1, ties counted half; None where only one class is
    present.
    """
    positives = int((labels == 1).sum())
    if not 0 < positives < len(labels) or not np.isfinite(scores).all():
        return None
    fpr, tpr, _ = roc_curve(labels, scores)
    return _area(fpr, tpr)


def multiclass_metrics(labels: Ints, probabilities: Floats, classes: Sequence[Any]) -> Metrics:
    """Accuracy, one-against-rest AUC, macro and weighted F1, figures per class, confusion matrix.

    The matrix has a row per true and a column per predicted class, in the order of ``per_class``.
    """
    count = len(classes)
    predicted = probabilities.argmax(axis=1) if len(labels) else np.zeros(0, dtype=np.int64)
    confusion = np.bincount(labels * count + predicted, minlength=count * count).reshape(
        count, count
    )
    hits, truth, guessed = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    precision = [_ratio(int(hit), int(total)) for hit, total in zip(hits, guessed, strict=True)]
    recall = [_ratio(int(hit), int(total)) for hit, total in zip(hits, truth, strict=True)]
    f1 = [_f1(one, other) for one, other in zip(precision, recall, strict=True)]
    # As in scikit-learn, a class that is neither present nor predicted is left out of the mean.
    present = (truth + guessed > 0).astype(np.float64)
    areas = [
        auc((labels == index).astype(np.int64), probabilities[:, index]) for index in range(count)
    ]
    defined = [area for area in areas if area is not None]
    rows = truth.astype(np.float64)
    return {
        "acc": _mean(predicted == labels),
        "auc": math.fsum(defined) / len(defined) if defined else None,
        "f1": _weighted(f1, present),
        "precision": _weighted(precision, present),
        "recall": _weighted(recall, present),
        "f1_weighted": _weighted(f1, rows),
        "precision_weighted": _weighted(precision, rows),
        "recall_weighted": _weighted(recall, rows),
        "per_class": {
            str(name): {
                "precision": precision[index],
                "recall": recall[index],
                "f1": f1[index],
                "auc": areas[index],
                "rows": int(truth[index]),
            }
            for index, name in enumerate(classes)
        },
        "confusion_matrix": confusion.tolist(),
    }


def regression_metrics(labels: Floats, predicted: Floats) -> Metrics:
    """Explained variance, largest, mean, median, squared, logarithmic and relative error, and
    R2.
    """
    if not len(labels):
        return dict.fromkeys(("ev", "maxe", "mae", "mse", "rmse", "msle", "medae", "mape", "r2"))
    error = labels - predicted
    size = np.abs(error)
    mse = float(np.mean(error**2))
    variance = float(np.var(labels))
    logs = bool(labels.min() >= 0 and predicted.min() >= 0)
    return {
        "ev": 1.0 - float(np.var(error)) / variance if variance > 0 else None,
        "maxe": float(size.max()),
        "mae": float(size.mean()),
        "mse": mse,
        "rmse": math.sqrt(mse),
        "msle": float(np.mean((np.log1p(labels) - np.log1p(predicted)) ** 2)) if logs else None,
        "medae": float(np.median(size)),
        "mape": float(np.mean(size / np.abs(labels))) if bool(np.all(labels != 0)) else None,
        "r2": 1.0 - mse / variance if variance > 0 else None,
    }


def json_safe(value: Any) -> Any:
    """The value with every NaN and infinity replaced by None, and numpy or torch numbers by plain
    ones.

    >>> json_safe({"a": float("nan"), "b": [1.0, float("inf")]})
    {'a': None, 'b': [1.0, None]}
    """
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return json_safe(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _bounded(fpr: Floats, tpr: Floats, most: int) -> Ints:
    """Positions of at most ``most`` points of a curve: its corners, evenly thinned; both ends
    and the KS point stay.
    """
    keep = np.arange(len(fpr), dtype=np.int64)
    if len(keep) <= most:
        return keep
    turns = np.concatenate(([True], (np.diff(fpr, 2) != 0) | (np.diff(tpr, 2) != 0), [True]))
    keep = keep[turns]
    if len(keep) <= most:
        return keep
    spread = np.round(np.linspace(0, len(keep) - 1, most - 1)).astype(np.int64)
    return np.unique(np.append(keep[spread], np.argmax(np.abs(tpr - fpr))))


def _area(fpr: Floats, tpr: Floats) -> float:
    return float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1]))) / 2


def _rates(counts: Any) -> Floats:
    total = counts[-1]
    rates = counts / total if total else np.zeros(len(counts))
    return np.concatenate(([0.0], rates)).astype(np.float64)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _mean(hits: Any) -> float | None:
    return float(hits.mean()) if len(hits) else None


def _weighted(values: Sequence[float], weights: Floats) -> float | None:
    return float(np.average(values, weights=weights)) if weights.sum() > 0 else None


def _floats(values: Tensor) -> Floats:
    return values.to(torch.float64).reshape(-1).numpy()


def _table(values: Tensor) -> Floats:
    return values.to(torch.float64).numpy()


def _ints(values: Tensor) -> Ints:
    return values.to(torch.int64).reshape(-1).numpy()
