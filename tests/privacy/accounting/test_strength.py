"""The one scale for epsilon: strong, moderate, weak, none."""

from __future__ import annotations

import math

import pytest

from homo_dp.privacy.accounting.strength import strength, strength_text


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [
        (0.0, "strong"),
        (1.0, "strong"),
        (math.nextafter(1.0, 2.0), "moderate"),
        (10.0, "moderate"),
        (math.nextafter(10.0, 20.0), "weak"),
        (168_000.0, "weak"),
        (math.inf, "weak"),
        (None, "none"),
    ],
)
def test_the_word_follows_epsilon(epsilon: float | None, word: str) -> None:
    assert strength(epsilon) == word
    assert strength(epsilon, private=False) == "none"
    assert f": {word}" in strength_text(epsilon)


def test_the_line_of_a_weak_guarantee_gives_epsilon_and_what_it_is_worth() -> None:
    text = strength_text(168_432.0)
    assert "epsilon 168,000" in text
    assert "in the worst case this guarantee says little" in text
    assert "says little" not in strength_text(4.0)
