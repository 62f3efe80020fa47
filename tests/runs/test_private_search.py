"""The winner of a search is chosen by figures that were paid for."""

import json
import re
from pathlib import Path

import pytest

from homo_dp.core.errors import InputError
from homo_dp.models.files import read_card
from homo_dp.privacy.accounting.accountants import rdp_epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs import private_search
from homo_dp.runs.private_search import Search, search_cost
from homo_dp.tune import main
from tests.runs.parts import NOISED, WINNER


def test_the_winner_alone_is_published_and_the_ledger_holds_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(private_search, "secret_number", lambda mean, distribution: 2)
    assert main([*WINNER, NOISED, "--json"]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "out" / "tune"
    assert {path.name for path in folder.iterdir()} == {"LOCAL", "winner"}
    assert {path.name for path in (folder / "winner").iterdir()} == {
        "model.safetensors",
        "winner.json",
    }
    assert not (tmp_path / "mlruns").exists()
    trials = [
        json.loads(path.read_text()) for path in (folder / "LOCAL" / "cells").glob("*/result.json")
    ]
    assert len(trials) == 2
    found = json.loads((folder / "winner" / "winner.json").read_text())
    best, other = sorted(trials, key=lambda trial: trial["values"] != found["settings"])
    assert found["settings"] == best["values"]
    assert (
        best["released_acc"] >= other["released_acc"]
    )  # noised and kept within 0 to 1: both can be 1
    assert found["figure"] == {"released_acc": best["released_acc"]}
    assert found["epsilon"] > 4  # more than one trial
    assert "geometric number of trials of mean 3" in found["cost_by"]
    assert "than epsilon" in found["why"]
    card = read_card(folder / "winner" / "model.safetensors").privacy
    assert card["epsilon"] == found["epsilon"]
    published = said + json.dumps(found) + json.dumps(card)
    assert best["run"] not in published
    assert other["run"] not in published
    numbers = set(
        re.findall(r"\d[\d.e+-]*", published)
    )  # whole ones: a short figure stands inside others by chance
    assert str(found["settings"]["train.learning_rate"]) in numbers
    assert "test_acc" not in published
    exact = {str(best["test_acc"])} - {"0.0", "0.5", "1.0"}  # which settings are, too
    assert not {str(other["values"]["train.learning_rate"]), *exact} & numbers
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


def test_trials_that_charged_differently_have_no_winner(tmp_path: Path) -> None:
    results = []
    for name, noise in (("a", 5.0), ("b", 4.0)):
        event = {"noise_multiplier": noise, "type": "GaussianDpEvent"}
        row = {
            "run": name,
            "party": "p",
            "dataset": "d",
            "unit": "record",
            "relation": "replace_one",
            "delta": 1e-5,
        }
        (tmp_path / name).write_text(json.dumps([{**row, "event": event}]))
        results.append({"files": {"ledger": str(tmp_path / name)}})
    cost = search_cost(results[:1] * 2, Search(8, "geometric"))
    assert cost.epsilon < cost.epsilon_of_sum
    learnt = [{**results[0], "before": {"noise_multipliers": [5.0]}}] * 2
    dearer = search_cost(learnt, Search(8, "geometric"))
    assert dearer.epsilon > cost.epsilon
    nine = {to_json(GaussianDpEvent(5.0)): 9}  # eight trials, and what was learnt before them once
    assert dearer.epsilon_of_sum == pytest.approx(rdp_epsilon(nine, 1e-5), rel=1e-9)
    with pytest.raises(InputError, match="nothing is published"):
        search_cost(results, Search(8, "geometric"))
    with pytest.raises(InputError, match="nothing is published"):
        search_cost([{"files": {}}], Search(8, "geometric"))
