"""Columns that predict the label by themselves, and those that merely help."""

from __future__ import annotations

import numpy as np
import pandas as pd

from homo_dp.config.load import load_config
from homo_dp.data.embedded import shipped_columns
from homo_dp.data.label_leaks import (
    ALMOST_ALL,
    predicts_classes,
    predicts_target,
)
from homo_dp.data.parties import load_federation


def test_good_measurements_are_not_flagged() -> None:
    party = load_federation(load_config(None, {"data.partition.parties": 1})).parties["party_1"]
    assert party.train.labels is not None
    labels = pd.Series(party.train.labels.numpy()).astype(str)
    shares = [
        predicts_classes(pd.Series(column).astype(str), pd.Series(column), labels)
        for column in party.train.features.numpy().T
    ]
    assert len(shares) == len(shipped_columns("breast_cancer"))
    assert 0.85 < max(shares) < ALMOST_ALL


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    labels = pd.Series(["no"] * 990 + ["yes"] * 10)
    constant = pd.Series(["x"] * 1000)
    assert predicts_classes(constant, None, labels) == 0.5


def test_values_that_identify_rows_tell_nothing() -> None:
    names = pd.Series([f"n{number}" for number in range(100)])
    assert predicts_classes(names, None, pd.Series(["no", "yes"] * 50)) == 0


def test_a_threshold_with_missing_values_is_found() -> None:
    y = np.repeat([0, 1], 50)
    values = pd.Series(np.where(y == 1, np.arange(100.0), np.nan))
    assert predicts_classes(values.astype(str), values, pd.Series(y).astype(str)) == 1.0


def test_few_rows_flag_nothing() -> None:
    y = pd.Series(["no", "yes"] * 5)
    assert predicts_classes(y, None, y) == 0
    assert predicts_target(pd.Series([1.0, 2.0]), pd.Series([1.0, 2.0])) == 0
