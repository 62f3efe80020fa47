"""Random search: what is drawn, and that every trial is charged and the best is named."""

from pathlib import Path
from random import Random

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.privacy.ledger import Ledger
from homo_dp.tune import check_choice, draws, main
from tests.runs.parts import NOISED, WINNER


def test_draws_stay_within_their_ranges_and_follow_the_seed() -> None:
    found = draws(
        ["train.learning_rate=0.01:10", "train.rounds=5:9"],
        ["train.batch_size=32,64"],
        50,
        Random(3),
    )
    assert all(0.01 <= each["train.learning_rate"] <= 10 for each in found)
    assert {each["train.rounds"] for each in found} == {5, 6, 7, 8, 9}
    assert {each["train.batch_size"] for each in found} == {32, 64}
    assert sum(each["train.learning_rate"] < 0.316 for each in found) > 10  # by the logarithm
    assert found == draws(
        ["train.learning_rate=0.01:10", "train.rounds=5:9"],
        ["train.batch_size=32,64"],
        50,
        Random(3),
    )


@pytest.mark.parametrize(
    "text", ["train.rounds", "train.rounds=5", "train.rounds=9:5", "train.rounds=a:b"]
)
def test_a_bad_range_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--range"):
        draws([text], [], 1, Random(0))


def test_every_trial_is_charged_and_the_best_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    params = "train.rounds=1,tracking.enabled=false"
    assert (
        main(
            [
                "--range",
                "train.learning_rate=0.1:2",
                "--trials",
                "2",
                "--jobs",
                "1",
                "--params",
                params,
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "best of 2 trials by test_acc" in said
    assert "all 2 runs together: epsilon" in said
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.head().count == 6  # two runs of three parties, one round each


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*WINNER, "train.rounds=1"], "exact scores of private test rows"),
        ([*WINNER, NOISED, "--seed", "1"], "--seed"),
        (
            [*WINNER, NOISED, "--vary", "train.batch_size=20,50"],
            "train.batch_size can change what a trial costs",
        ),
        ([*WINNER, "privacy.mechanism=none"], "must be private"),
        ([*WINNER, f"{NOISED},train.init_from=model.safetensors"], "train.init_from"),
        ([*WINNER, f"{NOISED},metrics.every=1,train.early_stopping=acc"], "stop early"),
    ],
)
def test_a_search_without_a_bound_is_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        main(arguments)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_no_trial_is_chosen_by_private_test_rows_as_they_are(tmp_path: Path) -> None:
    """The choice is published, and no event covers what test rows had to say in it."""
    table = tmp_path / "a.csv"
    table.write_text("x,y\n" + "".join(f"{row % 7},{row % 2}\n" for row in range(200)))
    keys = {
        "data.files": {"a": str(table)},
        "data.columns": {"x": {"bounds": [0, 6]}},
        "data.rows": {"a": 160},
    }
    with pytest.raises(ConfigError, match=r"metrics\.release"):
        check_choice(load_config(None, keys))
    check_choice(load_config(None, keys | {"metrics.release": "noised"}))


def test_with_noised_metrics_the_released_figure_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    params = "train.rounds=1,tracking.enabled=false,metrics.release=noised"
    assert (
        main(
            [
                "--range",
                "train.learning_rate=0.1:2",
                "--trials",
                "2",
                "--jobs",
                "1",
                "--params",
                params,
            ]
        )
        == 0
    )
    assert "best of 2 trials by released_acc" in capsys.readouterr().out
