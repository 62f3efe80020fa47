"""The rounds in which a run privately estimates something: which they are, and what they cost."""

from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts
from homo_dp.federation.mechanisms.estimation import EstimationStage
from homo_dp.federation.protocol.round_sums import noise_of_share
from homo_dp.federation.sessions.stages import Stage, stage_of
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise

COLUMNS = {"x": {"bounds": [-1e6, 1e6]}, "z": {"bounds": [0, 1e6]}, "w": {"levels": "private"}}
NAMES = ("a", "b", "c")


def stage(rows: int | None = 500, **overrides: Any) -> Stage:
    keys = {
        "data.columns": COLUMNS,
        "data.scaling": "private",
        "data.counts": "private",
        "privacy.target_epsilon": 8.0,
        "train.rounds": 3,
        "train.sample_rate": 0.1,
        "train.local_steps": 1,
    }
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return stage_of(load_config(None, keys | named), dict.fromkeys(NAMES, rows))


def mechanism(of: Stage) -> EstimationStage:
    parties = {name: PartyFacts(name, of.rows[name] or 1, 3, 1, 0.1) for name in NAMES}
    facts = of.with_estimates(FederationFacts(parties, 3, 4))
    made = of.mechanism(facts, SeededNoise(1))
    assert isinstance(made, EstimationStage)
    return made


def test_estimates_come_first_and_the_training_after_them() -> None:
    made = mechanism(stage())
    kinds = [asked.name for asked in made.run.sums.values()]
    assert kinds == ["level_names", "rows", "octaves", "magnitudes", "spreads"]
    assert (made.last_round, made.run.count) == (5, 8)
    assert [made.run.training_round(number) for number in (5, 6, 8)] == [0, 1, 3]
    plan = made.run.planned(made.facts.parties["a"])
    assert [plan.kind_of(number) for number in (5, 6)] == ["spreads", "update"]


def test_together_they_cost_their_share_of_the_target() -> None:
    made = mechanism(stage(privacy__statistics_share=0.25))
    spent = sum(asked.private_sum.noise_multiplier**-2 for asked in made.run.sums.values())
    assert spent == pytest.approx(0.25 * noise_of_share(1.0, 8.0, 1e-5) ** -2, rel=1e-9)


def test_a_party_with_a_smaller_target_is_asked_the_same_with_more_noise() -> None:
    """At epsilon 0.2 alone it would ask for no spreads: a round less than the others."""
    plain = mechanism(stage(rows=100, privacy__target_epsilon=8.0))
    keys = {"data.columns": COLUMNS, "data.scaling": "private", "data.counts": "private"}
    steps = {"train.rounds": 3, "train.sample_rate": 0.1, "train.local_steps": 1}
    own = load_config(None, keys | steps | {"privacy.target_epsilon": 0.2})
    rows = dict.fromkeys(NAMES, 100)
    assert len(mechanism(stage_of(own, rows)).run.sums) < len(plain.run.sums)
    party = mechanism(stage_of(own, rows, target=(8.0, 1e-5)))
    assert [asked.name for asked in party.run.sums.values()] == [
        asked.name for asked in plain.run.sums.values()
    ]
    pairs = zip(party.run.sums.values(), plain.run.sums.values(), strict=True)
    assert all(a.private_sum.noise_multiplier > b.private_sum.noise_multiplier for a, b in pairs)


def test_no_round_of_training_is_answered_in_this_stage() -> None:
    made = mechanism(stage())
    with pytest.raises(PrivacyError, match="before the estimates were there"):
        made.after_fit(None)  # type: ignore[arg-type]


def test_answers_survive_a_restart() -> None:
    made = mechanism(stage(rows=None))
    asked = made.run.sums[2]
    parts = {name: torch.tensor([400.0 + at], dtype=torch.float64) for at, name in enumerate(NAMES)}
    numbers = {"numbers": torch.zeros(4, 2, dtype=torch.float64)}
    made.on_sum(asked, parts, numbers, 2)
    again = mechanism(stage(rows=None))
    again.restore(made.state())
    found = again.estimates.found(numbers)
    assert found["rows"] == made.estimates.found(numbers)["rows"]
    assert again.estimates._known_rows == pytest.approx(1203)


def test_an_estimate_that_could_not_be_opened_says_nothing() -> None:
    made = mechanism(stage(rows=None))
    found = made.estimates.found({"numbers": torch.zeros(4, 2, dtype=torch.float64)})
    assert found["rows"] == {}
    assert found["bounds"] == {"x": [-1e6, 1e6], "z": [0.0, 1e6]}
    assert found["levels"] == {"w": []}
