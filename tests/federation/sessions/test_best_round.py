"""Early stopping and the best round: by released or public figures alone, at the price of what
was released.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.sessions.best_round import BestRound, best_round_of
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.outputs import indicators_of, judged_line
from homo_dp.runs.simulation import Simulation

# nothing gets better by 10: stops at the third
STOPS = {"train.early_stopping": {"patience": 2, "min_delta": 10.0}}
NOISED = {"metrics.release": "noised", "metrics.every": 1}


def _config(folder: Path, keys: dict[str, Any]) -> Config:
    base = {
        "privacy.target_epsilon": 8.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "tracking.enabled": False,
        "train.auto": False,
        "train.rounds": 6,
        "train.local_steps": 2,
    }
    return load_config(None, base | keys)


@pytest.mark.parametrize(
    "keys",
    [
        NOISED,
        NOISED
        | {
            "privacy.mechanism": "dp_fedsgd",
            "train.local_steps": None,
            "privacy.secure_aggregation": True,
        },
    ],
)
def test_a_run_that_stops_pays_for_what_it_released(tmp_path: Path, keys: dict[str, Any]) -> None:
    simulation = Simulation(_config(tmp_path, keys | STOPS), lambda row, numbers: None)
    outcome = simulation.run()
    assert [row.get("asked") for row in outcome.rounds] == [None, "metrics"] * 3
    with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.rows(outcome.run, "party_1")
    assert [row.kind for row in rows] == ["update", "metrics"] * 3
    assert outcome.statement["epsilon"] == pytest.approx(rows[-1].epsilon, rel=1e-3)
    assert outcome.statement["epsilon"] < 6.5  # noise was solved for 8 over six rounds
    indicators = indicators_of(outcome, None)
    assert indicators["stopped_early"] == {
        "rounds_of_training": 3,
        "planned": 6,
        "by": "released_acc",
    }
    assert "stopped after 3 of 6 rounds" in (judged_line(indicators) or "")


@pytest.mark.parametrize(
    "keys", [NOISED, {"data.public_test": True}, NOISED | {"train.averaging": "ema"}]
)
def test_the_model_of_the_best_round_is_published(tmp_path: Path, keys: dict[str, Any]) -> None:
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def look(row: dict[str, Any], numbers: Any) -> None:
        module = simulation.model.module
        seen[row["round"]] = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    simulation = Simulation(_config(tmp_path, keys | {"train.keep": "best"}), look)
    outcome = simulation.run()
    name = "released_acc" if "metrics.release" in keys else "test_acc"
    known = [row for row in outcome.rounds if row.get(name) is not None]
    best = max(known, key=lambda row: float(row[name]))  # the first of equal ones
    found = indicators_of(outcome, None)["best_round"]
    assert (found["round"], found["kept"], found["by"]) == (best["round"], True, name)
    same = all(
        torch.equal(seen[best["round"]][key], outcome.weights[key]) for key in outcome.weights
    )
    # an average of one is itself
    assert same is ("train.averaging" not in keys or best["round"] == known[0]["round"])


def test_local_figures_steer_nothing(tmp_path: Path) -> None:
    for keys in (STOPS, {"train.keep": "best"}):
        with pytest.raises(ConfigError, match="never by local ones"):
            load_config(None, keys)
        with pytest.raises(ConfigError, match=r"metrics\.every"):
            load_config(None, keys | {"metrics.release": "noised"})
        with pytest.raises(ConfigError, match="evaluate_every"):
            load_config(None, keys | {"data.public_test": True, "train.evaluate_every": 0})
    rows = [
        {"round": number, "test_acc": 0.9 - number / 10, "released_acc": 0.1}
        for number in (1, 2, 3)
    ]
    private = [{key: value for key, value in row.items() if key != "released_acc"} for row in rows]
    judge = BestRound("released_", patience=1)
    assert judge.stops(rows)
    assert not judge.stops(private)
    assert judge.best(private) is None


def test_a_figure_that_is_not_released_is_refused(tmp_path: Path) -> None:
    for keys, metric in ((NOISED, "r2"), ({"data.public_test": True}, "ks")):
        with pytest.raises(ConfigError, match="take one of them"):
            Simulation(
                _config(tmp_path, keys | {"train.early_stopping": metric}),
                lambda row, numbers: None,
            )
    kept = best_round_of(_config(tmp_path, NOISED | {"train.early_stopping": "auc"}))
    assert kept == BestRound("released_", "auc", 3)


def test_what_is_better_depends_on_the_figure() -> None:
    rows = [
        {"round": n, "released_loss": loss}
        for n, loss in enumerate((0.5, 0.4, 0.45, 0.39, 0.41), 1)
    ]
    assert (BestRound("released_", "loss").best(rows) or {})["round"] == 4
    assert (BestRound("released_", "loss", min_delta=0.05).best(rows) or {})["round"] == 2
    assert BestRound("released_", "loss", patience=3, min_delta=0.05).stops(rows)
    assert not BestRound("released_", "loss", patience=4, min_delta=0.05).stops(rows)


def test_metrics_of_each_party_have_its_own_noise(tmp_path: Path) -> None:
    numbers: list[dict[str, dict[str, float]]] = []
    simulation = Simulation(
        _config(tmp_path, NOISED | {"metrics.per_party": True, "train.rounds": 1}),
        lambda row, each: numbers.append({party: dict(own) for party, own in each.items()}),
    )
    outcome = simulation.run()
    indicators = indicators_of(outcome, None)
    assert set(indicators["released_parties"]) == set(simulation.parties)
    whole = indicators["released_metrics"]["rows"]
    sigma = simulation.mechanism.run.sums[2].private_sum.sigma
    for name, own in indicators["released_parties"].items():
        # a part of three equal ones
        assert own["rows"]["error"] == pytest.approx(whole["error"] / 3**0.5, rel=0.4)
        test = simulation.federation.parties[name].test
        assert test is not None
        # of 20 counts: 1e-15
        assert abs(own["rows"]["value"] - len(test)) < 8 * sigma * (2 * 20) ** 0.5
        assert numbers[-1][name]["released_acc"] == own["acc"]["value"]
    total = sum(own["rows"]["value"] for own in indicators["released_parties"].values())
    # the same release, read twice: nothing more was asked
    assert total == pytest.approx(whole["value"])


def test_totals_alone_are_seen_under_masks() -> None:
    masked = {"privacy.mechanism": "dp_fedsgd", "privacy.secure_aggregation": True}
    with pytest.raises(ConfigError, match="the total of all parties alone"):
        load_config(None, NOISED | masked | {"metrics.per_party": True})
    with pytest.raises(ConfigError, match="write noised"):
        load_config(None, {"metrics.per_party": True})
