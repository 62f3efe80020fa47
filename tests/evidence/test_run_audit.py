"""The audit of a configuration: resumed where it stopped, refused where there is nothing to
refute.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import InputError
from homo_dp.evidence import run_audit
from homo_dp.evidence.audit import Wanted


def test_scores_of_an_interrupted_audit_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def chunk(tree: Any, name: str, observer: str, present: bool, count: int) -> list[float]:
        made.append(count)
        if len(made) == 2:
            raise KeyboardInterrupt
        return [float(present)] * count

    monkeypatch.setattr(run_audit, "_chunk", chunk)
    state = tmp_path / "state.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_audit.run_attack({}, "a", "aggregator", 200, 1, state, lambda _: None)
    state.write_text(
        state.read_text() + "half a li" + json.dumps({"key": "another", "scores": [9.0]}) + "\n"
    )
    found = run_audit.run_attack({}, "a", "aggregator", 200, 1, state, lambda _: None)
    assert sum(made) == 200 + made[1]  # the chunk that was interrupted, once more
    assert np.array_equal(found.present, np.ones(100))
    assert np.array_equal(found.absent, np.zeros(100))
    assert not state.exists()


def test_what_claims_nothing_and_too_few_runs_are_refused() -> None:
    with pytest.raises(InputError, match="nothing to refute"):
        run_audit.audited(
            load_config(None, {"privacy.mechanism": "none"}), Wanted(), None, lambda _: None
        )
    with pytest.raises(InputError, match="is below 40"):
        run_audit.run_attack({}, "a", "aggregator", 39, 1, None, lambda _: None)
