"""The questions of NIST SP 800-226: every answer says what it rests on, and a weaker run says so."""

from typing import Any

from homo_dp.tracking.report.nist import NOT_COVERED, hazards
from homo_dp.tracking.report.run_files import Record


def answers(**privacy: Any) -> dict[str, str]:
    stated = {"unit": "record", "epsilon": 2.0, "delta": 1e-5, "secure_mode": True, **privacy}
    table = hazards(Record({"run": "r", "privacy": stated, "rounds": []}, ()))
    assert all(len(row) == 3 and all(row) for row in table.rows)
    return {str(row[0]): str(row[1]) for row in table.rows}


def test_what_is_not_covered_is_said() -> None:
    assert sum(NOT_COVERED in answer for answer in answers().values()) >= 3


def test_a_weaker_run_gets_a_weaker_answer() -> None:
    sound, weak = (
        answers(),
        answers(secure_mode=False, epsilon=None, quoted_observer="model_reader"),
    )
    assert "cryptographic" in sound["Randomness and floating point"]
    assert "predictable" in weak["Randomness and floating point"]
    assert "trusted with updates" in weak["Trust model"]
    assert "no finite epsilon" in weak["Epsilon and delta, and how they were chosen"]
