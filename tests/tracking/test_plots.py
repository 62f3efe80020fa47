"""Plots: every one is a picture, says what it shows, and is left out where there is nothing to show."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from homo_dp.tracking.plots import (
    accuracy_against_epsilon,
    budget_bars,
    epsilon_per_party,
    gradient_norms,
    learning_curves,
)
from homo_dp.tracking.sweep_plots import key_picture

ROUNDS = [
    {
        "round": n,
        "epsilon": n / 2,
        "epsilon_rdp": n / 1.8,
        "test_acc": 0.5 + n / 20,
        "test_auc": 0.9,
        "test_loss": 1 / n,
    }
    for n in range(1, 6)
]
NORMS: dict[str, Any] = {
    "clip_norm": 1.0,
    "edges": [0.0, 1.0, 2.0],
    "parties": {"a": {"counts": [3, 1], "fraction_clipped": 0.25}},
}


def ledger(parties: int) -> list[dict[str, Any]]:
    return [
        {"party": f"p{party}", "round": number, "epsilon": number * (1 + party / 9), "epsilon_rdp": number * 3.0}
        for party in range(parties)
        for number in range(1, 4)
    ]


def dataset(**changes: Any) -> dict[str, Any]:
    return {
        "dataset": "a data set with a name that is much too long/for any axis",
        "unit": "record",
        "runs": 2,
        "epsilon_this_run": 2.0,
        "epsilon_sum": 5.0,
        "epsilon_together": 3.1,
        "lifetime_epsilon": 8.0,
    } | changes


def pixels(data: bytes | None) -> np.ndarray:
    assert data is not None
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def has_colour(picture: np.ndarray, colour: str) -> bool:
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return bool((np.abs(picture.astype(int) - wanted).sum(axis=2) < 6).sum() > 20)


def test_learning_shows_what_there_is() -> None:
    both = pixels(learning_curves(ROUNDS))
    regression = pixels(learning_curves([{"round": 1, "test_loss": 2.0, "test_acc": None}]))
    assert both.shape[0] > 1.5 * regression.shape[0]
    assert has_colour(both, "#0072B2")
    assert has_colour(both, "#D55E00")
    assert learning_curves([{"round": 1, "epsilon": 1.0}]) is None
    assert learning_curves([]) is None


@pytest.mark.parametrize("parties", [1, 3, 7, 40])
def test_epsilon_has_a_line_for_every_party_or_a_band(parties: int) -> None:
    picture = pixels(epsilon_per_party(ledger(parties), [], 1e-5))
    assert has_colour(picture, "#0072B2")
    assert has_colour(picture, "#D55E00") == (1 < parties <= 7)


def test_epsilon_without_a_ledger_is_that_of_the_rounds() -> None:
    assert has_colour(pixels(epsilon_per_party((), ROUNDS, 1e-5)), "#0072B2")
    assert epsilon_per_party((), [{"round": 1, "epsilon": None}], None) is None


def test_accuracy_against_epsilon_falls_back_to_loss() -> None:
    assert pixels(accuracy_against_epsilon(ROUNDS, 1e-5)).shape[2] == 3
    losses = [{"round": 1, "epsilon": 1.0, "test_loss": 0.5}]
    assert accuracy_against_epsilon(losses, None) is not None
    assert accuracy_against_epsilon([{"round": 1, "test_acc": 0.5}], None) is None


def test_norms_and_budget() -> None:
    assert has_colour(pixels(gradient_norms(NORMS)), "#0072B2")
    many = {**NORMS, "parties": dict.fromkeys("abcdefghij", NORMS["parties"]["a"])}
    assert has_colour(pixels(gradient_norms(many)), "#000000")
    picture = pixels(budget_bars([dataset(), dataset(lifetime_epsilon=None, epsilon_together=None)]))
    assert all(has_colour(picture, colour) for colour in ("#0072B2", "#888888", "#D55E00"))
    alone = pixels(budget_bars([dataset(runs=1, epsilon_sum=2.0, lifetime_epsilon=None)]))
    assert not has_colour(alone, "#888888")
    assert budget_bars([]) is None


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert learning_curves(ROUNDS) == learning_curves(ROUNDS)


def test_a_sweep_over_words_and_lists_and_without_epsilon() -> None:
    results = [
        {"values": {"train.optimizer": name, "model.layers": layers}, "repeat": repeat, "test_acc": 0.5 + repeat / 9}
        for name in ("sgd", "adam")
        for layers in ([8], [8, 4])
        for repeat in (0, 1)
    ]
    assert pixels(key_picture("train.optimizer", results)).any()
    assert pixels(key_picture("model.layers", results)).any()


def test_a_sweep_over_numbers_with_epsilons_far_apart() -> None:
    results = [
        {"values": {"privacy.noise_multiplier": z}, "repeat": 0, "test_loss": z, "epsilon": 100 / z**3, "delta": 1e-5}
        for z in (0.1, 1.0, 10.0)
    ]
    assert has_colour(pixels(key_picture("privacy.noise_multiplier", results)), "#0072B2")
