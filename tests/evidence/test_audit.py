"""The verdict of an audit: from scores drawn by hand, a sound claim stands and a broken one
falls.
"""

import math

import numpy as np
import pytest

from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack, Floats
from homo_dp.evidence.audit import Scores, Wanted, judge, judge_one_run
from homo_dp.evidence.tradeoff import claim_of
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent

CLAIM = claim_of(GaussianDpEvent(1.0), 1e-5)


class Drawn(Attack):
    """Scores of a Gaussian whose noise is this part of the claimed one."""

    name, observer, claim = "drawn", "aggregator", CLAIM

    def __init__(self, noise: float) -> None:
        self._noise, self._generator = noise, np.random.default_rng(1)

    def scores(self, present: bool, runs: int) -> Floats:
        return self._generator.normal(float(present), self._noise, runs)


def judged(noise: float) -> tuple[bool, float, float]:
    attack = Drawn(noise)
    outcome = judge(attack, Scores(attack.scores(True, 2000), attack.scores(False, 2000)), 0.999)
    return outcome.refuted, outcome.lower_bound, outcome.claimed_epsilon


def test_a_sound_claim_stands_and_half_the_noise_falls() -> None:
    refuted, bound, claimed = judged(1.0)  # by chance: 1 in 1000, with a fixed seed
    assert not refuted
    assert 0.3 * claimed < bound <= claimed
    refuted, bound, claimed = judged(0.5)
    assert refuted
    assert bound > claimed


def test_what_is_infinite_is_null_in_json() -> None:
    attack = Drawn(1e-9)
    values = judge(
        attack, Scores(attack.scores(True, 100), attack.scores(False, 100)), 0.999
    ).to_json()
    assert not [
        name
        for name, value in values.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]


def test_one_run_with_many_canaries_sees_missing_noise() -> None:
    present = np.random.default_rng(2).random(1000) < 0.5
    sound = np.random.default_rng(3).normal(present.astype(float), 1.0) - 0.5
    assert not judge_one_run(sound, present, CLAIM, "a", "aggregator", 0.999).refuted
    naked = np.where(present, 9.0, -9.0)
    assert judge_one_run(
        naked, present, claim_of(GaussianDpEvent(2.0), 1e-5), "a", "aggregator", 0.999
    ).refuted


def test_a_confidence_that_says_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"outside \[0\.5, 1\)"):
        Wanted(confidence=0.3)
