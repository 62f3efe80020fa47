"""Embedded sets: shapes, public bounds that are not the table's own, and that they are good
enough to learn from.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Numeric
from homo_dp.data.embedded import NAMES, load_embedded, shipped_columns
from homo_dp.data.encoding import Encoding
from homo_dp.data.unexpected_values import Strays


@pytest.mark.parametrize("name", NAMES)
def test_sets_describe_their_own_columns(name: str) -> None:
    bundled = load_embedded(name)
    assert set(shipped_columns(name)) == set(bundled.columns)
    features = Encoding(bundled.columns, bundled.label, shape=bundled.image_shape).encode(
        bundled.frame
    )
    assert len(features) == {"breast_cancer": 569, "digits": 1797}.get(name, len(bundled.frame))
    assert features.abs().max() <= 1


def test_breast_cancer_bounds_are_round_and_not_the_minimum_and_maximum() -> None:
    bundled = load_embedded("breast_cancer")
    for column in bundled.columns:
        assert isinstance(column, Numeric)
        values = bundled.frame[column.name]
        assert column.high != values.max()
        assert column.low == 0 or column.low != values.min()
        for bound in (column.low, column.high):
            assert float(f"{bound:.2g}") == bound, "two significant digits at most"


@pytest.mark.parametrize("name", NAMES)
def test_bounds_hold_every_value_of_their_set(name: str) -> None:
    bundled, strays = load_embedded(name), Strays()
    Encoding(bundled.columns, bundled.label).encode(bundled.frame, strays=strays)
    assert strays.counts() == {}


def test_breast_cancer_bounds_keep_what_a_model_needs() -> None:
    """Mean over 5 fixed splits of a non-private model; deterministic, so it cannot fail by
    chance.
    """
    bundled = load_embedded("breast_cancer")
    features = Encoding(bundled.columns, bundled.label).encode(bundled.frame).numpy()
    labels = bundled.frame["y"].to_numpy()
    scores = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(569)
        model = LogisticRegression(max_iter=1000).fit(features[order[114:]], labels[order[114:]])
        scores.append(model.score(features[order[:114]], labels[order[:114]]))
    assert np.mean(scores) >= 0.97


def test_generated_users_are_always_the_same() -> None:
    first, again = load_embedded("users").frame, load_embedded("users").frame
    assert first.equals(again)
    sizes = first.groupby("user").size()
    assert len(sizes) == 500
    assert sizes.between(10, 50).all()
    assert 0.3 < first["y"].mean() < 0.7


def test_unknown_names() -> None:
    with pytest.raises(DataError, match="not one of breast_cancer, digits, users"):
        load_embedded("iris")
    with pytest.raises(DataError, match="columns_from"):
        shipped_columns("iris")
