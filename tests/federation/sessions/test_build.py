"""From a configuration to the facts of a party."""

from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.federation.sessions.build import number_limits, party_facts
from homo_dp.privacy.accounting.checks import steps_for_epochs
from homo_dp.privacy.errors import PrivacyError


@pytest.mark.parametrize("epochs", [1, 2, 0.3, 1.1])
def test_epochs_are_the_steps_that_a_budget_plan_counts(epochs: float) -> None:
    config = load_config(None, {"train.batch_size": 10, "train.local_epochs": epochs})
    for rows in range(10, 2500, 10):  # in floats, one in fourteen of these came to a step too many
        assert party_facts(config, "a", rows).steps_per_round == steps_for_epochs(epochs, rows, 10)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"train.sample_rate": 0.1, "train.local_epochs": 1.1}, 11),
        ({"train.batch_size": 500}, 1),
        ({"train.batch_size": 500, "train.local_epochs": 1e-12}, 1),
        ({"train.local_steps": 7}, 7),
    ],
)
def test_steps_of_a_round(settings: dict[str, Any], steps: int) -> None:
    assert party_facts(load_config(None, settings), "a", 100).steps_per_round == steps


@pytest.mark.parametrize(
    "settings",
    [
        {"train.local_epochs": 1e300, "train.sample_rate": 1e-10},
        {"train.local_steps": 10**24},
        {"train.rounds": 10**24},
    ],
)
def test_more_steps_than_can_be_counted_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(
        PrivacyError,
        match=r"^train\.rounds times the local steps of a round=about 10\*\*\d+ must be",
    ):
        party_facts(load_config(None, settings), "a", 100)


def test_networks_take_smaller_weights_than_linear_models() -> None:
    linear, network = (
        load_config(None, {}),
        load_config(None, {"model.name": "mlp", "model.layers": [4]}),
    )
    assert number_limits(linear.party.caps, linear).model_weight == ("max_weight", 1e6)
    assert number_limits(network.party.caps, network).model_weight == ("max_network_weight", 100.0)
