"""A run on more rows than the usual delta allows: in one process, in Python, in a dry run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import homo_dp
from homo_dp.budget import main as budget
from homo_dp.commands.stats import main as stats
from homo_dp.config.load import load_config
from homo_dp.core.errors import InputError
from homo_dp.privacy.errors import PrivacyError
from homo_dp.runs.dry_run import plan_of
from homo_dp.runs.simulation import Simulation
from homo_dp.sklearn import PrivateLogisticRegression

ROWS = 130_000


def _arrays(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(0).uniform(-1, 1, (rows, 2))
    return features, (features.sum(axis=1) > 0).astype(int)


def _file(folder: Path, rows: int = ROWS) -> str:
    features, labels = _arrays(rows)
    table = np.column_stack([features, labels])
    path = folder / "a.csv"
    np.savetxt(
        path, table, delimiter=",", header="x0,x1,y", comments="", fmt=["%.3f", "%.3f", "%d"]
    )
    return str(path)


def test_more_rows_than_one_over_the_usual_delta_train_in_python() -> None:
    result = homo_dp.fit(_arrays(), epsilon=1, bounds=(-1, 1), ledger=None, progress=False)
    assert result.delta == 1e-7
    assert (result.epsilon or 9) <= 1
    assert result.config.privacy.delta == 1e-7


def test_a_delta_that_is_set_is_kept_or_refused_in_words() -> None:
    settings = {"privacy.delta": 1e-5}
    with pytest.raises((InputError, PrivacyError), match="delta=1e-05 must be in"):
        homo_dp.fit(
            _arrays(), epsilon=1, bounds=(-1, 1), ledger=None, progress=False, settings=settings
        )


def test_simulation_and_dry_run_have_one_delta(tmp_path: Path) -> None:
    keys = {
        "data.files.a": _file(tmp_path),
        "data.columns.x0.bounds": [-1, 1],
        "data.columns.x1.bounds": [-1, 1],
        "data.counts": "public",
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "tracking.enabled": False,
    }
    config = load_config(None, keys)
    assert plan_of(config).parties["a"]["delta"] == 1e-7
    made = Simulation(config, lambda row, numbers: None)
    assert {plan.delta for plan in made.plans.values()} == {1e-7}
    assert made._plan["privacy"]["delta"] == 1e-7
    own = Simulation(load_config(None, keys | {"privacy.delta": 3e-6}), lambda row, numbers: None)
    assert {plan.delta for plan in own.plans.values()} == {3e-6}


def test_statistics_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = [f"data.files.a={_file(tmp_path)}", "data.columns.x0.bounds=[-1, 1]"]
    keys += ["data.columns.x1.bounds=[-1, 1]", "tracking.enabled=false"]
    given = [part for key in keys for part in ("--params", key)]
    assert stats(["--ask", "rows", *given]) == 0
    assert json.loads(Path("out/indicator_statistics.json").read_text())["privacy"]["delta"] == 1e-7


def test_estimators_have_it() -> None:
    fitted = PrivateLogisticRegression(epsilon=2, bounds=(-1, 1), classes=[0, 1], ledger=None).fit(
        *_arrays()
    )
    assert fitted.privacy_["delta"] == 1e-7


@pytest.mark.parametrize(("rows", "delta"), [("5000", 1e-5), ("600000", 1e-7)])
def test_a_budget_plan_has_it(capsys: pytest.CaptureFixture[str], rows: str, delta: float) -> None:
    line = ["plan", "--rows", rows, "--batch-size", "256", "--epochs", "5", "--json"]
    assert budget([*line, "--noise-multiplier", "1.1"]) == 0
    assert json.loads(capsys.readouterr().out)["delta"] == delta
