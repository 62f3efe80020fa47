"""Signature and example of a logged model: public bounds, no row, and a refusal of what is no
table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homo_dp.core.errors import DataError, ModelFileError
from homo_dp.data.columns import Label
from homo_dp.data.encoding import Encoding
from homo_dp.tracking.mlflow.signature import describe, example_of
from tests.tracking.mlflow.parts import COLUMNS, loaded, saved


def test_signature_and_example_hold_public_bounds_and_no_row(tmp_path: Path) -> None:
    path = saved(
        tmp_path, Encoding(COLUMNS, Label("y", (0, 1))), {"name": "logistic_regression"}, [0, 1]
    )
    example = example_of(describe(path))
    assert example.to_dict("records") == [{"age": 50.0, "smokes": "no", "stage": 1.0}]
    model = loaded(path, tmp_path)
    assert {column.name: column.type.name for column in model.metadata.signature.inputs.inputs} == {
        "age": "double",
        "smokes": "string",
        "stage": "double",
    }


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    from homo_dp.tracking.pyfunc import Scorer

    path = saved(
        tmp_path, Encoding(COLUMNS, Label("y", (0, 1))), {"name": "logistic_regression"}, [0, 1]
    )
    with pytest.raises(DataError, match="DataFrame"):
        Scorer(str(path)).predict(np.zeros((1, 3)))
    (tmp_path / "bad").write_bytes(b"no model")
    with pytest.raises(ModelFileError):
        describe(tmp_path / "bad")
