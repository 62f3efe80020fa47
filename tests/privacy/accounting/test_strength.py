"""The one scale for epsilon: strong, moderate, weak, none."""

from __future__ import annotations

import math

import pytest

from homo_dp.privacy.accounting.strength import (
    epsilon_text,
    nothing_left,
    strength,
    strength_text,
)


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


def test_a_sentence_has_four_figures_and_no_exponent_for_large_epsilons() -> None:
    texts = [epsilon_text(epsilon) for epsilon in (3.99181, 0.0199512, 9_999.9, 167_833.27, 1e12)]
    assert texts == ["3.992", "0.01995", "10,000", "167,800", "1e+12"]


def test_no_guarantee_is_left_where_delta_with_what_rounding_adds_is_1() -> None:
    assert nothing_left(None) is None
    assert nothing_left(1e-5) is None
    assert "no guarantee is left" in (nothing_left(1.00001) or "")
