"""Merging layers: the later one wins, and what contradicts it goes."""

from __future__ import annotations

from typing import Any

import pytest

from homo_dp.config.layers import EXCLUSIVE, drop, get, merge, put, split_key
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize("group", EXCLUSIVE)
def test_an_exclusive_key_drops_the_others_of_the_layer_below(group: tuple[str, ...]) -> None:
    under: dict[str, Any] = {}
    over: dict[str, Any] = {}
    put(under, split_key(group[0]), 1)
    put(over, split_key(group[-1]), 2)
    merged = merge(under, over)
    assert get(merged, group[0]) is None
    assert get(merged, group[-1]) == 2
    assert get(under, group[0]) == 1  # the layer itself stays as it was


def test_mappings_join_and_lists_replace() -> None:
    merged = merge({"model": {"layers": [1, 2], "name": "mlp"}}, {"model": {"layers": [3]}})
    assert merged == {"model": {"layers": [3], "name": "mlp"}}


def test_a_bare_word_is_the_start_of_its_section() -> None:
    merged = merge({"train": {"schedule": "cosine"}}, {"train": {"schedule": {"warmup": 3}}})
    assert merged == {"train": {"schedule": {"kind": "cosine", "warmup": 3}}}


def test_another_mechanism_drops_what_only_the_former_one_reads() -> None:
    under = {
        "privacy": {"mechanism": "dp_fedavg", "cohort_size": 10, "delta": 1e-6},
        "nbafl": {"epsilon": 3},
    }
    merged = merge(under, {"privacy": {"mechanism": "dp_sgd"}})
    assert merged == {"privacy": {"mechanism": "dp_sgd", "delta": 1e-6}}


def test_keys_with_quotes() -> None:
    assert split_key("data.columns.'a.b c'.bounds") == ("data", "columns", "a.b c", "bounds")
    assert split_key("data.columns.'it''s'") == ("data", "columns", "it's")
    for wrong in ("a..b", "a.'b", ".a", "a.", ""):
        with pytest.raises(ConfigError, match="not a dotted key"):
            split_key(wrong)
    with pytest.raises(ConfigError, match="has more than"):
        split_key(".".join("a" * 1000))


def test_dropping_what_is_not_there_changes_nothing() -> None:
    tree = {"a": {"b": 1}}
    drop(tree, "a.c")
    drop(tree, "x.y")
    assert tree == {"a": {"b": 1}}
