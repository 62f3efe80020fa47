"""Audits beside a run's outputs are in its report, with what they audited and what they cannot
show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.core.errors import InputError
from homo_dp.tracking.report.evidence import audit_table, audits_in

FOUND = {
    "claimed_epsilon": 4.0,
    "lower_bound": 2.5,
    "confidence": 0.999,
    "ceiling": 2.7,
    "point_estimate": 3.9,
    "attack": "canary_gradient",
    "observer": "aggregator",
    "delta": 1e-5,
    "runs": 400,
    "refuted": False,
    "mechanism": "dp_sgd",
}
RUN = {"mechanism": "dp_sgd", "epsilon": 3.99}


def kept(folder: Path, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(FOUND | changed))
    return folder


def test_audits_in_the_folder_and_below_it_are_found(tmp_path: Path) -> None:
    kept(tmp_path)
    (kept(tmp_path / "audit", attack="clip_bits") / "roc.png").write_bytes(b"picture")
    first, second = audits_in(tmp_path)
    assert (first.audit.attack, first.picture) == ("canary_gradient", None)
    assert (second.audit.attack, second.picture) == ("clip_bits", b"picture")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "not refuted"),
        ({"refuted": True}, "REFUTED"),
        ({"claimed_epsilon": 8.0}, "not refuted (of another claim than this run's)"),
        ({"mechanism": "nbafl"}, "not refuted (of another claim than this run's)"),
    ],
)
def test_an_outcome_says_whether_it_is_of_this_claim(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    table = audit_table(audits_in(kept(tmp_path, **changed)), RUN)
    assert table is not None
    assert table.rows[0][-1] == said


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"attack": "canary"}', json.dumps(FOUND | {"runs": "many"})]
)
def test_a_file_that_is_no_audit_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(InputError, match=r"audit\.json"):
        audits_in(tmp_path)
