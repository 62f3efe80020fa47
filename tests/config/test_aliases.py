"""Other spellings of our own words become our keys and values."""

from __future__ import annotations

import pytest

from homo_dp.config.aliases import MECHANISMS, rename


@pytest.mark.parametrize(("theirs", "ours"), MECHANISMS.items())
def test_spellings_of_mechanisms(theirs: str, ours: str) -> None:
    assert rename({"privacy": {"mechanism": theirs}}) == {"privacy": {"mechanism": ours}}
