"""A dry run: what a training would cost and release, without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.console.screen import Screen
from homo_dp.runs.dry_run import show_plan
from tests.runs.parts import private_table


def test_a_dry_run_counts_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        **private_table(tmp_path),
        "privacy.ledger": str(tmp_path / "none.sqlite"),
        "train.batch_size": 5,
    }
    show_plan(load_config(None, given), Screen(as_json=True))
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["parties"]["all"]["rows"]
    assert 200 < rows < 280
    assert "were counted in the files" in printed.err
    assert "noise to signal per step is" not in printed.err
    assert "strength of the guarantee: moderate (epsilon 4;" in printed.err
    assert "strength of the guarantee: moderate (epsilon 4;" in printed.out
    show_plan(load_config(None, {**given, "privacy.target_epsilon": 0.1}), Screen(as_json=True))
    assert "warning: noise to signal per step is" in capsys.readouterr().err
    assert not (tmp_path / "none.sqlite").exists()


def test_json_has_all_that_the_text_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        **private_table(tmp_path),
        "privacy.ledger": str(tmp_path / "none.sqlite"),
        "privacy.target_epsilon": 0.1,
    }
    config = load_config(None, given)
    show_plan(config, Screen())
    text = capsys.readouterr()
    show_plan(config, Screen(as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert found["auto"]
    assert found["released"]
    shown = [found["run"], *found["released"], *found["auto"], *found["notes"]]
    assert [line for line in shown if line not in text.out] == []
    assert [line for line in found["warnings"] if line not in text.err] == []
    unsaid = [
        line
        for line in text.out.splitlines()
        if line and not line.startswith(("dry run:", "plan", "party", "all"))
    ]
    assert [line for line in unsaid if not any(part in line for part in shown)] == []
