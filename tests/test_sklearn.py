"""The estimators, alone and as scikit-learn checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from homo_dp.core.errors import InputError
from homo_dp.privacy.ledger.ledger import Ledger
from homo_dp.sklearn import (
    PrivacyLeakError,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
)

# Each of these fits twice and wants the same answer; noise that could be repeated would be no
# noise.
TWO_FITS = "two fits differ: the noise is fresh each time and cannot be seeded"
EVERY_KIND = {
    "check_fit_idempotent": TWO_FITS,
    "check_supervised_y_2d": TWO_FITS,
    "check_classifier_data_not_an_array": TWO_FITS,
    "check_regressor_data_not_an_array": TWO_FITS,
    "check_regressors_int": TWO_FITS,
}
UNDECLARED = "labels other than booleans, 0 and 1 with no classes declared: reading them off leaks"
BY_DEFAULT = EVERY_KIND | {
    "check_classifiers_classes": UNDECLARED,
    "check_estimators_dtypes": UNDECLARED,
    "check_fit2d_1feature": UNDECLARED,
}


def rows(count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(5).uniform(-1, 1, (count, 2))
    return X, np.where(X.sum(axis=1) > 0, "high", "low")


def test_a_classifier_in_a_pipeline_with_parties() -> None:
    X, y = rows()
    estimator = PrivateLogisticRegression(epsilon=8, classes=["low", "high"], ledger=None, rounds=5)
    pipeline = make_pipeline(FunctionTransformer(lambda X: X * 1.0), clone(estimator))
    pipeline.fit(X, y, privatelogisticregression__parties=np.where(np.arange(len(X)) % 2, "a", "b"))
    fitted = pipeline[-1]
    assert set(fitted.privacy_["parties"]) == {"a", "b"}
    assert 0 < fitted.epsilon_ <= 8
    assert pipeline.score(X, y) > 0.7
    assert pipeline.predict_proba(X[:4]).shape == (4, 2)
    assert not hasattr(estimator, "model_")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"ledger": None}, "classes=None"),
        ({"ledger": None, "classes": ["low", "high"], "bounds": None}, "bounds=None"),
    ],
)
def test_what_would_leak_is_refused_unless_it_is_allowed(given: dict[str, Any], word: str) -> None:
    X, y = rows(100)
    with pytest.raises(PrivacyLeakError, match=word):
        PrivateLogisticRegression(**given).fit(X, y)


def test_bounds_of_another_form_are_refused_in_a_line() -> None:
    X, y = rows(100)
    for bounds in ((0, 1, 2), 5, ([0, 0, 0], 1)):
        with pytest.raises(InputError, match=r"bounds=.*must be \(low, high\)"):
            PrivateLogisticRegression(classes=["low", "high"], bounds=bounds, ledger=None).fit(X, y)


def test_what_leaks_is_read_off_the_rows_where_that_is_allowed() -> None:
    X, y = rows(100)
    model = PrivateMLPClassifier(
        epsilon=8, bounds=None, ledger=None, rounds=1, allow_leaks=True
    ).fit(3 * X, y)
    assert list(model.classes_) == ["high", "low"]
    with pytest.raises(InputError, match="list every class"):
        PrivateMLPClassifier(classes=["low", "other"], ledger=None).fit(X, y)


def test_one_party_can_be_named_and_no_setting_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
    model = PrivateLogisticRegression(epsilon=8, classes=[0, 1], ledger=None, rounds=1)
    fitted = model.fit(X, (X[:, 0] > 0).astype(int), parties="clinic")
    assert list(fitted.privacy_["parties"]) == ["clinic"]
    assert "public" in fitted.privacy_["rows"]
    assert not caplog.records, "estimators have no data.rows to declare"


def test_bounds_that_clip_most_of_a_column_are_told() -> None:
    X = np.random.default_rng(0).uniform(0, 120, (60, 2))
    model = PrivateLogisticRegression(epsilon=8, classes=[0, 1], ledger=None, rounds=1)
    with pytest.warns(
        UserWarning, match=r"bounds=\(-1, 1\): \d+% of column 0 and 1 more lie outside"
    ) as told:
        model.fit(X, (X[:, 0] > 60).astype(int))
    # torch may warn as well
    (ours,) = [each for each in told if "lie outside" in str(each.message)]
    assert ours.filename == __file__


def test_a_regression_answers_in_its_own_units() -> None:
    X, _ = rows()
    y = 50 + 20 * X[:, 0]
    fitted = PrivateLinearRegression(
        epsilon=20, target_bounds=(0, 100), ledger=None, rounds=20
    ).fit(X, y)
    assert fitted.score(X, y) > 0.5


@pytest.mark.parametrize(
    "labels", [np.array([0, 1]), np.array([0.0, 1.0]), np.array([False, True])]
)
def test_defaults_fit_a_boolean_or_0_1_target_and_keep_a_ledger_in_the_working_folder(
    labels: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X, _ = rows(100)
    y = labels[(X.sum(axis=1) > 0).astype(int)]
    for _ in range(2):
        model = PrivateLogisticRegression(epsilon=2, bounds=(-1, 1)).fit(X, y)
    assert model.classes_.tolist() == labels.tolist()
    assert model.predict(X[:3]).dtype == labels.dtype
    ledger = Ledger(tmp_path / "ledger.sqlite")
    try:
        assert len({row.run for row in ledger.rows()}) == 2, "both fits are on it"
    finally:
        ledger.close()


def test_no_ledger_is_kept_where_none_is_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X, _ = rows(100)
    PrivateLogisticRegression(epsilon=2, ledger=None).fit(X, X[:, 0] > 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("labels", [["0", "1"], [1, 2], [-1, 1], [0, 1, 2]])
def test_other_undeclared_labels_are_refused_and_nothing_is_charged(
    labels: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X, _ = rows(90)
    with pytest.raises(PrivacyLeakError, match="classes=None"):
        PrivateLogisticRegression(epsilon=2).fit(X, np.resize(labels, 90))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [PrivateLogisticRegression, PrivateLinearRegression, PrivateMLPClassifier]
)
@pytest.mark.parametrize(
    ("flags", "expected"),
    [({}, BY_DEFAULT), ({"epsilon": 50, "ledger": None, "allow_leaks": True}, EVERY_KIND)],
    ids=["by default", "leaks allowed"],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass_but_for_the_documented_ones(
    kind: Any,
    flags: dict[str, Any],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = check_estimator(
        kind(**flags), on_fail=None, on_skip=None, expected_failed_checks=expected
    )
    failed = [
        (check["check_name"], check["exception"]) for check in found if check["status"] == "failed"
    ]
    assert failed == []
    assert sum(check["status"] == "passed" for check in found) >= 44
