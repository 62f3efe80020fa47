"""A trained model in Python: predictions of frames and arrays, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import homo_dp
from homo_dp.core.errors import DataError
from tests.api.parts import table


def test_a_model_predicts_classes_of_frames_and_arrays(result: homo_dp.Result) -> None:
    rows = table(20, 3)
    answers = result.model.predict(rows)
    assert set(answers) <= {"well", "ill"}
    shares = result.model.predict_proba(rows)
    assert shares.shape == (20, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(
        answers, result.model.predict(rows[["age", "dose", "weight"]].to_numpy())
    )
    assert result.model.score(rows) == pytest.approx(np.mean(answers == rows["outcome"]))
    assert result.model.score(rows, list(answers)) == 1
    with pytest.raises(DataError, match="3 columns"):
        result.model.predict(np.zeros((2, 2)))


def test_values_that_were_not_declared_are_told(
    result: homo_dp.Result, recwarn: pytest.WarningsRecorder
) -> None:
    rows = table(20, 3)
    rows.loc[:3, "age"] = 1e6
    result.model.predict(rows)
    told = [
        str(each.message) for each in recwarn if "outside the declared bounds" in str(each.message)
    ]
    assert told == [
        "rows: column 'age': 4 of 20 values (20 %) are outside the declared bounds and were clipped"
    ]
    assert {each.filename for each in recwarn if "bounds" in str(each.message)} == {__file__}, (
        "the user's line"
    )


def test_a_saved_model_is_loaded_with_the_same_predictions(
    result: homo_dp.Result, tmp_path: Path
) -> None:
    result.model.save(tmp_path / "m.safetensors")
    again = homo_dp.load(tmp_path / "m.safetensors")
    rows = table(20, 3)
    np.testing.assert_array_equal(again.predict_proba(rows), result.model.predict_proba(rows))
    assert again.privacy["epsilon"] == result.epsilon
