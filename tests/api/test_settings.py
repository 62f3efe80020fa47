"""What Python gives beside settings, and that nothing private is a default."""

from __future__ import annotations

import pytest

import homo_dp
from homo_dp.core.errors import ConfigError
from tests.api.parts import COMMON, QUICK, table


def test_epsilon_is_never_a_default() -> None:
    without = {name: value for name, value in COMMON.items() if name != "epsilon"}
    with pytest.raises(ConfigError, match="epsilon: is not given"):
        homo_dp.fit({"a": table(100, 1)}, ledger=None, settings=QUICK, **without)
    plain = homo_dp.fit({"a": table(100, 1)}, mechanism="none", settings=QUICK, **without)
    assert plain.epsilon is None
    assert plain.ledger is None


def test_a_config_is_accepted_as_settings() -> None:
    config = homo_dp.Config.model_validate(
        {
            "train": {"rounds": 1, "local_steps": 1},
            "data": {"classes": ["well", "ill"], "embedded": "breast_cancer"},
        }
    )
    assert (
        len(homo_dp.fit({"a": table(100, 1)}, ledger=None, settings=config, **COMMON).rounds) == 1
    )
    shipped = homo_dp.fit(
        settings={"data.embedded": "breast_cancer", "train.rounds": 1}, epsilon=3, progress=False
    )
    assert len(shipped.privacy["parties"]) == 3


@pytest.mark.parametrize("mechanism", [None, "dp_sgd", "dp_fedsgd"])
def test_epsilon_has_no_default_whatever_the_mechanism(mechanism: str | None) -> None:
    with pytest.raises(ConfigError, match="epsilon: is not given"):
        homo_dp.fit(
            {"a": table(50, 1)}, label="outcome", bounds=(0, 10), ledger=None, mechanism=mechanism
        )
