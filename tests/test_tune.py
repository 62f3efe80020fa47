"""Random search: what is drawn, and that every trial is charged and the best is named."""

import json
from pathlib import Path
from random import Random

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.models.files import read_card
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs import winner
from homo_dp.runs.winner import Search, search_cost
from homo_dp.tune import check_choice, draws, main


def test_draws_stay_within_their_ranges_and_follow_the_seed() -> None:
    found = draws(["train.learning_rate=0.01:10", "train.rounds=5:9"], ["train.batch_size=32,64"], 50, Random(3))
    assert all(0.01 <= each["train.learning_rate"] <= 10 for each in found)
    assert {each["train.rounds"] for each in found} == {5, 6, 7, 8, 9}
    assert {each["train.batch_size"] for each in found} == {32, 64}
    assert sum(each["train.learning_rate"] < 0.316 for each in found) > 10  # by the logarithm
    assert found == draws(
        ["train.learning_rate=0.01:10", "train.rounds=5:9"], ["train.batch_size=32,64"], 50, Random(3)
    )


@pytest.mark.parametrize("text", ["train.rounds", "train.rounds=5", "train.rounds=9:5", "train.rounds=a:b"])
def test_a_bad_range_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--range"):
        draws([text], [], 1, Random(0))


def test_every_trial_is_charged_and_the_best_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    params = "train.rounds=1,tracking.enabled=false"
    assert main(["--range", "train.learning_rate=0.1:2", "--trials", "2", "--jobs", "1", "--params", params]) == 0
    said = capsys.readouterr().out
    assert "best of 2 trials by test_acc" in said
    assert "all 2 runs together: epsilon" in said
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.head().count == 6  # two runs of three parties, one round each


NOISED = "train.rounds=1,metrics.release=noised,privacy.target_epsilon=4"
WINNER = ["--publish", "winner", "--range", "train.learning_rate=0.1:2", "--trials", "3", "--jobs", "1", "--params"]


def test_the_winner_alone_is_published_and_the_ledger_holds_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(winner, "secret_number", lambda mean, distribution: 2)
    assert main([*WINNER, NOISED, "--json"]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "out" / "tune"
    assert {path.name for path in folder.iterdir()} == {"LOCAL", "winner"}
    assert {path.name for path in (folder / "winner").iterdir()} == {"model.safetensors", "winner.json"}
    assert not (tmp_path / "mlruns").exists()
    trials = [json.loads(path.read_text()) for path in (folder / "LOCAL" / "cells").glob("*/result.json")]
    assert len(trials) == 2
    found = json.loads((folder / "winner" / "winner.json").read_text())
    best, other = sorted(trials, key=lambda trial: -trial["released_acc"])
    assert found["settings"] == best["values"]
    assert found["figure"] == {"released_acc": best["released_acc"]}
    assert found["epsilon"] > 4  # more than one trial
    assert "geometric number of trials of mean 3" in found["cost_by"]
    assert "than epsilon" in found["why"]
    card = read_card(folder / "winner" / "model.safetensors").privacy
    assert card["epsilon"] == found["epsilon"]
    published = said + json.dumps(found) + json.dumps(card)
    for secret in (best["run"], other["run"], str(other["values"]["train.learning_rate"]), str(best["test_acc"])):
        assert secret not in published
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert len(ledger.runs()) == 2  # the sum: each trial as it ran
    assert main([*WINNER, NOISED]) == 0  # the draw is kept, nothing runs again
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert len(ledger.runs()) == 2
    with pytest.raises(InputError, match="holds another search"):
        main([*WINNER, NOISED, "--range", "privacy.max_grad_norm=0.5:2"])
    (folder / "LOCAL" / "trials.json").write_text("[")
    with pytest.raises(InputError, match="give another folder"):
        main([*WINNER, NOISED])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*WINNER, "train.rounds=1"], "exact scores of private test rows"),
        ([*WINNER, NOISED, "--seed", "1"], "--seed"),
        ([*WINNER, NOISED, "--vary", "train.batch_size=20,50"], "train.batch_size can change what a trial costs"),
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


def test_trials_that_charged_differently_have_no_winner(tmp_path: Path) -> None:
    results = []
    for name, noise in (("a", 5.0), ("b", 4.0)):
        event = {"noise_multiplier": noise, "type": "GaussianDpEvent"}
        row = {"run": name, "party": "p", "dataset": "d", "unit": "record", "relation": "replace_one", "delta": 1e-5}
        (tmp_path / name).write_text(json.dumps([{**row, "event": event}]))
        results.append({"files": {"ledger": str(tmp_path / name)}})
    cost = search_cost(results[:1] * 2, Search(8, "geometric"))
    assert cost.epsilon < cost.epsilon_of_sum
    with pytest.raises(InputError, match="nothing is published"):
        search_cost(results, Search(8, "geometric"))
    with pytest.raises(InputError, match="nothing is published"):
        search_cost([{"files": {}}], Search(8, "geometric"))


def test_no_trial_is_chosen_by_private_test_rows_as_they_are(tmp_path: Path) -> None:
    """The choice is published, and no event covers what test rows had to say in it."""
    table = tmp_path / "a.csv"
    table.write_text("x,y\n" + "".join(f"{row % 7},{row % 2}\n" for row in range(200)))
    keys = {"data.files": {"a": str(table)}, "data.columns": {"x": {"bounds": [0, 6]}}, "data.rows": {"a": 160}}
    with pytest.raises(ConfigError, match=r"metrics\.release"):
        check_choice(load_config(None, keys))
    check_choice(load_config(None, keys | {"metrics.release": "noised"}))


def test_with_noised_metrics_the_released_figure_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    params = "train.rounds=1,tracking.enabled=false,metrics.release=noised"
    assert main(["--range", "train.learning_rate=0.1:2", "--trials", "2", "--jobs", "1", "--params", params]) == 0
    assert "best of 2 trials by released_acc" in capsys.readouterr().out
