"""The budget command: figures, table, JSON, picture, ledger, and one line for every mistake."""

import json
import math
import subprocess
import sys

import pytest

from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.sampling.samplers import (
    EveryoneSampler,
    FixedSizeSampler,
    PoissonSampler,
    Sampler,
)
from homo_dp.runs.budget_plan import BudgetPlan, changes
from tests.shell import budget_command

GOLDEN = ["plan", "--rows", "60000", "--batch-size", "256", "--epochs", "60", "--delta", "1e-5"]


KEYS = [
    "epsilon_pld",
    "epsilon_rdp",
    "noise_multiplier",
    "steps",
    "sample_rate",
    "delta",
    "neighbouring_relation",
]


def test_golden_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command(*GOLDEN, "--noise-multiplier", "1.1", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS
    assert printed["epsilon_pld"] == pytest.approx(2.382, abs=5e-4)
    assert printed["epsilon_rdp"] == pytest.approx(2.597, abs=5e-4)
    assert printed["steps"] == 14_063
    assert printed["sample_rate"] == 256 / 60_000
    assert printed["neighbouring_relation"] == "add_or_remove_one"


def test_fixed_size_has_no_pld(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        budget_command(*GOLDEN, "--noise-multiplier", "1.1", "--sampling", "fixed", "--json") == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["epsilon_pld"] is None
    assert printed["epsilon_rdp"] == pytest.approx(24.08, abs=5e-3)
    assert printed["neighbouring_relation"] == "replace_one"
    assert budget_command(*GOLDEN, "--noise-multiplier", "1.1", "--sampling", "fixed") == 0
    assert "RDP, quote this)  24.08" in capsys.readouterr().out


def test_noise_for_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command(*GOLDEN, "--target-epsilon", "3", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == KEYS
    assert 0.995 * 3 <= printed["epsilon_pld"] <= 3
    assert 0.95 < printed["noise_multiplier"] < 1.0


def test_the_table_without_a_terminal_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command(*GOLDEN, "--noise-multiplier", "1.1") == 0
    out = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert "epsilon (PLD, quote this)   2.382" in out
    assert "epsilon (RDP, cross-check)  2.597" in out
    assert rows["epochs"][1:] == ["30", "1.636", "120", "3.498"]
    assert rows["batch size"][2] == "128"
    assert rows["rows"][-1] == "-"  # delta=1e-5 would be above one over 120,000
    assert "not allowed: rows 120000: delta=1e-05" in out
    assert "\x1b" not in out


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command(*GOLDEN, "--noise-multiplier", "1.1", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_users(capsys: pytest.CaptureFixture[str]) -> None:
    users = [
        "plan",
        "--population",
        "900",
        "--rounds",
        "20",
        "--noise-multiplier",
        "8",
        "--delta",
        "1e-4",
        "--json",
    ]
    figures = {}
    for name, options in {
        "everyone": ["--sampling", "everyone"],
        "replaced": ["--sampling", "everyone", "--relation", "replace_one"],
        "poisson": ["--cohort", "90"],
        "fixed": ["--cohort", "90", "--sampling", "fixed"],
    }.items():
        assert budget_command(*users, *options) == 0
        figures[name] = json.loads(capsys.readouterr().out)
    assert budget_command(*users, "--cohort", "90", "--sampling", "everyone") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == figures["everyone"]
    assert "--cohort=90 is not used" in err
    assert figures["everyone"]["sample_rate"] == 1.0
    assert figures["everyone"]["steps"] == 20
    assert (
        figures["poisson"]["epsilon_pld"]
        < figures["everyone"]["epsilon_pld"]
        < figures["replaced"]["epsilon_pld"]
    )
    assert (
        figures["replaced"]["neighbouring_relation"]
        == figures["fixed"]["neighbouring_relation"]
        == "replace_one"
    )


@pytest.mark.parametrize(
    ("plan", "sampler"),
    [
        (BudgetPlan(900, 90, rounds=20, delta=1e-4), PoissonSampler(900, 0.1)),
        (
            BudgetPlan(900, 90, rounds=20, sampling="fixed", relation="replace_one", delta=1e-4),
            FixedSizeSampler(900, 90),
        ),
        (BudgetPlan(900, 900, rounds=20, sampling="everyone", delta=1e-4), EveryoneSampler(900)),
        (
            BudgetPlan(
                900, 900, rounds=20, sampling="everyone", relation="replace_one", delta=1e-4
            ),
            EveryoneSampler(900, "replace_one"),
        ),
    ],
)
def test_what_is_planned_is_what_the_samplers_charge(plan: BudgetPlan, sampler: Sampler) -> None:
    assert to_json(plan.event(1.7)) == to_json(sampler.event(1.7, steps=20))
    assert plan.sample_rate == sampler.sample_rate
    assert plan.relation == sampler.relation


def test_more_noise_and_fewer_steps_cost_less() -> None:
    found = {
        change.knob: change
        for change in changes(BudgetPlan(10_000, 100, epochs=5, delta=1e-6), 1.0)
    }
    assert set(found) == {"noise multiplier", "batch size", "epochs", "rows", "delta"}
    for knob in ("noise multiplier", "rows", "delta"):
        assert (found[knob].result_at_half or math.inf) > (found[knob].result_at_twice or math.inf)
    for knob in ("batch size", "epochs"):
        assert (found[knob].result_at_half or math.inf) < (found[knob].result_at_twice or 0)


ROWS = ["plan", "--rows", "100", "--batch-size", "10", "--epochs", "2", "--delta", "1e-3"]


USERS = ["plan", "--population", "100", "--cohort", "10", "--rounds", "5", "--delta", "1e-3"]


NOISE = ["--noise-multiplier", "1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required"),
        (["plan"], "--noise-multiplier --target-epsilon is required"),
        ([*ROWS, *NOISE, "--target-epsilon", "1"], "not allowed with"),
        ([*ROWS, "--noise-multiplier", "0"], "noise_multiplier=0 must be > 0"),
        ([*ROWS, "--noise-multiplier", "nan"], "noise_multiplier=nan"),
        ([*ROWS, "--noise-multiplier", "1e300"], "noise_multiplier=1e+300"),
        ([*ROWS, "--target-epsilon", "0"], "target_epsilon=0 must be > 0"),
        ([*ROWS, "--target-epsilon", "inf"], "target_epsilon=inf"),
        ([*ROWS, *NOISE, "--delta", "0.01"], "delta=0.01 must be in (0, 1/100)"),
        ([*ROWS, *NOISE, "--delta", "0"], "delta=0 must be"),
        ([*ROWS, *NOISE, "--batch-size", "101"], "batch_size=101 must be at most rows=100"),
        ([*ROWS, *NOISE, "--batch-size", "0"], "batch_size=0 must be >= 1"),
        ([*ROWS, *NOISE, "--epochs", "-1"], "epochs=-1.0 must be > 0"),
        ([*ROWS, *NOISE, "--epochs", "1e300"], "steps=about 10**301 must be <= 1e+15"),
        ([*ROWS, *NOISE, "--rows", "ten"], "'ten' must be a whole number"),
        ([*ROWS, *NOISE, "--cohort", "5"], "--cohort does not go with --rows"),
        ([*ROWS, *NOISE, "--relation", "replace_one"], "poisson sampling has add_or_remove_one"),
        ([*ROWS, *NOISE, "--plot", "a.gif"], "--plot=a.gif: must end in .png"),
        (
            [*ROWS, *NOISE, "--plot", "/dev/null/a.png"],
            "--plot=/dev/null/a.png: cannot be written",
        ),
        (["plan", "--rows", "100", "--epochs", "1", *NOISE], "--batch-size is missing"),
        (["plan", *NOISE], "--population is missing"),
        ([*USERS, *NOISE, "--rounds", "-5"], "rounds=-5 must be >= 1"),
        ([*USERS, *NOISE, "--sampling", "often"], "invalid choice: 'often'"),
        (
            ["ledger", "show", "no/such/ledger.sqlite"],
            "ledger=no/such/ledger.sqlite: there is no such file",
        ),
        (
            ["ledger", "verify", "no/such/ledger.sqlite"],
            "ledger=no/such/ledger.sqlite: there is no such file",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget_command(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_as_a_process() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "homo_dp.budget", *ROWS, "--noise-multiplier", "-1"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert (
        run.stderr == "error: noise_multiplier=-1 must be > 0; without noise there is no privacy\n"
    )


def test_help_teaches_and_is_light() -> None:
    """It must come at once, so nothing heavy is imported for it."""
    code = (
        "import sys, homo_dp.budget as b\ntry: b.main(sys.argv[1:])\nexcept SystemExit: "
        "pass\nprint([m for m in ('torch', 'dp_accounting', 'numpy', 'scipy', 'matplotlib', "
        "'rich') if m in sys.modules])"
    )
    for arguments in (["--help"], ["plan", "--help"], ["ledger", "show", "--help"]):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert run.stdout.splitlines()[-1] == "[]"
        assert "examples:" in run.stdout
        assert "exit codes:" in run.stdout
