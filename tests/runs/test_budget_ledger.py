"""homo-dp budget ledger: what was spent, over all runs, and a ledger that was touched."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.privacy.noise.source import SeededNoise
from tests.shell import budget_command

# --- ledger


RELEASE = Charge(
    *(
        "run-1",
        "patients",
        "record",
        "add_or_remove_one",
        "hospital_a",
        1,
        "update",
        GaussianDpEvent(5.0),
    ),
    *(1e-5, 5.0, "aggregator"),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as rows:
        for number in (1, 2, 3):
            rows.charge(replace(RELEASE, round=number), Budget())
    return path


def test_show(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command("ledger", "show", str(ledger)) == 0
    out = capsys.readouterr().out
    assert "1 runs" in out
    assert [line.split()[1:] for line in out.splitlines() if "run-1" in line] == [
        # towards the aggregator, and whoever reads what it made of it
        ["run-1", "patients", "1.326", "1.326"]
    ]
    assert budget_command("ledger", "show", str(ledger), "--rows") == 0
    out = capsys.readouterr().out
    assert "3 releases" in out
    assert out.count("Gaussian(5)") == 3
    assert "hospital_a" in out
    assert budget_command("ledger", "show", str(ledger), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[0]["event"] == {"noise_multiplier": 5.0, "type": "GaussianDpEvent"}
    assert rows[-1]["epsilon"] == pytest.approx(1.326, abs=1e-3)
    assert budget_command("ledger", "show", str(ledger), "--json", "--party", "another") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_show_adds_up_all_runs(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger(ledger) as rows:
        for run in ("run-2", "run-3"):
            rows.charge(replace(RELEASE, run=run), Budget())
    assert budget_command("ledger", "show", str(ledger)) == 0
    total = capsys.readouterr().out.splitlines()[-1].split()
    spent = epsilon(SelfComposedDpEvent(GaussianDpEvent(5.0), 5), 1e-5)
    figures = [f"{spent.rdp:.4g}", f"{spent.pld:.4g}"]
    assert total == ["patients", "record,", "add", "or", "remove", "3", "5", *figures, "1e-05"]
    assert budget_command("ledger", "show", str(ledger), "--run", "run-2") == 0
    assert "all runs" not in capsys.readouterr().out


def test_show_quotes_no_epsilon_of_noise_that_can_be_repeated(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(ledger) as rows:
        rows.charge(replace(RELEASE, run="run-2", noise=SeededNoise(1).label), Budget())
    assert budget_command("ledger", "show", str(ledger)) == 0
    assert capsys.readouterr().out.splitlines()[-1].count("NOT PRIVATE") == 2
    assert budget_command("ledger", "show", str(ledger), "--run", "run-2") == 0
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert budget_command("ledger", "show", str(ledger), "--json", "--run", "run-2") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["epsilon"] is None
    assert "NOT PRIVATE" in row["noise"]


def test_show_fits_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.012345, GaussianDpEvent(1.2345)), 100)
    long = replace(
        RELEASE,
        run="run-20261118-003137-abcdef-and-more",
        dataset="a" * 60,
        party="p" * 60,
        event=event,
    )
    with Ledger(tmp_path / "l.sqlite") as rows:
        rows.charge(replace(long, observer="model_reader"), Budget())
        rows.charge(replace(long, run="run-2", party="b", relation="replace_one"), Budget())
    for more in ([], ["--rows"]):
        assert budget_command("ledger", "show", str(tmp_path / "l.sqlite"), *more) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "sqlite" not in line]
        assert max(map(len, lines)) <= 80


def test_show_one_dataset_with_a_picture(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(ledger) as rows:
        rows.charge(replace(RELEASE, run="run-2", dataset="other"), Budget())
        rows.charge(replace(RELEASE, run="run-3", kind="model", observer="model_reader"), Budget())
    picture = tmp_path / "spent.png"
    assert (
        budget_command(
            "ledger", "show", str(ledger), "--dataset", "patients", "--plot", str(picture)
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "other" not in out
    assert "reader" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert budget_command("ledger", "show", str(ledger), "--dataset", "none") == 2
    assert "--dataset=none: nothing was released" in capsys.readouterr().err


def test_verify(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_command("ledger", "verify", str(ledger)) == 0
    assert "3 releases" in capsys.readouterr().out
    assert budget_command("ledger", "verify", str(ledger), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["rows"] == 3


@pytest.mark.parametrize(
    ("damage", "row"),
    [
        ("UPDATE releases SET sigma = 9 WHERE row = 2", "row=2"),
        ("DELETE FROM releases WHERE row = 2", "row=2"),
        ("DELETE FROM releases WHERE row = 3", "row=3"),
    ],
)
def test_verify_names_the_bad_row(
    ledger: Path, damage: str, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(ledger) as database:
        database.execute(damage)
    database.close()
    assert budget_command("ledger", "verify", str(ledger)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert row in err
    assert err.count("\n") == 1
    assert budget_command("ledger", "verify", str(ledger), "--json") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert budget_command("ledger", "show", str(ledger)) == 3
