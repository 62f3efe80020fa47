"""Passwords in addresses: shown nowhere, and a masked copy is not taken for the address."""

from __future__ import annotations

import pytest

from homo_dp.config.addresses import address, masked, masked_tree, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:pw@db/x", "postgresql://ann:***@db/x"),
        ("http://h/?password=pw&x=1", "http://h/?password=***&x=1"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("no address: at all", "no address: at all"),
    ],
)
def test_only_secrets_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_an_error_that_quotes_the_password_does_not_show_it() -> None:
    uri = "postgresql://ann:s%40fe@db/x"
    assert "s@fe" not in without_secrets(f"cannot log in at {uri} with s@fe", uri)


def test_trees_are_masked_to_their_leaves() -> None:
    tree = {"tracking": {"uri": "http://a:b@h"}, "list": ["http://a:b@h", 3], "none": None}
    assert masked_tree(tree) == {
        "tracking": {"uri": "http://a:***@h"},
        "list": ["http://a:***@h", 3],
        "none": None,
    }


def test_a_masked_address_is_refused() -> None:
    assert address("http://a:b@h") == "http://a:b@h"
    with pytest.raises(ValueError, match="its password was masked"):
        address("http://a:***@h")
