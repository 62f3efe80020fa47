"""Words of other systems: they become our keys, and two words for one key must agree."""

from __future__ import annotations

import pytest

from homo_dp.compat.names import rename, rename_for_nbafl
from homo_dp.core.errors import ConfigError


def test_an_alias_beside_its_key_must_say_the_same() -> None:
    assert rename({"nbafl": {"w_clip": 2, "clip_norm": 2}}) == {"nbafl": {"clip_norm": 2}}
    with pytest.raises(ConfigError, match="give only one of them"):
        rename({"nbafl": {"w_clip": 2, "clip_norm": 3}})


def test_the_tree_that_was_given_is_left_alone() -> None:
    given = {"nbafl": {"w_clip": 2}}
    rename(given)
    assert given == {"nbafl": {"w_clip": 2}}


def test_words_of_flower_dp_count_only_with_nbafl() -> None:
    assert rename_for_nbafl({"epsilon": 5}) == [{"epsilon": 5}]
    layers = rename_for_nbafl({"epsilon": 5}, {"privacy": {"mechanism": "nbafl"}})
    assert layers[0] == {"nbafl": {"epsilon": 5}}


def test_federatedscope_s_switch() -> None:
    assert rename({"nbafl": {"use": True}})["privacy"] == {"mechanism": "nbafl"}
    with pytest.raises(ConfigError, match=r"nbafl\.use=false"):
        rename_for_nbafl({"privacy": {"mechanism": "nbafl"}}, {"nbafl": {"use": False}})
