"""Statistics as a run: in one process, under masks, by command and function; what it costs and what it writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import homo_dp
from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.statistics import StatisticsSimulation, ask_in_process, asking
from homo_dp.stats import main


def _config(folder: Path, **keys: Any) -> Config:
    base = {
        "privacy.mechanism": "statistics",
        "privacy.target_epsilon": 2.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "statistics.ask": "rows,classes,means",
        "tracking.enabled": False,
        "output.indicatorFileName": str(folder / "out" / "indicator.json"),
    }
    return load_config(None, base | {name.replace("__", "."): value for name, value in keys.items()})


@pytest.mark.parametrize("masked", [False, True])
def test_answers_are_near_the_truth_and_cost_the_target(tmp_path: Path, masked: bool) -> None:
    found = ask_in_process(_config(tmp_path, privacy__secure_aggregation=masked))
    assert 1.99 <= found["privacy"]["epsilon"] <= 2.0
    questions = found["questions"]
    rows, error = questions["rows"]["values"]["rows"], questions["rows"]["standard_errors"]["rows"]
    assert abs(rows - 455) < 6 * error
    assert abs(sum(questions["classes"]["values"].values()) - 455) < 6 * error * 2
    mean, error = (questions["means"][key]["mean radius"] for key in ("values", "standard_errors"))
    assert abs(mean - 13.9) < 6 * error + 0.5  # values above the bounds are clipped
    assert ("parties" in questions["rows"]) is not masked
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        kinds = [row.kind for row in ledger.rows(found["run"], "party_1")]
        assert kinds == ["rows", "classes", "means"]
        assert ledger.rows(found["run"], "party_1")[-1].epsilon <= 2.0


def test_masks_share_the_noise(tmp_path: Path) -> None:
    alone = ask_in_process(_config(tmp_path, statistics__ask="rows"))["questions"]["rows"]["standard_errors"]["rows"]
    shared = ask_in_process(_config(tmp_path, statistics__ask="rows", privacy__secure_aggregation=True))
    assert shared["questions"]["rows"]["standard_errors"]["rows"] < 0.75 * alone
    privacy = shared["privacy"]
    assert (privacy["noise_shared_by"], privacy["tolerated_dropouts"], privacy["tolerated_colluders"]) == (3, 0, 1)
    assert any("together with up to 1 of the parties" in note for note in privacy["notes"])
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        (row,) = ledger.rows(shared["run"], "party_1")
    assert "1/sqrt(2) of it, shared by 3 parties, 0 dropouts and 1 colluders assumed" in row.noise


def test_the_budget_of_the_data_is_asked_before_rows_are(tmp_path: Path) -> None:
    keys = {"privacy__lifetime_epsilon": 2.5, "data__name": "d"}
    ask_in_process(_config(tmp_path, **keys))
    with pytest.raises(BudgetExceeded):
        ask_in_process(_config(tmp_path, **keys))


def test_fewer_questions_get_less_noise(tmp_path: Path) -> None:
    few = StatisticsSimulation(_config(tmp_path, statistics__ask="rows"))
    many = StatisticsSimulation(_config(tmp_path))
    assert few.mechanism.sums[1].private_sum.noise_multiplier < many.mechanism.sums[1].private_sum.noise_multiplier


def test_the_command_writes_numbers_pictures_and_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    params = "privacy.target_epsilon=1,tracking.enabled=false"
    ask = ["--ask", "rows,histograms,quantiles", "--columns", "mean radius", "--json", "--params", params]
    assert main(ask) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "out" / "indicator_statistics.json").read_text())
    assert printed["questions"] == written["questions"]
    assert printed["privacy"]["epsilon"] <= 1.0
    assert set(printed["questions"]) == {"rows", "histograms", "quantiles"}
    assert (tmp_path / "out" / "indicator_histogram_mean_radius.png").read_bytes().startswith(b"\x89PNG")
    assert "histogram" in " ".join(printed["files"])


def test_mlflow_keeps_statistics_without_looking_for_a_training_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--ask", "rows", "--json", "--params", "tracking.uri=sqlite:///runs.db"]) == 0
    printed = capsys.readouterr()
    assert "refused a part" not in printed.err
    assert json.loads(printed.out)["mlflow_run"] is not None


def test_the_config_of_a_training_can_be_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path(__file__).resolve().parents[2] / "conf" / "homo_lr_dpsgd.yaml"
    monkeypatch.chdir(tmp_path)
    assert main(["--config", str(recipe), "--ask", "rows", "--dry-run"]) == 0
    assert "rows of all rows" in capsys.readouterr().out
    assert not (tmp_path / "ledger.sqlite").exists()


def test_the_function_asks_what_the_command_asks(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"age": rng.integers(20, 80, 3000), "ward": rng.choice(["a", "b", "c"], 3000)})
    frame["y"] = rng.integers(0, 2, 3000)
    frame.loc[:99, "age"] = np.nan
    found = homo_dp.stats(
        {"n": frame[:1500], "s": frame[1500:]},
        "rows,means,levels,missing",
        epsilon=4,
        settings={
            "data.columns": {"age": {"bounds": [0, 120]}, "ward": {"levels": ["a", "b"]}},
            "data.test_fraction": 0.0,
        },
        ledger=tmp_path / "ledger.sqlite",
    )
    questions = found["questions"]
    assert abs(questions["rows"]["values"]["rows"] - 3000) < 60
    assert abs(questions["means"]["values"]["age"] - frame["age"].mean()) < 3
    assert abs(questions["levels"]["values"]["ward"]["(other)"] - (frame["ward"] == "c").sum()) < 100
    assert abs(questions["missing"]["values"]["age"] - 100) < 100


def test_questions_of_a_training_config_are_refused_where_nothing_asks() -> None:
    with pytest.raises(ConfigError, match="homo-dp stats"):
        load_config(None, {"statistics.ask": "rows,means"})
    with pytest.raises(ConfigError, match="each once"):
        asking(load_config(None, {"privacy.mechanism": "statistics"}), ["rows", "rows"])
