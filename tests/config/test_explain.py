"""One line for everything that pydantic refuses."""

from __future__ import annotations

import string

import pytest

from homo_dp.config.explain import all_keys, dotted, show, takes_text
from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.round", 3, "train.rounds"),
        ("train.rounds", -1, "train.rounds=-1"),
        ("privacy.detla", 1e-5, "privacy.delta"),
        ("lerning_rate", 0.1, "train.learning_rate"),
        ("model.layers", ["a"], "model.layers"),
        ("x", 1, "x: unknown key; the sections are "),
        ("nbafl.q", 1, "nbafl.q: unknown key; the keys of nbafl are "),
        ("privacy.k", 1, "privacy.k: unknown key; docs/config.md lists the keys of privacy"),
    ],
)
def test_the_line_names_the_key_and_what_to_do(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {key: value})
    line = str(refused.value)
    assert words in line
    assert "\n" not in line


@pytest.mark.parametrize("section", ["", "train.", "privacy."])
def test_a_single_letter_is_taken_for_no_key(section: str) -> None:
    """x was answered with model.fix, train.e with train.seed; where a key has two letters, one
    of them is like it.
    """
    for letter in string.ascii_lowercase:
        with pytest.raises(ConfigError) as refused:
            load_config(None, {f"{section}{letter}": 1})
        assert "did you mean" not in str(refused.value)


def test_every_key_of_the_schema_is_found() -> None:
    keys = set(all_keys(Config))
    assert {
        "train.rounds",
        "privacy.target_epsilon",
        "data.columns",
        "transport.nats.servers",
    } <= keys


def test_values_as_they_stand_in_a_message() -> None:
    assert [show(value) for value in (None, True, 5, "5", "", "plain")] == [
        "null",
        "true",
        "5",
        '"5"',
        '""',
        "plain",
    ]
    assert len(show("x" * 1000)) < 200
    assert dotted(("data", "columns", "mean radius")) == "data.columns.'mean radius'"


def test_which_keys_hold_text() -> None:
    assert takes_text(Config, "data.label")
    assert not takes_text(Config, "train.rounds")
