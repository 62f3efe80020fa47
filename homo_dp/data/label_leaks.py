"""Columns that predict the label almost without error: mostly recorded after the outcome, or the
label under another name.

Such a column makes a model look perfect and useless at once. The check runs on rows of a local
table and only its finding is shown, to the person who drafts the config.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

ALMOST_ALL = 0.99  # balanced accuracy; the best measurement of breast_cancer reaches 0.92
RANKS = 0.999  # rank correlation with a regression target
FEWEST_ROWS = 30
FEWEST_OF_A_CLASS = 5
ROWS_PER_VALUE = 5  # fewer rows of each value identify rows instead of classes


def predicts_classes(values: pd.Series, numbers: pd.Series | None, labels: pd.Series) -> float:
    """Balanced accuracy of the best rule on one column: a class for each value, or one threshold.

    Args:
        values: The cells as text, empty where missing.
        numbers: The cells as numbers, NaN where missing; None for a column of texts.
        labels: The class of each row as text.

    Returns:
        The largest mean of the classes' recalls; 0 where too few rows tell.

    >>> y = pd.Series(["no", "yes"] * 40)
    >>> predicts_classes(y.map({"no": "F", "yes": "T"}), None, y)
    1.0
    """
    classes, names = pd.factorize(labels)
    counts = np.bincount(classes, minlength=len(names))
    if len(labels) < FEWEST_ROWS or len(names) < 2 or counts.min() < FEWEST_OF_A_CLASS:
        return 0.0
    weights = 1 / (counts[classes] * len(names))
    groups, distinct = pd.factorize(values)
    if len(distinct) * ROWS_PER_VALUE <= len(values):
        return round(float(_weights_by(groups, classes, weights).max(axis=1).sum()), 9)
    return 0.0 if numbers is None else _best_threshold(numbers.to_numpy(float), classes, weights)


def predicts_target(numbers: pd.Series, target: pd.Series) -> float:
    """The absolute rank correlation of a column with a numeric target; 0 where few rows tell."""
    both = numbers.notna() & target.notna()
    if both.sum() < FEWEST_ROWS or numbers[both].nunique() < 2 or target[both].nunique() < 2:
        return 0.0
    return float(abs(np.corrcoef(numbers[both].rank(), target[both].rank())[0, 1]))


def _best_threshold(numbers: np.ndarray, classes: np.ndarray, weights: np.ndarray) -> float:
    """Missing values are a group of their own beside the two sides of the threshold."""
    missing = np.isnan(numbers)
    of_missing = _weights_by(np.zeros(missing.sum(), int), classes[missing], weights[missing])
    numbers, classes, weights = numbers[~missing], classes[~missing], weights[~missing]
    apart = of_missing.max() if missing.any() else 0.0
    if not len(numbers):
        return float(apart)
    order = np.argsort(numbers, kind="stable")
    one_hot = np.zeros((len(order), int(classes.max()) + 1))
    one_hot[np.arange(len(order)), classes[order]] = weights[order]
    below = one_hot.cumsum(axis=0)
    best = below.max(axis=1) + (below[-1] - below).max(axis=1)
    ordered = numbers[order]
    ends = np.append(ordered[1:] > ordered[:-1], True)  # a threshold lies between two values
    return round(float(apart + best[ends].max()), 9)


def _weights_by(groups: np.ndarray, classes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    table = np.zeros((int(groups.max(initial=0)) + 1, int(classes.max(initial=0)) + 1))
    np.add.at(table, (groups, classes), weights)
    return table
