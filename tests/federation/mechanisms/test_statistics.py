"""Statistics as a mechanism: all questions together cost the target, and names of levels are not
asked under masks.
"""

from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts
from homo_dp.federation.mechanisms.statistics import Statistics
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.noise.source import SeededNoise

PARTIES = {name: PartyFacts(name, 200, 0, 0, 1.0) for name in ("a", "b", "c")}


def mechanism(**keys: Any) -> Statistics:
    base = {
        "privacy.mechanism": "statistics",
        "privacy.target_epsilon": 2.0,
        "statistics.ask": "rows,classes,means",
    }
    return Statistics(
        load_config(None, base | keys), FederationFacts(PARTIES, 0, 1), SeededNoise(1)
    )


@pytest.mark.parametrize("masked", [False, True])
def test_all_questions_together_cost_the_target(masked: bool) -> None:
    asked = mechanism(**{"privacy.secure_aggregation": masked}).run.sums
    assert [each.name for each in asked.values()] == ["rows", "classes", "means"]
    spent = epsilon(compose(*(each.event for each in asked.values())), 1e-5).quoted
    assert 1.95 < spent <= 2.0


def test_shared_noise_is_less_at_each_party() -> None:
    alone, shared = (
        mechanism(**{"privacy.secure_aggregation": masked}).run.sums[1].private_sum
        for masked in (False, True)
    )
    assert shared.party_sigma < alone.party_sigma
    assert shared.sigma == pytest.approx(alone.sigma)


def test_a_list_of_names_is_not_asked_under_masks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no sum that could be masked"):
        mechanism(**{"privacy.secure_aggregation": True, "statistics.ask": "level_names"})
