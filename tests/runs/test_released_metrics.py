"""Metrics that parties release with noise: within the target, on the ledger, in the rows of the
run.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.sessions.best_round import BestRound
from homo_dp.federation.sessions.plan import agree, make_plan
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.outputs import best_round, indicators_of
from homo_dp.runs.simulation import Simulation
from homo_dp.tracking.report.run_files_schema import ReleasedCurves


def _config(folder: Path, **keys: Any) -> Config:
    base = {
        "metrics.release": "noised",
        "privacy.target_epsilon": 8.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "tracking.enabled": False,
        "train.rounds": 5,
    }
    return load_config(
        None, base | {name.replace("__", "."): value for name, value in keys.items()}
    )


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"metrics__every": 2},
        {
            "privacy__mechanism": "dp_fedsgd",
            "privacy__secure_aggregation": True,
            "metrics__every": 2,
        },
        {"train__averaging": "tail"},
    ],
)
def test_metrics_are_released_within_the_target(tmp_path: Path, keys: dict[str, Any]) -> None:
    simulation = Simulation(_config(tmp_path, **keys), lambda row, numbers: None)
    outcome = simulation.run()
    assert 7.8 <= outcome.statement["epsilon"] <= 8.0
    asked = [row for row in outcome.rounds if row.get("asked") == "metrics"]
    assert len(asked) == (3 if "metrics__every" in keys else 1)
    assert sum("asked" not in row for row in outcome.rounds) == 5
    last = asked[-1]
    assert abs(last["released_acc"] - last["test_acc"]) < 4 * last["released_acc_error"] + 1e-9
    assert 0 < last["released_auc_error"] <= 1
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        kinds = [row.kind for row in ledger.rows(outcome.run, "party_1")]
        assert kinds.count("metrics") == len(asked)
        assert ledger.rows(outcome.run, "party_1")[-1].epsilon == pytest.approx(
            outcome.statement["epsilon"], rel=1e-3
        )
    indicators = indicators_of(outcome, None)
    assert indicators["released_metrics"]["acc"]["value"] == last["released_acc"]
    assert not any("released" in name for name in indicators["local_only"])
    curves = indicators["released_curves"]
    assert len(curves["roc"]["tpr"]) == len(curves["roc"]["tpr_error"]) == 11
    assert all(0 <= share <= 1 for share in curves["calibration"]["share"])
    assert max(curves["roc"]["tpr_error"]) > 0  # the noise is known, and said


def test_the_best_round_is_found_by_released_or_public_figures_alone() -> None:
    rows: list[dict[str, Any]] = [
        {"round": 1, "test_acc": 0.99},
        {
            "round": 2,
            "asked": "metrics",
            "test_acc": 0.99,
            "released_acc": 0.9,
            "released_acc_error": 0.03,
        },
        {"round": 3, "test_acc": 0.5},
        {
            "round": 4,
            "asked": "metrics",
            "test_acc": 0.5,
            "released_acc": 0.8,
            "released_acc_error": 0.04,
        },
    ]
    found = best_round(rows, BestRound("released_"))["best_round"]
    assert (found["round"], found["rounds_of_training"], found["by"]) == (2, 1, "released_acc")
    assert found["better_than_last_beyond_noise"]
    private = [{key: value for key, value in row.items() if "released" not in key} for row in rows]
    # exact figures of private rows decide nothing
    assert best_round(private, BestRound("released_")) == {}
    assert (
        best_round([row | {"test_acc": 0.0} for row in rows], BestRound("released_"))["best_round"]
        == found
    )
    noisy = [row | {"released_acc_error": 0.2} for row in rows]
    assert not best_round(noisy, BestRound("released_"))["best_round"][
        "better_than_last_beyond_noise"
    ]
    assert best_round(private, BestRound("test_"))["best_round"]["by"] == "test_acc"


def test_nothing_is_asked_unless_somebody_says_so(tmp_path: Path) -> None:
    config = _config(tmp_path, metrics__release="local", train__auto=False)
    simulation = Simulation(config, lambda row, numbers: None)
    assert not simulation.mechanism.run.sums
    assert "metrics" not in make_plan(simulation.config, {"a": 100}, {})


def test_what_leaves_is_said_by_the_plan_not_by_a_default(tmp_path: Path) -> None:
    asks = _config(tmp_path)
    plan = make_plan(asks, {"a": 100}, {})
    own = load_config(None, {"privacy.target_epsilon": 8.0})
    assert agree(own, plan).metrics.release == "noised"
    quiet = make_plan(own, {"a": 100}, {})
    assert agree(asks, quiet).metrics.release == "local"


def test_mechanisms_that_cannot_share_their_budget_refuse() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.release=noised"):
        load_config(None, {"metrics.release": "noised", "privacy.mechanism": "nbafl"})
    with pytest.raises(ConfigError, match="public_test"):
        load_config(None, {"metrics.release": "public"})


def test_screen_and_report_show_released_metrics_with_their_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from homo_dp.report import main as report
    from homo_dp.train import main as train

    monkeypatch.chdir(tmp_path)
    assert train(["--params", "metrics.release=noised,train.rounds=2,tracking.enabled=false"]) == 0
    assert "released with noise, of all test rows" in capsys.readouterr().out
    assert report(["out", "-o", "report.html"]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "released with noise (95 %)" in page
    assert "ROC and calibration, released with noise" in page
    assert report(["out", "-o", "public.html", "--published"]) == 0
    assert "ROC and calibration, released with noise" in (tmp_path / "public.html").read_text(
        encoding="utf-8"
    )


def test_a_report_refuses_curves_without_their_bars() -> None:
    roc = {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0], "fpr_error": [0.0, 0.0], "tpr_error": [0.0, 0.0]}
    bins = {"score": [0.5], "share": [0.5], "rows": [3.0], "share_error": [0.1]}
    ReleasedCurves.model_validate_json(json.dumps({"roc": roc, "calibration": bins}))
    broken: list[dict[str, Any]] = [
        {"tpr_error": []},
        {"tpr_error": [0.0, -1.0]},
        {"tpr": ["a", "b"]},
    ]
    for bad in broken:
        with pytest.raises(ValueError, match=r"tpr|bars"):
            ReleasedCurves.model_validate_json(json.dumps({"roc": roc | bad, "calibration": bins}))
