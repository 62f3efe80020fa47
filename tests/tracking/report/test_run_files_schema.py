"""Files of a run as a stranger may have written them: strict types, curves that fit, events that
can be read.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from homo_dp.tracking.report.run_files_schema import EXTRACT, Indicators, Norms, ReleasedCurves

ROC = {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0], "fpr_error": [0.1, 0.1], "tpr_error": [0.1, 0.1]}
BINS = {"score": [0.5], "share": [0.4], "share_error": [0.1]}
ROW: dict[str, Any] = {
    "row": 1,
    "run": "r",
    "party": "a",
    "round": 1,
    "kind": "update",
    "event": {"kind": "gaussian", "noise_multiplier": 2.0},
    "delta": 1e-5,
    "previous_hash": "0",
    "hash": "1",
}


def test_released_curves_have_a_bar_for_every_point() -> None:
    ReleasedCurves.model_validate({"roc": ROC, "calibration": BINS})
    for bad in ({**ROC, "fpr_error": [0.1]}, {**ROC, "tpr_error": [0.1, 1.5]}):
        with pytest.raises(ValidationError):
            ReleasedCurves.model_validate({"roc": bad, "calibration": BINS})


@pytest.mark.parametrize(
    "change", [{"event": {"kind": "magic"}}, {"delta": 0.0}, {"row": "1"}, {"epsilon": 1.0}]
)
def test_rows_of_an_extract_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EXTRACT.validate_python([ROW | change])


def test_histograms_and_matrices_have_the_right_shape() -> None:
    party = {"counts": [1, 2], "fraction_clipped": 0.5}
    Norms.model_validate({"edges": [0.0, 1.0, 2.0], "clip_norm": 1.0, "parties": {"a": party}})
    with pytest.raises(ValidationError, match="one count for each bin"):
        Norms.model_validate({"edges": [0.0, 1.0], "clip_norm": 1.0, "parties": {"a": party}})
    with pytest.raises(ValidationError):
        Indicators.model_validate(
            {"run": "r", "privacy": {}, "rounds": [], "test_confusion_matrix": [[1, 2]]}
        )
