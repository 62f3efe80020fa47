"""What a plan would give away: the smaller of cap and target is the budget, and a ledger's past
is counted.
"""

from pathlib import Path
from typing import Any

from homo_dp.config.load import load_config
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts
from homo_dp.federation.sessions.build import build_mechanism
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.runs.approval import ROWS_TOLD
from homo_dp.runs.plan_cost import given_away, party_budget
from tests.privacy.ledger_parts import ledger_of


def given(folder: Path, **keys: Any) -> dict[str, Any]:
    own = load_config(
        None, {"privacy.ledger": str(folder / "ledger.sqlite"), "data.name": "table", **keys}
    )
    facts = PartyFacts("a", 1000, 5, 2, 0.1)
    mechanism = build_mechanism(own, FederationFacts({"a": facts}, 5, 3), SeededNoise(1))
    return given_away(own, own, "a", mechanism, mechanism.run.planned(facts))


def test_the_smaller_of_cap_and_target_is_enforced() -> None:
    own = load_config(None, {"party.caps.epsilon": 2.0, "privacy.lifetime_epsilon": 9.0})
    for target, enforced in ((4.0, 2.0), (1.0, 1.0)):
        budget = party_budget(own, load_config(None, {"privacy.target_epsilon": target}))
        assert (budget.epsilon, budget.lifetime_epsilon, budget.lifetime_delta) == (
            enforced,
            9.0,
            own.delta,
        )


def test_the_price_is_within_the_target_and_the_count_is_told_only_if_declared(
    tmp_path: Path,
) -> None:
    found = given(tmp_path, **{"privacy.target_epsilon": 3.0})
    assert 2.9 < found["epsilon (PLD)"] <= 3.0
    assert (found[ROWS_TOLD], found["lifetime epsilon spent"]) == ("no", None)
    assert given(tmp_path, **{"data.rows.a": 1000})[ROWS_TOLD] == 1000


def test_what_the_ledger_holds_of_these_data_is_counted(tmp_path: Path) -> None:
    ledger_of(tmp_path, 3)
    assert given(tmp_path)["lifetime epsilon spent"] > 0
    assert given(tmp_path, **{"data.name": "another"})["lifetime epsilon spent"] == 0
