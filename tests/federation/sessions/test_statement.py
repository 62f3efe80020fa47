"""What a privacy statement adds for noise that is not ideal: over all that the run released, and
all who drew noise.
"""

from __future__ import annotations

import pytest

from homo_dp.federation.sessions.statement import (
    _draws,
    privacy_statement,
    statement_lines,
)
from homo_dp.privacy.noise.grid import neglected
from tests.federation.small import FEATURES, small_config, small_mechanism

PARTIES = dict.fromkeys("abc", 20)
MOMENT = (FEATURES + 1) * (FEATURES + 2) // 2


@pytest.mark.parametrize(("secure", "draw"), [(False, 1), (True, 3)])
def test_every_sum_of_the_run_and_every_party_that_draws_noise_counts(
    secure: bool, draw: int
) -> None:
    config = small_config(
        privacy__mechanism="dp_fedsgd",
        privacy__secure_aggregation=secure,
        train__local_steps=None,
        train__solver="second_moment",
        train__row_norm=1.0,
    )
    mechanism = small_mechanism(config, PARTIES)
    plan = mechanism.run.planned(mechanism.facts.parties["a"])
    assert plan.all_rounds == 3
    rounds = 2 * (FEATURES + 2)  # weights, bias, and one for clip bits
    assert _draws(mechanism, "a", plan, 3) == (rounds + MOMENT) * draw
    assert _draws(mechanism, "a", plan, 1) == MOMENT * draw
    said = privacy_statement(
        mechanism, {"a": plan}, 3, {"a": 1.0}, private=True, secure_mode=True, declared_rows=True
    )
    found = neglected((rounds + MOMENT) * draw, said["epsilon"], said["delta"])
    assert said["neglected_epsilon"] == found.epsilon
    assert said["neglected_delta"] == found.delta
    assert said["delta_with_neglected"] == said["delta"] + found.delta


def test_a_screen_says_where_rounding_leaves_no_guarantee() -> None:
    said = {"statement": "At most.", "strength": "weak", "epsilon": 168_000.0, "private": True}
    lines = statement_lines(said | {"delta_with_neglected": 1.00001})
    assert lines[0] == "At most."
    assert "weak" in lines[1]
    assert "no guarantee is left" in lines[2]
    assert len(statement_lines(said | {"delta_with_neglected": 1e-5})) == 2
