"""``python -m homo_dp.audit``: keys, files, MLflow, what is refused, and the report that shows
it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

import homo_dp.commands.audit as audit
import homo_dp.report as report
import homo_dp.train as train
from tests.shell import CommandLine

QUICK = [
    *(
        "privacy.mechanism=dp_fedsgd",
        "train.sample_rate=1.0",
        "train.rounds=2",
        "tracking.uri=sqlite:///mlflow.db",
    ),
    *("train.batch_size=null", "train.local_epochs=null"),
]
PUBLIC = {
    "claimed_epsilon",
    "lower_bound",
    "confidence",
    "ceiling",
    "point_estimate",
    "attack",
    "observer",
}


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


def test_an_audit_says_what_it_found_and_the_report_shows_it(
    shell: CommandLine, tmp_path: Path
) -> None:
    done = shell.run(audit.main, ["--params", *QUICK, "--runs", "40", "--jobs", "1", "--json"])
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert set(found) >= PUBLIC
    assert (found["attack"], found["observer"], found["mechanism"]) == (
        "canary_sum",
        "aggregator",
        "dp_fedsgd",
    )
    assert found["lower_bound"] <= found["claimed_epsilon"]
    assert json.loads((tmp_path / "out/audit/audit.json").read_text()) == found
    assert (tmp_path / "out/audit/roc.png").read_bytes().startswith(b"\x89PNG")
    shown = shell.run(audit.main, ["--params", *QUICK, "--runs", "40", "--jobs", "1"]).out
    assert "expected for a perfect attack" in shown
    assert "ceiling" not in shown
    assert "one audit may be above it" in shown
    runs = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").search_runs(["1"])
    assert [run.data.metrics["audit_claimed_epsilon"] for run in runs] == [
        found["claimed_epsilon"]
    ] * 2

    shell.run(train.main, ["--params", *QUICK])
    done = shell.run(report.main, ["out", "-o", "report.html"])
    assert done.code == 0, done.err
    page = (tmp_path / "report.html").read_text()
    assert "canary_sum" in page
    assert "not refuted" in page
    assert '<th class="number">expected for a perfect attack</th>' in page
    assert "of another claim" not in page
    assert "Questions of NIST SP 800-226" in page


def test_a_report_without_an_audit_says_how_to_make_one(shell: CommandLine, tmp_path: Path) -> None:
    shell.run(train.main, ["--params", *QUICK, "tracking.enabled=false"])
    shell.run(report.main, ["out", "-o", "report.html"])
    assert "python -m homo_dp.audit" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--params", "privacy.mechanism=none"], "nothing to refute"),
        (["--runs", "10"], "runs=10 is below 40"),
        (["--confidence", "1.5"], "--confidence=1.5"),
        (
            ["--params", "privacy.mechanism=dp_sgd", "--attack", "canary_sum"],
            "canary_sum attacks dp_fedsgd",
        ),
        (
            ["--params", "privacy.mechanism=dp_fedsgd", "--attack", "canary_upload"],
            "canary_upload attacks nbafl",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    shell: CommandLine, arguments: list[str], said: str
) -> None:
    done = shell.run(audit.main, ["--jobs", "1", *arguments])
    assert done.code == 2
    assert said in done.err
    assert done.err.strip().count("\n") == 0
