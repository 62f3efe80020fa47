"""The attack on statistics nearly reads what it may, and catches answers with too little noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.evidence.audit import Scores, judge
from homo_dp.privacy.private_sum import PrivateSum
from tests.evidence.statistics_attack import CanaryAnswers

RUNS = 250  # with the canary, and as many without; false alarms at 0.999: below 1 in 10,000
ROWS = {"a": 200, "b": 200, "c": 200}


def attack(**keys: Any) -> CanaryAnswers:
    asked = {
        "privacy.mechanism": "statistics",
        "statistics.ask": ["rows", "means"],
        "privacy.target_epsilon": 4.0,
    }
    return CanaryAnswers(load_config(None, asked | keys), ROWS)


def judged(made: CanaryAnswers) -> Any:
    return judge(made, Scores(made.scores(True, RUNS), made.scores(False, RUNS)), 0.999)


@pytest.mark.parametrize("masked", [False, True])
def test_sound_answers_are_not_refuted(masked: bool) -> None:
    outcome = judged(attack(**{"privacy.secure_aggregation": masked}))
    assert not outcome.refuted
    assert 0 < outcome.lower_bound <= outcome.claimed_epsilon


@pytest.mark.parametrize("masked", [False, True])
def test_answers_with_half_the_noise_are_caught(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, sound = attack(**{"privacy.secure_aggregation": masked}), PrivateSum.release

    def half(self: PrivateSum, total: Any, noise: Any) -> Any:
        return sound(replace(self, noise_multiplier=self.noise_multiplier / 2), total, noise)

    if masked:  # the grid follows from sigma, and what reads the total must have the same
        monkeypatch.setattr(
            PrivateSum,
            "party_sigma",
            property(lambda self: self.sigma / 2 / self.share.sharers**0.5),
        )
    else:
        monkeypatch.setattr(PrivateSum, "release", half)
    assert judged(made).refuted
