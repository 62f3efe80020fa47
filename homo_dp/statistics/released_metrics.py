"""Metrics of a model from private sums over test rows: a histogram of scores by class, a confusion
matrix, or errors.

A row adds a vector of L2 norm at most 1. No score and no threshold of a row leaves: AUC, KS, ROC
and calibration are read off the histogram. Error bars are those of the noise, which is known: the
metrics are computed again from totals to which the same noise is added once more, many times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homo_dp.models.task import Task

# losses are clipped to it: of a confident wrong answer, or the square of the largest scaled error
MOST_LOSS = 4.0
_REPEATS = 200
# from 0 to 1: a bar of 1 says that nothing is known
_SHARES = ("acc", "precision", "recall", "auc", "ks")
_CONFIDENCE = 1.96  # standard errors to either side: 95 %

Floats = NDArray[np.float64]
Figures = dict[str, float]


@dataclass(frozen=True)
class ReleasedMetrics:
    """The sum that asks for the metrics of a task.

    Guarantees:
        - what a row adds depends on that row and on the model alone, and has an L2 norm of at most
          1;
        - figures are a function of the noisy total and of public numbers.
    """

    kind: str  # of the task: binary, multiclass or regression
    classes: int
    threshold: float = 0.5
    bins: int = 10

    @property
    def dimension(self) -> int:
        """How many numbers are asked: counts (or sums of errors), and the loss."""
        if self.kind == "regression":
            return 5
        return 1 + (2 * self.bins if self.kind == "binary" else self.classes**2)

    @property
    def edges(self) -> Floats:
        """Edges of the bins of scores; the threshold is one of them, so the confusion matrix
        follows.
        """
        low = max(1, min(self.bins - 1, round(self.bins * self.threshold)))
        below = np.linspace(0.0, self.threshold, low + 1)[:-1]
        return np.concatenate([below, np.linspace(self.threshold, 1.0, self.bins - low + 1)])

    def parts(self, task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
        """What each row adds, from the outputs of the model and the labels."""
        outputs = outputs.detach().cpu()
        loss = task.loss(outputs, labels.cpu()).detach().double().reshape(-1)
        clipped = (
            loss.nan_to_num(MOST_LOSS, MOST_LOSS, 0.0).clamp(0.0, MOST_LOSS)[:, None] / MOST_LOSS
        )
        if self.kind == "regression":
            truth = labels.double().cpu().reshape(-1).clamp(-1.0, 1.0)
            error = (outputs.double().reshape(-1).nan_to_num(0.0).clamp(-1.0, 1.0) - truth) / 2
            numbers = [torch.ones_like(error), error.square(), error.abs(), truth, truth.square()]
            return torch.stack(numbers, 1) / math.sqrt(5.0)
        hot = torch.zeros(len(labels), self.dimension - 1, dtype=torch.float64)
        places = self._places(outputs.double(), labels.long().cpu())
        hot.scatter_(1, places[:, None], 1.0)
        return torch.cat([hot, clipped], 1) / math.sqrt(2.0)

    def _places(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Where each row counts. Outputs are compared with the log odds of the edges, not scores
        with the edges.

        The last numbers of a tensor go through another sigmoid than the rest, which differs in the
        last bit: a score at an edge would change its bin with the number of rows.
        """
        if self.kind == "multiclass":
            return labels * self.classes + outputs.nan_to_num(0.0).argmax(dim=1)
        inner = torch.from_numpy(self.edges[1:-1].copy()).logit()
        return labels * self.bins + torch.bucketize(
            outputs.reshape(-1).nan_to_num(0.0), inner, right=True
        )

    def read(self, total: Tensor, sigma: float, seed: int = 0) -> tuple[Figures, Figures]:
        """The metrics of a total, and the half width of their 95 % bars by the noise of its
        numbers alone.
        """
        found = total.numpy().astype(np.float64)
        figures = self._figures(found)
        generator = np.random.default_rng(seed)
        again = [
            self._figures(found + sigma * generator.normal(size=found.shape))
            for _ in range(_REPEATS)
        ]
        spread = {
            name: _CONFIDENCE * float(np.std([each[name] for each in again])) for name in figures
        }
        errors = {
            name: min(1.0, value) if name in _SHARES else value for name, value in spread.items()
        }
        return {name: _possible(name, value) for name, value in figures.items()}, errors

    def curves(self, total: Tensor, sigma: float, seed: int = 0) -> dict[str, Any]:
        """ROC and calibration of two classes at the edges of the bins, with 95 % bars; empty for
        other tasks.
        """
        if self.kind != "binary":
            return {}
        found = total.numpy().astype(np.float64)
        (fpr, tpr), (share, rows) = self._points(found)
        generator = np.random.default_rng(seed)
        again = [
            self._points(found + sigma * generator.normal(size=found.shape))
            for _ in range(_REPEATS)
        ]
        bars = {
            "fpr": [rates[0] for rates, _ in again],
            "tpr": [rates[1] for rates, _ in again],
            "share": [shares[0] for _, shares in again],
        }
        errors = {
            f"{name}_error": np.minimum(1.0, _CONFIDENCE * np.std(each, 0))
            for name, each in bars.items()
        }
        # sqrt(2) for the two counts, and for the scale of a row
        empty = rows <= _CONFIDENCE * 2 * sigma
        # nothing is known of so few rows
        errors["share_error"] = np.where(empty, 1.0, errors["share_error"])
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        roc = {
            "fpr": fpr,
            "tpr": tpr,
            "fpr_error": errors["fpr_error"],
            "tpr_error": errors["tpr_error"],
        }
        calibration = {
            "score": middles,
            "share": share,
            "rows": rows,
            "share_error": errors["share_error"],
        }
        return {
            "roc": {name: values.tolist() for name, values in roc.items()},
            "calibration": {name: values.tolist() for name, values in calibration.items()},
        }

    def _points(self, total: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Rates of the ROC; shares of class 1 and rows by bin."""
        # below zero there is only noise
        negative, positive = np.maximum(0.0, self._histograms(total))
        rows = negative + positive
        return _roc(negative, positive), (
            np.divide(positive, rows, out=np.zeros_like(rows), where=rows > 0),
            rows,
        )

    def _figures(self, total: Floats) -> Figures:
        if self.kind == "regression":
            return _regression(total * math.sqrt(5.0))
        counts, loss = total[:-1] * math.sqrt(2.0), float(total[-1]) * math.sqrt(2.0) * MOST_LOSS
        rows = max(1.0, float(counts.sum()))
        found = {"rows": float(counts.sum()), "loss": loss / rows}
        if self.kind == "multiclass":
            confusion = counts.reshape(self.classes, self.classes)
            return found | {"acc": _share(float(np.trace(confusion)), rows)}
        negative, positive = self._histograms(total)
        split = int(np.searchsorted(self.edges, self.threshold))
        raw = counts.reshape(2, self.bins)
        hits, misses = float(raw[1, split:].sum()), float(raw[1, :split].sum())
        false, right = float(raw[0, split:].sum()), float(raw[0, :split].sum())
        fpr, tpr = _roc(negative, positive)
        return found | {
            "acc": _share(hits + right, rows),
            "precision": _share(hits, hits + false),
            "recall": _share(hits, hits + misses),
            "auc": float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1]))) / 2,
            "ks": float(np.max(np.abs(tpr - fpr))),
        }

    def _histograms(self, total: Floats) -> Floats:
        """Counts of the two classes by bin of score, as they are: to cut off those below zero
        would bend AUC down.
        """
        counts: Floats = (total[:-1] * math.sqrt(2.0)).reshape(2, self.bins)
        return counts


def _roc(negative: Floats, positive: Floats) -> tuple[Floats, Floats]:
    """Rates from the highest score down, from (0, 0) to (1, 1)."""
    rates = []
    for counts in (negative, positive):
        running = np.concatenate([[0.0], np.cumsum(counts[::-1])])
        rates.append(
            running / running[-1] if running[-1] > 0 else np.linspace(0.0, 1.0, len(running))
        )
    return rates[0], rates[1]


def _regression(sums: Floats) -> Figures:
    """Errors in units of the scaled target (its bounds are [-1, 1]) and the share of its
    variance that is explained.
    """
    rows = max(1.0, float(sums[0]))
    square, size, mean, truth = (float(part) / rows for part in sums[1:])
    mse, variance = 4 * square, max(1e-3, truth - mean**2)
    return {"rows": float(sums[0]), "mse": mse, "mae": 2 * size, "r2": 1.0 - mse / variance}


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 1.0 else 0.0


def _possible(name: str, value: float) -> float:
    """A figure cut to what it can be; bars are those of the figure before."""
    if name == "rows":
        return value
    if name == "r2":
        return min(1.0, max(-1.0, value))
    return max(0.0, value) if name in ("loss", "mse", "mae") else min(1.0, max(0.0, value))
