"""How strong a guarantee is, by its epsilon: one scale for the screen, the report and the
indicators.

The limits are conventions, not theorems: at epsilon 1 the odds about one record change by a factor
of 2.7 at most, at 10 by 22,000, and from 100 on the bound excludes nothing in practice.
"""

from __future__ import annotations

from typing import Literal

STRONG = 1.0
MODERATE = 10.0
NOMINAL = 100.0  # above it the guarantee is not called private without its epsilon
WEAK_MEANS = "in the worst case this guarantee says little"
NOTHING_LEFT = (
    "with what the rounding of the noise adds, delta is 1 at this epsilon: no guarantee is left"
)

Strength = Literal["strong", "moderate", "weak", "none"]


def strength(epsilon: float | None, *, private: bool = True) -> Strength:
    """The word for an epsilon; "none" without privacy or without a finite epsilon.

    >>> [strength(epsilon) for epsilon in (1.0, 10.0, 10.1, 168_000.0, None)]
    ['strong', 'moderate', 'weak', 'weak', 'none']
    """
    if not private or epsilon is None:
        return "none"
    if epsilon <= STRONG:
        return "strong"
    return "moderate" if epsilon <= MODERATE else "weak"


def strength_text(epsilon: float | None, *, private: bool = True) -> str:
    """A line for the screen: the word, its epsilon, and what a weak guarantee is worth.

    >>> strength_text(0.5)
    'strength of the guarantee: strong (epsilon 0.5; strong up to 1, moderate up to 10)'
    """
    word = strength(epsilon, private=private)
    if word == "none":
        return "strength of the guarantee: none"
    text = (
        f"strength of the guarantee: {word} (epsilon {short_epsilon(epsilon)}; strong up to "
        f"{STRONG:g}, moderate up to {MODERATE:g})"
    )
    return text + (f"; {WEAK_MEANS}" if word == "weak" else "")


def nothing_left(delta_with_neglected: float | None) -> str | None:
    """A sentence where delta, with what finite precision adds to it, excludes nothing.

    >>> nothing_left(1e-5) is None, nothing_left(1.00001) == NOTHING_LEFT
    (True, True)
    """
    return NOTHING_LEFT if delta_with_neglected is not None and delta_with_neglected >= 1 else None


def epsilon_text(epsilon: float) -> str:
    """Four significant figures, as sentences give them; thousands separated.

    >>> epsilon_text(3.99181), epsilon_text(167_833.27)
    ('3.992', '167,800')
    """
    rounded = float(f"{epsilon:.4g}")
    return f"{rounded:,.0f}" if 10_000 <= rounded < 1e9 else f"{rounded:.4g}"


def short_epsilon(epsilon: float | None) -> str:
    """Three significant figures, with thousands separated.

    >>> short_epsilon(168_432.0), short_epsilon(3.9919)
    ('168,000', '3.99')
    """
    if epsilon is None:
        return "none"
    rounded = float(f"{epsilon:.3g}")
    return f"{rounded:,.0f}" if 1000 <= rounded < 1e9 else f"{rounded:g}"
