"""From what an attack guessed to a lower bound on epsilon; each estimator says what it assumes.

| estimator | assumes | gives |
|---|---|---|
| ``clopper_pearson`` | independent runs, a threshold fixed before any score is seen | certified
bound |
| ``one_run`` (Steinke, Nasr & Jagielski 2023) | canaries in or out by independent fair coins |
certified bound |
| ``f_dp_one_run`` (Mahloujifar, Melis & Chaudhuri 2024) | the same, and a Gaussian curve |
certified bound |
| ``gaussian_fit`` | scores are normal with one common spread | point estimate, no confidence |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from homo_dp.core.errors import InputError
from homo_dp.privacy.accounting.analytic_gaussian import gaussian_epsilons

Floats = NDArray[np.float64]
LARGEST_EPSILON = 200.0  # no number of guesses that fits in memory certifies more


@dataclass(frozen=True)
class Guesses:
    """How often an attack said "in": ``true_positives`` of ``present`` runs, ``false_positives``
    of ``absent`` ones.
    """

    true_positives: float
    present: int
    false_positives: float
    absent: int

    def __post_init__(self) -> None:
        if not (
            0 <= self.true_positives <= self.present and 0 <= self.false_positives <= self.absent
        ):
            raise InputError(
                f"{self} is not possible: give counts between 0 and the number of runs"
            )
        if self.present < 1 or self.absent < 1:
            raise InputError(
                f"{self} has no runs on one side: an audit needs runs with and without the canary"
            )


def guesses_at(present: Floats, absent: Floats, threshold: float) -> Guesses:
    """Say "in" where a score is at or above the threshold.

    >>> guesses_at(np.array([1.0, 3.0]), np.array([0.0, 2.0]), 2.0)
    Guesses(true_positives=1, present=2, false_positives=1, absent=2)
    """
    return Guesses(
        int(np.sum(present >= threshold)),
        len(present),
        int(np.sum(absent >= threshold)),
        len(absent),
    )


def error_bounds(guesses: Guesses, confidence: float) -> tuple[float, float]:
    """Upper bounds on the false-positive and false-negative rates that hold together with
    ``confidence``.
    """
    tail = (1 - _checked(confidence)) / 2
    misses = guesses.present - guesses.true_positives
    return _upper(guesses.false_positives, guesses.absent, tail), _upper(
        misses, guesses.present, tail
    )


def clopper_pearson(guesses: Guesses, delta: float, confidence: float) -> float:
    """The epsilon that an (epsilon, delta) claim must at least have, with ``confidence``; 0 if
    nothing was shown.

    A claim bounds both errors: TPR <= e^eps FPR + delta, and the same with in and out exchanged
    (Kairouz, Oh & Viswanath 2015). Both rates are bounded together, so the better of the two
    inequalities may be taken.

    >>> round(clopper_pearson(Guesses(1000, 1000, 0, 1000), delta=0.0, confidence=0.95), 3)  # 1 - 0.025**(1/1000)
    5.601
    """
    false_positive, false_negative = error_bounds(guesses, confidence)
    ratios = (
        (1 - delta - false_negative) / false_positive,
        (1 - delta - false_positive) / false_negative,
    )
    return max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)) if max(ratios) > 0 else 0.0


def one_run(canaries: int, guessed: int, correct: int, delta: float, confidence: float) -> float:
    """The largest epsilon refuted by ``correct`` of ``guessed`` guesses about ``canaries`` fair
    coins.

    >>> round(one_run(100, 100, 100, delta=0.0, confidence=0.95), 3)  # q**100 = 0.05 at q = 1 / (1 + e**-eps)
    3.493
    """
    _check_guesses(canaries, guessed, correct)
    return _largest_refuted(
        lambda epsilon: one_run_p_value(canaries, guessed, correct, epsilon, delta) < 1 - confidence
    )


def one_run_p_value(
    canaries: int, guessed: int, correct: int, epsilon: float, delta: float
) -> float:
    """Chance of so many right guesses under an (epsilon, delta) claim, at most
    (arXiv:2305.08846).
    """
    right = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(correct - 1, guessed, right))
    if delta == 0 or correct == 0:
        return min(1.0, beta)
    sums = np.cumsum(stats.binom.pmf(correct - np.arange(1, correct + 1), guessed, right))
    alpha = float(np.max(sums / np.arange(1, correct + 1)))
    return min(1.0, beta + 2 * canaries * delta * alpha)


def f_dp_one_run(
    canaries: int, guessed: int, correct: int, delta: float, confidence: float
) -> float:
    """The largest epsilon at ``delta`` whose Gaussian curve is refuted (arXiv:2410.22235)."""
    _check_guesses(canaries, guessed, correct)
    if guessed == 0:
        return 0.0

    def refuted(epsilon: float) -> bool:
        return _curve_refuted(
            gaussian_distance(epsilon, delta), canaries, guessed, correct, 1 - confidence
        )

    return _largest_refuted(refuted)


def _curve_refuted(
    distance: float, canaries: int, guessed: int, correct: int, significance: float
) -> bool:
    """Whether a Gaussian mechanism with this distance over noise could not be guessed so well."""
    right, wrong = significance * correct / canaries, significance * (guessed - correct) / canaries
    for left in range(correct - 1, -1, -1):
        grown = max(wrong, float(stats.norm.cdf(stats.norm.ppf(right) - distance)))
        if grown == wrong:
            break
        right, wrong = min(1.0, right + left / (guessed - left) * (grown - wrong)), grown
    return right + wrong > guessed / canaries


def gaussian_fit(present: Floats, absent: Floats, delta: float) -> float:
    """Epsilon of the Gaussian mechanism whose scores these would be: a point estimate under that
    assumption.

    >>> grid = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    >>> round(gaussian_fit(grid + 1.0, grid, delta=1e-5), 2)  # noise multiplier 1: 4.38
    4.38
    """
    spread = math.sqrt((float(np.var(present, ddof=1)) + float(np.var(absent, ddof=1))) / 2)
    gap = float(np.mean(present) - np.mean(absent))
    if gap <= 0:
        return 0.0
    if spread == 0:
        return math.inf
    return float(gaussian_epsilons(np.array([gap / spread]), delta)[0])


def gaussian_distance(epsilon: float, delta: float) -> float:
    """The distance over noise at which a Gaussian mechanism has this epsilon at ``delta``.

    >>> round(1 / gaussian_distance(1.0, 1e-5), 3)  # sigma of Balle & Wang's analytic mechanism
    3.731
    """

    def above(distance: float) -> float:
        return float(gaussian_epsilons(np.array([distance]), delta)[0]) - epsilon

    if epsilon <= 0:
        return 0.0
    return float(optimize.brentq(above, 1e-6, 4 + 2 * math.sqrt(2 * epsilon), xtol=1e-9))


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """By bisection, rounded down: a claim that is refuted at some epsilon is refuted at all
    smaller ones.
    """
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < LARGEST_EPSILON:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _upper(errors: float, runs: int, tail: float) -> float:
    return 1.0 if errors >= runs else float(stats.beta.ppf(1 - tail, errors + 1, runs - errors))


def _checked(confidence: float) -> float:
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence={confidence} is outside [0.5, 1); 0.95 is usual")
    return confidence


def _check_guesses(canaries: int, guessed: int, correct: int) -> None:
    if not 0 <= correct <= guessed <= canaries or canaries < 1:
        raise InputError(
            f"correct={correct}, guessed={guessed}, canaries={canaries}: must be 0 <= correct <= "
            "guessed <= canaries"
        )
