"""Statistics as a run: in one process, under masks, by command and function; what it costs and
what it writes.
"""

from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.statistics import StatisticsSimulation, ask_in_process, asking


def _config(folder: Path, **keys: Any) -> Config:
    base = {
        "privacy.mechanism": "statistics",
        "privacy.target_epsilon": 2.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "statistics.ask": "rows,classes,means",
        "tracking.enabled": False,
        "output.indicatorFileName": str(folder / "out" / "indicator.json"),
    }
    return load_config(
        None, base | {name.replace("__", "."): value for name, value in keys.items()}
    )


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


def test_curves_of_a_training_are_not_asked_about(tmp_path: Path) -> None:
    plain, curved = (
        StatisticsSimulation(_config(tmp_path, data__curves=curves)) for curves in (None, True)
    )
    assert curved.federation.encoding == plain.federation.encoding
    assert (
        len(ask_in_process(_config(tmp_path, data__curves=True))["questions"]["means"]["values"])
        == 30
    )


def test_masks_share_the_noise(tmp_path: Path) -> None:
    alone = ask_in_process(_config(tmp_path, statistics__ask="rows"))["questions"]["rows"][
        "standard_errors"
    ]["rows"]
    shared = ask_in_process(
        _config(tmp_path, statistics__ask="rows", privacy__secure_aggregation=True)
    )
    assert shared["questions"]["rows"]["standard_errors"]["rows"] < 0.75 * alone
    privacy = shared["privacy"]
    assert (
        privacy["noise_shared_by"],
        privacy["tolerated_dropouts"],
        privacy["tolerated_colluders"],
    ) == (3, 0, 1)
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
    assert (
        few.mechanism.run.sums[1].private_sum.noise_multiplier
        < many.mechanism.run.sums[1].private_sum.noise_multiplier
    )


def test_questions_of_a_training_config_are_refused_where_nothing_asks() -> None:
    with pytest.raises(ConfigError, match="homo-dp stats"):
        load_config(None, {"statistics.ask": "rows,means"})
    with pytest.raises(ConfigError, match="each once"):
        asking(load_config(None, {"privacy.mechanism": "statistics"}), ["rows", "rows"])
