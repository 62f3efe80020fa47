"""The rules of train.auto: public facts alone decide, and each says what to expect of it."""

import math
from typing import Any

import pytest

from homo_dp.runs.auto_rules import (
    CURVES_DETAIL,
    CURVES_ROWS,
    EXPECTED,
    LEAST_DETAIL,
    PublicFacts,
    choose,
    takes_curves,
)

FACTS = PublicFacts(
    rows=30_000,
    parties=3,
    sharers=None,
    numeric=6,
    categorical=4,
    width=30,
    outputs=1,
    task="binary",
    linear=True,
    mu=0.3,
)


def facts(**changes: Any) -> PublicFacts:
    return PublicFacts(**{**FACTS.__dict__, **changes})


def test_more_rows_or_shared_noise_let_more_of_a_gradient_through() -> None:
    clips = [
        choose(facts(rows=rows), "dp_fedsgd").settings["privacy.max_grad_norm"]
        for rows in (3000, 30_000, 300_000)
    ]
    assert clips == sorted(clips)
    assert facts(sharers=2).kappa == pytest.approx(FACTS.kappa * math.sqrt(2))
    assert choose(facts(rows=100), "dp_fedsgd").settings["train.solver"] == "gradient"
    assert choose(FACTS, "dp_fedsgd").settings["train.solver"] == "second_moment"
    assert facts(rows=100).detail < LEAST_DETAIL < FACTS.detail


def test_where_noise_is_as_long_as_a_gradient_all_count_alike() -> None:
    little, modest, more = (
        choose(facts(mu=detail * 31 * math.sqrt(3) / 30_000), "dp_fedsgd").settings
        for detail in (1.0, 5.0, 20.0)
    )
    for settings in (little, modest):
        assert settings["train.server_optimizer"]["momentum"] == 0.0
    assert more["train.server_optimizer"]["momentum"] > 0
    assert little["train.averaging"]["kind"] == "none"


def test_every_detail_has_something_to_expect() -> None:
    assert EXPECTED[-1][0] == math.inf
    assert all(low <= middle <= high for _, *kinds in EXPECTED for low, middle, high, _ in kinds)
    for detail in (0.01, 2.0, 50.0, 1e6):
        assert "AUC" in (
            choose(facts(mu=detail * 31 * math.sqrt(3) / 30_000), "dp_fedsgd").expected or ""
        )


def test_images_are_whitened_at_much_less_detail_than_tables() -> None:
    few = {"rows": 2000, "width": 800, "task": "multiclass", "outputs": 10, "mu": 0.7}
    assert choose(facts(**few), "dp_fedsgd").settings["train.solver"] == "gradient"
    assert (
        choose(facts(**few, fixed_features=True), "dp_fedsgd").settings["train.solver"]
        == "second_moment"
    )


def test_the_rules_for_images_grow_with_detail() -> None:
    known = {"width": 800, "task": "multiclass", "outputs": 10, "mu": 0.7, "fixed_features": True}
    found = [
        choose(facts(rows=rows, **known), "dp_fedsgd").settings
        for rows in (5_000, 60_000, 1_000_000)
    ]
    for key in ("train.rounds", "train.learning_rate", "privacy.max_grad_norm"):
        values = [settings[key] for settings in found]
        assert values == sorted(values)
        assert values[0] < values[-1]


def test_images_have_something_of_their_own_to_expect() -> None:
    known = {"width": 800, "task": "multiclass", "outputs": 10, "mu": 0.7, "fixed_features": True}
    for rows, lost in ((3_000, "10 points"), (60_000, "0.7 points"), (1_000_000, "0 points")):
        assert lost in (choose(facts(rows=rows, **known), "dp_fedsgd").expected or "")


def test_columns_are_scaled_from_a_detail_on_unless_they_are_alike() -> None:
    def share(**changes: Any) -> float:
        return float(
            choose(facts(**changes), "dp_fedsgd", "second_moment").settings["train.column_share"]
        )

    assert share() > 0
    assert share(rows=100) == 0
    assert share(task="multiclass", outputs=3) > 0
    assert share(task="multiclass", outputs=3, alike=True) == 0
    assert share(fixed_features=True) == 0


def test_a_network_walks_as_far_as_noise_allows() -> None:
    """The path in clip norms goes by rows times mu over noise and by the length of a row, not by
    the rounds.
    """

    def path(**changes: Any) -> float:
        found = choose(facts(linear=False, **changes), "dp_fedsgd").settings
        return float(
            found["train.rounds"] * found["train.learning_rate"] * found["privacy.max_grad_norm"]
        )

    short = path(rows=300)
    assert short < path(rows=3000) / 8 < path(rows=30_000) / 64
    assert path(rows=300, parties=1) == pytest.approx(short * 3**0.48)
    assert path(rows=300, numeric=200) < short / 2
    assert path(rows=10**9) <= 2.0 * 400  # steps of more than two clip norms overshoot


def test_the_clip_norm_of_a_network_is_a_part_of_a_row() -> None:
    for rows in (100, 10_000, 10**8):
        known = facts(linear=False, rows=rows)
        assert (
            0.05
            < choose(known, "dp_fedsgd").settings["privacy.max_grad_norm"] / known.row_norm
            <= 0.6
        )
    # Errors of a number are short gradients: with this clip norm a generated table had twice the
    # squared error.
    assert (
        choose(facts(linear=False, task="regression"), "dp_fedsgd").settings[
            "privacy.max_grad_norm"
        ]
        == 0.1
    )


def test_networks_on_pixels_have_something_to_expect() -> None:
    known = {"linear": False, "task": "multiclass", "outputs": 10, "mu": 0.7}
    for rows, lost in (
        (500, "16 to 35 points"),
        (60_000, "0.3 to 3.6 points"),
        (1_000_000, "0.3 to 2.3 points"),
    ):
        assert lost in (choose(facts(rows=rows, alike=True, **known), "dp_fedsgd").expected or "")
    assert choose(facts(rows=500, **known), "dp_fedsgd").expected is None  # no table was measured


def test_curves_are_taken_where_much_is_left_of_a_gradient() -> None:
    rows = [int(part * CURVES_DETAIL * 31 * math.sqrt(3) / 0.3) for part in (0.9, 1.1)]
    assert [takes_curves(facts(rows=10 * count, mu=0.03)) for count in rows] == [False, True]
    assert not takes_curves(facts(rows=10 * rows[1], mu=0.03, task="multiclass", outputs=3))
    assert takes_curves(facts(rows=30 * rows[1], mu=0.03, task="multiclass", outputs=3))
    few = [int(part * CURVES_ROWS * 31) for part in (0.9, 1.1)]
    # no noise drowns them
    assert [takes_curves(facts(rows=count, mu=None)) for count in few] == [False, True]
    assert not takes_curves(facts(rows=rows[1], task="multiclass", outputs=3, alike=True))
