"""Settings that a mechanism's record rules out are refused, whatever the mechanism is called."""

from dataclasses import replace
from typing import Any

import pytest

from homo_dp.config.base import Conflict
from homo_dp.config.capabilities import Capabilities
from homo_dp.config.load import load_config
from homo_dp.config.mechanisms import DP_SGD, records
from homo_dp.config.rules import RULES, check_rules

OWN = "mine.laplace:Laplace"


def refusal(record: Capabilities, **keys: Any) -> str:
    """What the rules say to a config with these keys, of a mechanism with this record."""
    given = {name.replace("__", "."): value for name, value in keys.items()}
    config = load_config(None, {"privacy.mechanism": OWN, "privacy.target_epsilon": 1.0} | given)
    try:
        check_rules(config, record)
    except Conflict as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("lacks", "keys", "words"),
    [
        ({"private": False}, {}, "privacy.not_private: true"),
        ({}, {"privacy__unit": "user", "privacy__population": 9}, "hides a record"),
        ({"sections": ()}, {"nbafl__mu": 0.5}, "nbafl: is not used"),
        ({"local_steps": False}, {"train__local_steps": 3}, "a round of own is one step"),
        ({"local_steps": False}, {"train__momentum": 0.9}, "parties take no step under own"),
        ({"metrics": False}, {"metrics__release": "noised"}, "has no share of its budget"),
        ({"weightings": ("uniform",)}, {"train__weighting": "rows"}, "train.weighting=rows"),
        (
            {"noise_at_aggregator": {"train.rounds": 20}},
            {},
            "privacy.trust_aggregator: true if you trust it",
        ),
    ],
)
def test_what_a_record_lacks_is_refused(
    lacks: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    able = Capabilities("own", metrics=True, sections=("nbafl",))
    asked = {} if "privacy__unit" in keys else keys
    assert refusal(able, **asked) == ""
    assert words in refusal(replace(able, **lacks), **keys)


def test_mechanisms_that_can_are_named_in_a_refusal() -> None:
    config = load_config(None, {"privacy.mechanism": "none", "train.grad_clip": 1.0})
    messages = [rule.message(config, DP_SGD) for rule in RULES]
    able = " or ".join(each.name for each in records() if each.estimates_first and each.trains)
    assert any(f"use {able}, or ask `homo-dp stats`" in message for message in messages)
    assert not any("{" in message for message in messages)


def test_every_record_allows_the_defaults() -> None:
    for record in records():
        loaded = load_config(
            None,
            {"privacy.mechanism": record.name, "privacy.trust_aggregator": True}
            | ({"privacy.cohort_size": 9} if record.unit == "user" else {}),
        )
        check_rules(loaded, record)
