"""Numbers of a round: largest over the parties, and nothing that tells who was drawn."""

from __future__ import annotations

import torch

from homo_dp.federation.sessions.aggregator import RoundReport
from homo_dp.runs.round_metrics import (
    GradientNorms,
    party_numbers,
    payload_bytes,
    promised_numbers,
    summed_up,
)
from tests.federation.small import small_config, small_mechanism, zeros

ROWS = {"a": 20, "b": 40}


def test_what_each_party_has_spent_and_sent() -> None:
    mechanism = small_mechanism(small_config(), ROWS)
    plans = {name: mechanism.plan(mechanism.facts.parties[name]) for name in ROWS}
    weights = zeros()
    report = RoundReport(1, ("a",), ("b",), weights, 0.1)
    numbers = party_numbers(plans, {"a": 2.0, "b": None}, report, private=True)
    payload = payload_bytes(weights)
    assert (numbers["a"]["bytes"], numbers["b"]["bytes"]) == (2 * payload, payload)
    assert "applied_sigma" not in numbers["b"]
    assert numbers["a"]["epsilon_pld"] <= numbers["a"]["epsilon_rdp"]
    assert "epsilon_pld" not in party_numbers(plans, {}, report, private=False)["a"]
    together = summed_up(numbers)
    assert together["bytes"] == 3 * payload
    assert together["epsilon_pld"] == max(values["epsilon_pld"] for values in numbers.values())


def test_bytes_do_not_tell_who_was_drawn() -> None:
    mechanism = small_mechanism(small_config(), ROWS)
    plans = {name: mechanism.plan(mechanism.facts.parties[name]) for name in ROWS}
    drawn = RoundReport(1, ("a",), (), zeros(), 0.1)
    assert "bytes" not in party_numbers(plans, {}, drawn, private=True)["a"]


def test_a_promise_grows_with_rounds_and_needs_every_party_s_plan() -> None:
    mechanism = small_mechanism(small_config(), ROWS)
    plans = {name: mechanism.plan(mechanism.facts.parties[name]) for name in ROWS}
    assert promised_numbers(plans, 1)["epsilon"] < promised_numbers(plans, 2)["epsilon"]
    unprotected = small_mechanism(
        small_config(privacy__mechanism="none", privacy__noise_multiplier=None), ROWS
    )
    mixed = {**plans, "b": unprotected.plan(unprotected.facts.parties["b"])}
    assert promised_numbers(mixed, 1) == {}


def test_no_norms_no_histogram() -> None:
    assert GradientNorms().histogram() is None
    assert payload_bytes({"w": torch.zeros(3, dtype=torch.float64)}) == 24
