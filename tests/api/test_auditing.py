"""``homo_dp.audit``: the same arguments as a training, and no ledger is charged."""

from pathlib import Path

import pytest

import homo_dp
from homo_dp.core.errors import InputError

SMALL = {"data.embedded": "breast_cancer", "train.rounds": 1, "train.sample_rate": 1.0}


def test_an_audit_charges_nothing_and_gives_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = homo_dp.audit(epsilon=4, settings=SMALL, mechanism="dp_fedsgd", runs=40)
    assert "not refuted" in found.verdict
    assert found.outcome.claimed_epsilon <= 4
    assert found.outcome.mechanism == "dp_fedsgd"
    assert found.roc().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("*.sqlite"))


def test_an_attack_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="is unknown"):
        homo_dp.audit(epsilon=4, settings=SMALL, attack="magic", runs=40)
