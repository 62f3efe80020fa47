"""The winner of a search is chosen by figures that were paid for."""

import json
import re
from pathlib import Path

import pytest

from homo_dp.core.errors import InputError
from homo_dp.models.files import read_card
from homo_dp.privacy.accounting.accountants import rdp_epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.runs import private_search
from homo_dp.runs.private_search import Search, search_cost
from homo_dp.tune import main
from tests.runs.parts import NOISED, WINNER


def test_the_winner_alone_is_published_and_the_ledger_is_charged_once(
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
    # noised and kept within 0 to 1: both can be 1
    assert best["released_acc"] >= other["released_acc"]
    assert found["figure"] == {"released_acc": best["released_acc"]}
    assert found["epsilon"] > 4  # more than one trial
    assert "geometric number of trials of mean 3" in found["cost_by"]
    assert "than epsilon" in found["why"]
    card = read_card(folder / "winner" / "model.safetensors").privacy
    assert card["epsilon"] == found["epsilon"]
    # one trial costs less, towards both
    assert card["observers"]["model_reader"] == {"epsilon": found["epsilon"]}
    assert card["observers"]["aggregator"] == {"epsilon": None}
    assert card["quoted_observer"] == "model_reader"
    published = said + json.dumps(found) + json.dumps(card)
    assert best["run"] not in published
    assert other["run"] not in published
    # whole ones: a short figure stands inside others by chance
    numbers = set(re.findall(r"\d[\d.e+-]*", published))
    assert str(found["settings"]["train.learning_rate"]) in numbers
    assert "test_acc" not in published
    exact = {str(best["test_acc"])} - {"0.0", "0.5", "1.0"}  # which settings are, too
    assert not {str(other["values"]["train.learning_rate"]), *exact} & numbers
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.rows()
        assert len({row.run for row in rows}) == 1
        assert len({row.party for row in rows}) == len(rows)
        assert {(row.kind, row.observer, row.epsilon_pld) for row in rows} == {
            ("search", "model_reader", None)
        }
        most = max(row.epsilon_rdp for row in rows)
        assert most == pytest.approx(found["epsilon"], rel=1e-6)
    with Ledger(folder / "LOCAL" / "ledger.sqlite", read_only=True) as ledger:
        assert len(ledger.runs()) == 2  # each trial as it ran
    assert main([*WINNER, NOISED]) == 0  # the draw is kept, nothing runs again
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.rows() == rows
    with pytest.raises(InputError, match="holds another search"):
        main([*WINNER, NOISED, "--range", "privacy.max_grad_norm=0.5:2"])
    (folder / "LOCAL" / "trials.json").write_text("[")
    with pytest.raises(InputError, match="give another folder"):
        main([*WINNER, NOISED])


@pytest.mark.parametrize("number", ["geometric", "poisson"])
def test_the_ledger_does_not_tell_the_number_of_trials(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: str,
) -> None:
    """What a party shows with every message (`ledger_head`), what is left of its lifetime budget,
    and the rows themselves are the same for every number.
    """
    shown = []
    for trials in (1, 3) if number == "geometric" else (0, 2):
        folder = tmp_path / str(trials)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setattr(private_search, "secret_number", lambda *_, drawn=trials: drawn)
        keys = "privacy.lifetime_epsilon=30,privacy.lifetime_delta=1e-5"
        assert main([*WINNER, NOISED, "--params", keys, "--number", number]) == 0
        with Ledger(folder / "ledger.sqlite", read_only=True) as ledger:
            head = ledger.head()
            rows = [(row.event, row.epsilon_rdp, row.lifetime_order) for row in ledger.rows()]
            left = ledger.epsilon_left("breast_cancer", Budget(None, 30.0, 1e-5))
        shown.append((head.count, rows, left))
    capsys.readouterr()
    assert shown[0] == shown[1]
    assert shown[0][0] == len(shown[0][1])


def test_a_search_past_the_lifetime_budget_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = "privacy.lifetime_epsilon=5,privacy.lifetime_delta=1e-5"
    with pytest.raises(BudgetExceeded, match="lifetime_epsilon=5"):
        main([*WINNER, NOISED, "--params", keys])
    assert not (tmp_path / "out" / "tune" / "LOCAL" / "cells").exists()


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
    search = Search(8, "geometric")
    committed = [_committed(5.0)]
    cost = search_cost(results[:1] * 2, search, committed)
    assert cost.epsilon < cost.epsilon_of_sum
    eight = {to_json(GaussianDpEvent(5.0)): 8}
    assert cost.epsilon_of_sum == pytest.approx(rdp_epsilon(eight, 1e-5), rel=1e-9)
    with pytest.raises(InputError, match="nothing is published"):
        search_cost(results, search, committed)
    with pytest.raises(InputError, match="nothing is published"):
        search_cost([{"files": {}}], search, committed)
    with pytest.raises(InputError, match="charged more than the search"):
        search_cost(results[:1], search, [_committed(5.1)])


def _committed(noise: float) -> Charge:
    event = RepeatAndSelectDpEvent(GaussianDpEvent(noise), 8.0, 1.0)
    return Charge(
        "search-1", "d", "record", "replace_one", "p", 0, "search", event, 1e-5, noise, "aggregator"
    )
